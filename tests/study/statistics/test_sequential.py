"""Sequential analysis: the plan is fixed in advance, and the error rate holds over all analyses together."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats
from study.small_runs import START
from study.test_spec import STUDIES, written
from test_compare_rows import record

from mmairl.errors import UserError
from mmairl.study import run_study
from mmairl.study.spec import read_study
from mmairl.study.statistics.compare_rows import paired, unpaired, verdicts
from mmairl.study.statistics.sequential import Plan, begin, compare_sequentially, format_analyses, read

COUNT, STEPS = 4000, 6


def simulated(plan: Plan, test, steps: np.ndarray, margin: float, seed_effect: float = 0.0) -> np.ndarray:
    """Return verdicts (study, step) of a sequential plan on simulated studies.

    Each row is `steps` better than the previous one.
    """
    draw = np.random.default_rng(plan.most)
    scores = draw.normal(size=(COUNT, STEPS + 1, plan.most)) + np.cumsum([0, *steps])[:, None]
    scores += seed_effect * draw.normal(size=(COUNT, 1, plan.most))
    words = np.full((COUNT, STEPS), 'undecided', dtype='<U10')
    for count, level in plan.analyses:
        seen = scores[:, :, :count]
        now = verdicts(*test(seen[:, 1:], seen[:, :-1]), margin, level, words)
        words = np.where(words == 'undecided', now, words)
    return words


@pytest.mark.parametrize('test, seed_effect', [(paired, 3.0), (unpaired, 0.0)])
@pytest.mark.parametrize('plan', [Plan(2, 10), Plan(3, 20)])
def test_all_analyses_together_keep_five_percent(plan, test, seed_effect):
    error = 2 * math.sqrt(0.05 * 0.95 / COUNT)
    alarms = simulated(plan, test, np.zeros(STEPS), 1.0, seed_effect) == 'differs'
    assert 0.005 < alarms.any(-1).mean() <= 0.05 + error
    wrong = simulated(plan, test, np.full(STEPS, 3.0), 3.0, seed_effect) == 'equivalent'
    assert wrong.any(-1).mean() <= 0.05 + error


def test_levels_of_analyses_add_up_to_five_percent():
    plan = Plan(3, 12)
    assert [count for count, _ in plan.analyses] == [3, 5, 8, 12] and sum(
        level for _, level in plan.analyses
    ) == pytest.approx(0.05)
    assert [count for count, _ in Plan(2, 7).analyses] == [2, 3, 5, 7]
    assert all(before[1] < after[1] for before, after in pairwise(plan.analyses))
    words = simulated(plan, paired, np.array([0, 0, 5.0, 0, 0, 0]), 1.0, seed_effect=3.0)
    assert (words[:, 2] == 'differs').mean() > 0.99


SCORES = np.random.default_rng(0).normal(size=(3, 12)) * [[0.1], [0.1], [3.0]] + [[10], [30], [31]]


def ladder(seeds: int) -> dict:
    rows = [list(row[:seeds]) for row in SCORES]
    return dict(record(*rows, starts=(START,) * 3), seeds=list(range(seeds)))


def test_decisions_depend_on_the_record_alone():
    """A decision depends neither on later seeds nor on the time of the analysis."""
    plan = Plan(3, 12)
    one, two = (compare_sequentially(ladder(seeds), 'knn', 1.0, plan)[0] for seeds in (5, 12))
    assert one == two and one.verdict == 'higher' and one.seeds in (3, 5)
    between, at = (compare_sequentially(ladder(seeds), 'knn', 1.0, plan) for seeds in (7, 5))
    assert between == at  # Seeds between two analyses change nothing
    lines = format_analyses(at, plan, 7)
    assert len(lines) == 2
    assert lines[one.seeds == 5] == f'analysis at {one.seeds} seeds: row 1 {one.verdict}'
    level = dict(plan.analyses)[one.seeds]
    half = (one.high - one.low) / 2 / one.error
    assert half == pytest.approx(stats.t.ppf(1 - level / 2, one.freedom))


def test_missing_run_leaves_a_comparison_undecided():
    lacking = ladder(5)
    del lacking['rows'][1]['runs'][4]
    plan = Plan(5, 12)
    assert compare_sequentially(ladder(5), 'knn', 1.0, plan)[0].verdict == 'higher'
    assert compare_sequentially(lacking, 'knn', 1.0, plan)[0].verdict == 'inconclusive'


def test_stored_plan_cannot_be_replaced(tmp_path):
    study = read_study(written(tmp_path))
    assert begin(tmp_path, study, [0, 1], 21) == begin(tmp_path, study, [0, 1], None) == Plan(2, 10)
    (tmp_path / 'odd').mkdir()
    (tmp_path / 'odd' / 'sequential.json').write_text('{"first": 0, "most": 10}')
    with pytest.raises(UserError, match=r'first: expected `int` >= 2'):
        read(tmp_path / 'odd')
    crossed = read_study(STUDIES / 'attribution.yaml')
    for other_study, out, seeds, budget, code in (
        (study, '.', [0, 1], 40, 'other-plan'),
        (study, '.', [0, 1, 2], 20, 'other-plan'),
        (study, 'other', [0], None, 'budget-too-small'),
        (study, 'other', [0, 1], 3, 'budget-too-small'),
        (crossed, 'other', [0, 1], None, 'sequential-design'),
    ):
        with pytest.raises(UserError) as error:
            begin(tmp_path / out, other_study, seeds, budget)
        assert error.value.code == code and 'None' not in str(error.value)


@pytest.mark.parametrize('on, closed', [('one', 'two'), ('two', 'one')], ids=['star', 'ladder'])
def test_tool_adds_seeds_to_open_rows(tmp_path, monkeypatch, capsys, run_tool, on, closed):
    """The scores are planted so that the second row differs at the first analysis, and the third row never does."""
    third = dict(name='three', config='mocov2plus_r50_200e.py', against=on, factor='the loss')
    third['declares'] = ['model', 'optim_wrapper']
    third['options'] = {'model.symmetric': False}
    study, started = written(tmp_path, {}, {}, third, seeds=[4, 0, 2]), []

    def execute(runs, *_):
        for run in (run for run in runs if not run.done):
            started.append((run.row.name, run.seed))
            below = 21 * (run.row.name == 'three' and on == 'one')
            score = SCORES[['one', 'two', 'three'].index(run.row.name), run.seed] - below
            result = dict(labels={'knn': 'k-NN'}, scores={'knn': score}, start=START, checkpoint='gone.pth')
            (run.folder / 'result.json').write_text(json.dumps(result))

    monkeypatch.setattr(run_study, 'execute', execute)
    # No scores are planted for untrained networks, so the study must not add rows of untrained networks.
    monkeypatch.setattr('mmairl.study.fairness.is_measured', lambda *_: False)
    parts = [study, '--scale', 'demo', '--tasks', 'knn', '--out', tmp_path / 'out', '--until-decided', '--most', 21]
    run_tool('tools/study.py', *parts)
    assert [seed for name, seed in started if name == closed] == [4, 0, 2]
    assert [seed for name, seed in started if name == 'three'] == [4, 0, 2, 5, 6, 7, 8]
    page, out = (tmp_path / 'out' / 'page.html').read_text(), capsys.readouterr().out
    for line in ('analysis at 3 seeds: two higher', 'analysis at 7 seeds: no decision'):
        assert line in page and line in out
    assert 'not run yet' not in page
    first = json.loads((tmp_path / 'out' / 'study.json').read_text())
    # These are the numbers of finished runs at each analysis.
    assert (first['primary'], first['looks']) == ('knn', [9, 13, 17])
    started.clear()
    run_tool('tools/study.py', *parts[:-2])
    assert not started
    assert json.loads((tmp_path / 'out' / 'study.json').read_text()) == first
