"""Test the answer, the problems and the next step on the page of a study, with planted results."""

import math

import pytest
from study.pages import planted
from study.pages.planted import (
    all_inconclusive,
    collapsed,
    confounded,
    costly,
    crossed,
    external,
    one_decided,
    one_seed,
    sequential,
    steps,
    study,
    two_factors,
    unfinished,
)

from mmairl.study.pages.answer import answer, command, next_steps, problems
from mmairl.study.pages.findings import all_findings

LARGEST = 'The largest significant effect is that of'
OPEN = 'No step has a significant effect. The largest effect, that of'
HEADLINES = {
    'one_decided': f'{LARGEST} “+ symmetric loss”: k-NN is higher, +8.2 points',
    'all_inconclusive': f'{OPEN} “+ symmetric loss”, is inconclusive: k-NN changes by +4.5 points',
    'all_equivalent': 'No step makes a difference: both are equivalent within ±1 points.',
    'collapsed': f'{LARGEST} “+ crop”: k-NN is higher, +2.0 points',
    'unfinished': f'{LARGEST} “+ predictor”: k-NN is higher, +6.0 points',
    'one_seed': f'{OPEN} “+ predictor”, is not tested (one seed): k-NN changes by +9.5 points',
    'confounded': f'{LARGEST} “+ symmetric loss”: k-NN is higher, +3.0 points',
    'sequential': f'{LARGEST} “+ symmetric loss”: k-NN is higher, +8.2 points',
    'two_factors': f'{LARGEST} “symmetric loss”: k-NN is higher, +8.0 points',
    'tuned': 'With “LARS” instead of “SGD”, k-NN is higher, +9.0 points',
    'drawn_as_lines': 'k-NN against epochs: “MoCo v2+” changes from 73.6 at epochs = 100 to 75.9 at epochs = 1000',
    'external': 'With “theirs” instead of “ours”, k-NN is higher, +3.0 points',
    'costly': f'{LARGEST} “+ symmetric loss”: k-NN is higher, +8.2 points',
}


def plain(lines) -> str:
    return ' '.join(line.striptags().replace('\xa0', ' ') for line in lines)


@pytest.mark.parametrize('name', HEADLINES)
def test_headline_states_the_answer(name):
    record = getattr(planted, name)()
    assert plain(answer(record)[:1]).startswith(HEADLINES[name])


def test_headline_has_interval_total_and_paper():
    text = plain(answer(costly()))
    assert '(95 % interval +7.0 to +9.4). The paper reports +0.4 (VOC07 AP50).' in text
    assert 'takes 2 times the compute of the row with which it is compared. All steps together: +9.2.' in text


def test_total_is_the_difference_of_shown_means():
    figure = all_findings(one_decided())[0].figure()
    first, last = (float(text.split(': ')[1]) for text in (figure.start, figure.end))
    assert figure.total.size == f'{last - first:+.1f}'


def test_confounded_effect_is_not_in_the_headline():
    record = confounded()
    assert '“+ predictor” is confounded. It also changes optim_wrapper.optimizer.lr' in plain(problems(record))
    assert '2 rows build on it' in plain(problems(record))
    assert '“+ predictor” has a larger effect (+12.0), but it is confounded.' in plain(answer(record))
    first = next_steps(record)[0]
    assert 'optim_wrapper.optimizer.lr' in plain([first.title])
    assert first.cost.startswith('15 runs')


def test_collapsed_runs_name_their_comparisons():
    record = collapsed()
    expected = (
        '2 of 5 runs of “BYOL loss” collapsed, so the effects of “BYOL loss” and “+ large batch” on the mean score are '
        'not tested.'
    )
    assert plain(problems(record)) == expected
    assert '2 are not tested (collapsed runs)' in plain(answer(record))
    assert next_steps(record)[0].command == 'mmairl report health runs/1/seed_0'


def test_collapsed_comparisons_have_no_effect_size():
    record = collapsed()
    rows = study(record['rows'][:2], ('k-NN',), seeds=record['seeds'])
    assert plain(answer(rows)) == 'No comparison has a verdict: 1 is not tested (collapsed runs).'


def test_study_of_one_seed_suggests_three_seeds():
    record = one_seed()
    assert 'All comparisons rest on one seed' in plain(problems(record))
    step = next_steps(record)[0]
    assert step.command.endswith('--seeds 0 1 2')
    assert step.cost == '6 runs, 12 min'


def test_more_seeds_include_the_seed_of_the_study():
    record = one_seed()
    record['seeds'] = [7]
    for row in record['rows']:
        row['runs'] = [dict(run, seed=7) for run in row['runs']]
    assert next_steps(record)[0].command.endswith('--seeds 7 8 9')


def test_unfinished_runs_state_how_to_refresh():
    text = plain(problems(unfinished()))
    assert '12 of 15 runs are finished (1 missing, 1 running, 1 failed).' in text
    assert 'mmairl study ladder.yaml --scale demo --collect' in text
    assert '“+ symmetric loss”, seed 4: failed (the loss became NaN at step 310).' in text
    assert plain([next_steps(unfinished())[0].title]) == 'Run the remaining 2 runs'


def test_next_step_is_the_cheapest_open_comparison():
    step = next_steps(all_inconclusive())[0]
    assert plain([step.title]) == 'Run 13 more seeds to decide “+ symmetric loss”'
    assert step.cost == '39 runs, 78 min'
    assert step.command == 'mmairl study ladder.yaml --scale demo --seeds $(seq 0 17)'


def test_sequential_study_is_continued_by_its_plan():
    assert next_steps(sequential())[0].command.endswith('--until-decided')
    assert 'covers all planned analyses. So far, 2 analyses are finished.' in plain(answer(sequential()))


def test_page_states_that_no_comparison_is_open():
    assert plain([next_steps(two_factors())[0].title]) == 'Nothing left to do at this scale'


def test_headline_counts_differences_in_collapses():
    text = plain(answer(crossed()))
    assert 'Of 3 effects, 1 is a difference in how many runs collapse.' in text


def test_shares_of_factors_are_in_the_answer():
    assert 'averaged over all orders of adding the factors: “symmetric loss” +8.0' in plain(answer(two_factors()))


def test_external_rows_are_not_one_factor():
    assert 'external checkpoints do not state optimizer and batch size' in plain(problems(external()))


def test_next_step_uses_the_recorded_command():
    record = one_decided() | dict(command=['mmairl', 'study', 'my study.yaml', '--out', 'x'])
    assert command(record, '--collect') == "mmairl study 'my study.yaml' --out x --collect"
    assert command(record | dict(name='')) == ''


def test_unequal_checks_are_a_problem():
    record = one_decided()
    record['fairness']['after'][1].update(equal=False)
    assert 'The rows differ in code.' in plain(problems(record))


@pytest.mark.parametrize('effect', [0.0, math.pi])
def test_study_of_two_rows_has_no_total(effect):
    text = plain(answer(steps(('base', 0, 0), ('other', effect, 0.1))))
    assert 'together' not in text
