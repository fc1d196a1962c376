from rich.console import Console

from mmairl.evaluation.protocol import Result
from mmairl.report.table import html_table, terminal_table


def test_terminal_table_has_a_row_a_subject_and_one_decimal(results):
    console = Console(width=100, record=True)
    console.print(terminal_table(results, 'top-1'))
    lines = console.export_text().splitlines()
    (row,) = [line for line in lines if 'random initialisation' in line]
    assert row.replace('│', ' ').split() == ['random', 'initialisation', '25.0', '33.3', '1.5']


def test_a_score_that_a_subject_lacks_is_a_dash_and_the_best_is_marked(results):
    text = html_table([*results, Result('teacher', {'linear': 99.0}, 0.5)])
    assert '<th scope=row>teacher</th><td>–</td><td class=best>99.0</td>' in text
    assert text.count('class=best') == 2
