"""The study page: its problems, answer, next steps, effects, scores and evidence, from records with invented scores."""

import re

import pytest
from study.canned import entry, record, row, run, steps

from mmairl.study.answer import answer, next_steps, problems
from mmairl.study.findings import Findings
from mmairl.study.page import score_table, write_results


def text_of(parts):
    return ' '.join(part.striptags() for part in parts)


def findings(study):
    return Findings(study, study['metrics'][0])


def page_of(study, tmp_path):
    return write_results(study, tmp_path).read_text()


def test_answer_names_the_largest_effect():
    text = text_of(answer(record(steps(30, 31, 40))))
    assert '“row 2”: ' in text and 'higher' in text and '+9.0 points' in text


def test_answer_without_effect_states_equivalence():
    quiet = [
        row(
            f'row {n}',
            [30, 30.1, 30.2 + n / 100],
            f'row {n - 1}' if n else None,
        )
        for n in range(3)
    ]
    assert 'within ±1 points' in text_of(answer(record(quiet)))


def test_answer_of_an_open_study_names_the_largest_effect():
    noisy = [row('a', [30, 35, 25]), row('b', [32, 30, 33], 'a')]
    text = text_of(answer(record(noisy)))
    assert 'No comparison has a significant effect' in text and 'inconclusive' in text


def test_page_states_the_coverage_of_intervals_in_interim_analyses(tmp_path):
    study = record(steps(30, 31, 40), interim_analyses=2)
    page = page_of(study, tmp_path)
    assert '(97.5&nbsp;% interval' in page and 'line: 97.5 % interval' in page
    once = record(steps(30, 31, 40))['effects']['knn'][1]
    twice = study['effects']['knn'][1]
    assert twice['high'] - twice['low'] > 1.4 * (once['high'] - once['low'])


def test_page_has_no_column_of_the_paper_without_a_published_effect(tmp_path):
    rows = steps(30, 31, 40)
    rows[1]['published'] = {'linear': 70.0}
    assert '>Paper</th>' not in page_of(record(rows), tmp_path)
    rows[0]['published'] = {'linear': 69.0}
    assert '>Paper</th>' in page_of(record(rows), tmp_path)


def test_lower_scores_are_named_as_better():
    metric = dict(key='knn', label='RMSE', unit='m', lower_is_better=True)
    study = record(steps(30, 40), metrics=[metric])
    assert '(lower is better)' in findings(study).title


def test_collapsed_runs_are_a_problem_without_effect():
    rows = steps(30, 40)
    rows[1]['runs'][2] |= dict(collapsed=True, scores={'knn': 3.0})
    study = record(rows)
    assert '1 of 3 runs of “row 1” collapsed' in text_of(problems(study))
    finding = findings(study).all[0]
    assert finding.estimate is None and finding.kind == 'problem'


def test_low_score_is_not_a_collapse():
    study = record([*steps(30, 12), row('random', [14.0], untrained='random')])
    assert problems(study) == []
    text = score_table(study).text()
    assert '12.0 ± 0.4 (n = 3)' in text
    assert 'above the random network' in text and '−2.0' in text and '+16.0' in text


def test_one_seed_has_no_verdict():
    study = record([row('a', [30]), row('b', [40], 'a')], seeds=1)
    assert 'One seed.' in text_of(problems(study))
    assert next(next_steps(study)).command.endswith('--seeds 0 1 2')


def test_missing_and_failed_runs_are_named(tmp_path):
    rows = steps(30, 40)
    rows[1]['runs'][2:] = [run(2, None, state='failed', error='the loss is NaN', scores={})]
    rows[0]['runs'][0] = run(0, None, state='missing', scores={})
    study = record(rows)
    text = text_of(problems(study))
    assert '4 of 6 runs are finished' in text and 'the loss is NaN' in text
    assert 'Run the remaining 2 runs' in next(next_steps(study)).title
    assert 'the loss is NaN' in page_of(study, tmp_path)


def test_more_seeds_are_suggested_for_an_open_comparison():
    noisy = [row('a', [30, 30, 31]), row('b', [35, 31, 32], 'a')]
    step = next(next_steps(record(noisy)))
    assert re.fullmatch(r'Run \d+ more seeds? to decide “b”', step.title.striptags())
    assert re.match(r'\d+ runs, [\d.]+ (min|h)', step.cost)


def test_no_more_seeds_are_suggested_after_the_planned_analyses(tmp_path):
    noisy = [row('a', [30, 30, 31]), row('b', [35, 31, 32], 'a')]
    study = record(noisy, interim_analyses=2)
    assert not [*next_steps(study)]
    assert 'in a new study with new seeds' in page_of(study, tmp_path)


def test_seeds_of_a_tuned_study_cost_their_trials():
    noisy = [row('a', [30, 30, 31]), row('b', [35, 31, 32], 'a')]
    plain, tuned = (next(next_steps(record(noisy, tuned=tuned))) for tuned in ({}, dict(budget=4)))
    plain_runs, tuned_runs = (int(step.cost.split()[0]) for step in (plain, tuned))
    assert tuned_runs == 5 * plain_runs
    assert tuned.command == plain.command


def test_command_states_many_seeds_briefly():
    close = [row('a', [30, 30, 31]), row('b', [30, 31, 30.6], 'a')]
    step = next(next_steps(record(close)))
    assert re.search(r' --seeds \$\(seq 0 \d+\)$', step.command)


@pytest.mark.parametrize(
    'printed, agreement',
    [
        ((72.0, 70.0), 'same sign'),
        ((70.0, 72.0), 'opposite sign'),
        ((72.0, 72.0), 'no difference in the paper'),
        ((0.541, 0.5414), 'opposite sign'),
    ],
)
def test_published_effect_has_a_sign(printed, agreement):
    rows = steps(30, 40)
    for one, number in zip(reversed(rows), printed):
        one['published'] = {'linear': number}
    assert findings(record(rows)).all[0].agreement == agreement


def test_published_score_of_another_task_is_marked(tmp_path):
    rows = steps(30, 40)
    for one in rows:
        one['published'] = {'linear': 70.0}
    assert 'a different score' in page_of(record(rows), tmp_path)


def test_costlier_row_states_the_multiple():
    rows = steps(30, 40)
    rows[1]['flops'] = 2e9
    study = record(rows)
    assert 'compute × 2' in findings(study).all[0].notes
    assert '2 times the compute' in text_of(answer(study))


def test_runs_of_different_code_are_a_problem():
    study = record(steps(30, 40))
    values = {'row 0': 'b34afd9', 'row 1': '17fb9d2'}
    study['fairness']['after'] = [dict(check='source of mmairl', equal=False, values=values)]
    assert 'The runs differ in source of mmairl' in text_of(problems(study))


def test_blanket_declaration_is_summarized(tmp_path):
    study = record(steps(30, 40))
    keys = [f'model.key_{number}' for number in range(40)]
    study['fairness']['before'] = [entry('row 1', 'row 0', found=keys, declares=['model'])]
    text = page_of(study, tmp_path)
    assert '40 keys differ' in text and 'model.key_30' not in text


def test_design_shows_the_effects_of_factors(tmp_path):
    names = ['off, off', 'off, on', 'on, off', 'on, on']
    levels = [[0, 0], [0, 1], [1, 0], [1, 1]]
    rows = [
        row(name, [20 + 9 * a + noise for noise in NOISE3]) for name, (a, b) in zip(names, levels)
    ]
    design = dict(factors=['loss', 'views'], rows=dict(zip(names, levels)))
    study = record(rows, design=design)
    assert 'main effect' in page_of(study, tmp_path)
    assert '“loss”' in text_of(answer(study))


NOISE3 = (-0.4, 0.1, 0.3)


def test_page_is_small_and_escapes_names(tmp_path):
    rows = [row('<script>', [30, 31, 32])]
    for number in range(34):
        rows.append(row(f'row {number}', [30, 31, 33], rows[-1]['name']))
    text = page_of(record(rows), tmp_path)
    assert '<script>' not in text and '&lt;script&gt;' in text
    assert len(text) < 150_000


def test_charts_and_tables_are_written(tmp_path):
    rows = [row(f'x {x}', [30 + x, 31 + x, 30.5 + x], 'x 0' if x else None, x=x) for x in range(3)]
    study = record(rows, x='epochs')
    write_results(study, tmp_path)
    names = {path.name for path in (tmp_path / 'figures').iterdir()}
    assert names == {'k_NN.pdf', 'k_NN.svg', 'k_NN.png'}
    assert '| x 0 |' in (tmp_path / 'table.md').read_text()
    assert '\\toprule' in (tmp_path / 'table.tex').read_text()


def test_empty_study_has_a_page_and_no_figures(tmp_path):
    study = record([row('a', []), row('b', [], 'a')], metrics=[])
    assert 'No score is measured yet' in page_of(study, tmp_path)
    assert not (tmp_path / 'figures').exists()
