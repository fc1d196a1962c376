"""Tables in all formats."""

import csv
import io
import math

import pytest
from markupsafe import Markup

from mmairl.report.table import Table, counted, signed

SCORES = Table(
    ['network', 'k-NN', 'RMSE (m)'],
    [['a', 71.26, 0.512], ['b & <c>', None, 0.4], ['d|_', 71.3, math.nan]],
    scores=['k-NN', 'RMSE (m)'],
)


def test_best_values_follow_the_direction_of_the_score():
    # The shown digits of 71.26 and 71.3 are equal, so both are the best.
    assert SCORES.best == {(0, 1), (2, 1), (1, 2)}
    assert Table(SCORES.columns, SCORES.rows[:1], scores=SCORES.scores).best == set()
    assert Table(SCORES.columns, SCORES.rows).best == set()


def test_text_is_aligned_and_marks_missing_values():
    assert SCORES.text('Title').splitlines() == [
        'Title',
        'network  k-NN  RMSE (m)',
        'a        71.3     0.512',
        'b & <c>     –     0.400',
        'd|_      71.3         –',
    ]


def test_csv_has_all_digits():
    rows = [*csv.reader(io.StringIO(Table(['a', 'x'], [['c', 1 / 3], ['b', None]]).csv()))]
    assert rows == [['a', 'x'], ['c', repr(1 / 3)], ['b', '']]


def test_markdown_and_latex_escape_names():
    assert r'| d\|\_ | 71.3 | – |' in SCORES.markdown().splitlines()
    lines = SCORES.latex().splitlines()
    assert (
        lines[0] == r'\begin{tabular}{lrr}'
        and r'b \& \textless{}c\textgreater{} & -- & 0.400 \\' in lines
    )


def test_html_escapes_text_but_no_markup():
    html = Table(['a', 'b'], [['<i>', Markup('<b>x</b>')]]).html()
    assert '&lt;i&gt;' in html and '<b>x</b>' in html
    assert SCORES.html().count('class="best"') == 3


@pytest.mark.parametrize(
    'value, text', [(0.04, '0.0'), (-0.04, '0.0'), (1.26, '+1.3'), (-2.0, '−2.0')]
)
def test_sign_is_shown_unless_the_number_is_zero(value, text):
    assert signed(value) == text


def test_plural_follows_the_number():
    assert [counted(1, 'run'), counted(2000, 'run')] == ['1 run', '2,000 runs']
