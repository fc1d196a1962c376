"""Test hyperparameter searches: all rows try the same points, the budget limits trials, test images are never used for a
choice, and invalid input is an error.
"""

import math
import sys
from pathlib import Path

import pytest
import torch
import yaml
from harness.errors import raises_code
from msgspec.structs import replace
from study.small_runs import toy_scale
from study.test_spec import ROWS, resolved, written
from torchvision.models import resnet18

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import Diverged, UserError
from mmairl.io import read_json, write_json, write_text
from mmairl.study import local_pool, measure, reuse, trials, worker
from mmairl.study.collect import collect
from mmairl.study.cost import flops
from mmairl.study.fairness import at_scale, compare_configs, require_fair
from mmairl.study.pages.search_section import search_runs
from mmairl.study.planner import plan_runs, prepare_runs
from mmairl.study.runs import Run, settle_failed_trials
from mmairl.study.scale import Scale, read_scale, resolve
from mmairl.study.schema import Asked, Choice, Chosen, RunResult, Trained
from mmairl.study.search import FIRST, own_value, sobol_points, trial_options, trials_for
from mmairl.study.slurm import plain_commands
from mmairl.study.spec import read_study
from mmairl.study.statistics.sequential import begin
from mmairl.study.trials import runs_of_each, search_record, take_best, trial_counts

RATE = dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])
TEACHER = dict(key='default_hooks.momentum.base', times=[0.5, 2], complement=True)
SEARCH = dict(budget=4, searches=2, dimensions=dict(rate=RATE, teacher=TEACHER))
TEMPERATURE = dict(key='model.head.temperature', values=[0.1, 0.2, 0.4])
TUNE = dict(trials=3, dimensions=dict(rate=RATE))


def test_rows_share_points_relative_to_their_values(tmp_path):
    study = read_study(written(tmp_path, search=SEARCH))
    configs = resolved(study, 'demo')
    rates = [own_value(configs[name], RATE['key']) for name in ('one', 'two')]
    distance = 1 - own_value(configs['one'], TEACHER['key'])
    assert study.seeds == (0, 1)
    for number in study.seeds:
        one, two = (trial_options(study.search, row, configs[row.name], number, 5) for row in study.rows)
        assert one[0] == two[0] == {}, 'the first trial changes the published settings'
        for point, other_point in zip(one[1:], two[1:]):
            factor = point[RATE['key']] / rates[0]
            assert 1 / 8 <= factor <= 8
            assert factor == pytest.approx(other_point[RATE['key']] / rates[1])
            assert 0.5 <= (1 - point[TEACHER['key']]) / distance <= 2
            assert point[TEACHER['key']] == other_point[TEACHER['key']]
    assert sobol_points(2, 0, 5) != sobol_points(2, 1, 5)
    assert sobol_points(2, 0, 5)[:4] == sobol_points(2, 0, 9)[:4]


def test_row_dimension_keeps_the_shared_points(tmp_path):
    plain = read_study(written(tmp_path, search=SEARCH))
    dimensions = dict(search=dict(t=TEMPERATURE))
    declared = dict(dimensions, declares=['optim_wrapper', 'model.head'])
    study = read_study(written(tmp_path, {}, declared, search=SEARCH))
    configs = resolved(study, 'demo')
    without, with_it = (trial_options(one.search, one.rows[1], configs['two'], 0, 5) for one in (plain, study))
    for few, more in zip(without[1:], with_it[1:]):
        assert more.pop(TEMPERATURE['key']) in TEMPERATURE['values'] and more == few
    require_fair(compare_configs(study, configs))
    undeclared = read_study(written(tmp_path, {}, dimensions, search=SEARCH))
    with raises_code('undeclared-search'):
        compare_configs(undeclared, configs)


def test_budget_is_counted_in_flops(tmp_path):
    declared = dict(declares=['model', 'default_hooks', 'optim_wrapper'])
    costs = flops(resolved(read_study(written(tmp_path, dict(config='mocov2_r50_200e.py'), declared)), 'demo'))
    assert 1.9 < costs['two'] / costs['one'] < 2.2, (
        'a loss in both directions does not cost about twice as much as in one'
    )
    assert trials_for(5, costs) == {'one': 5, 'two': 2}
    assert trials_for(1, costs) == {'one': 1, 'two': 1}


def searching(**dimension) -> dict:
    return dict(search={**SEARCH, 'dimensions': dict(rate=RATE, new=dimension)})


ONE_ROW = [dict(name='a', config='byol_r50_200e.py')]
PART = dict(key='optim_wrapper.optimizer', values=[dict(type='SGD', lr=1), dict(type='SGD', lr=2)])
BATCH = dict(key='total_batch_size', values=[1, 2])
FIXED = (
    'train_cfg.max_epochs', 'train_cfg', 'total_batch_size', 'evaluation.test.split', 'recipes.linear',
    'randomness.seed', 'train_dataloader.batch_size',
)  # fmt: skip


@pytest.mark.parametrize(
    ('code', 'changes'),
    [
        ('no-key-to-search', searching(key='model.head.tmperature', times=[0.5, 2])),
        ('empty-range', searching(key=TEMPERATURE['key'], times=[8, '1/8'])),
        ('range-not-numbers', searching(key=TEMPERATURE['key'], times=['low', 'high'])),
        ('range-does-not-fit', searching(key='model.head.type', times=[0.5, 2])),
        ('range-does-not-fit', searching(**{**TEACHER, 'times': [0.5, 200]})),
        ('times-or-values', searching(key=TEMPERATURE['key'])),
        ('same-dimension', searching(**PART)),
        *(('not-searchable', searching(key=key, values=[1, 2])) for key in FIXED),
        *(
            ('unknown-criterion', dict(search={**SEARCH, 'criterion': task}))
            for task in ('linear@imagenet', 'uniformity')
        ),
        *(('wrong-content', dict(search={**SEARCH, 'budget': budget})) for budget in (0.5, math.inf, math.nan, 1e9)),
        ('search-one-row', dict(search=SEARCH, rows=ONE_ROW)),
        ('row-search-without-search', dict(rows=[dict(ONE_ROW[0], search=dict(t=TEMPERATURE))])),
        ('not-searchable', dict(search=SEARCH, rows=[*ONE_ROW, dict(ONE_ROW[0], name='b', search=dict(new=BATCH))])),
        ('seeds-and-search', dict(seeds=[0, 1, 2], search=SEARCH)),
    ],
)
def test_invalid_search_is_an_error(tmp_path, code, changes):
    with raises_code(code):
        study = read_study(written(tmp_path, **changes))
        compare_configs(study, resolved(study, 'demo'))


def test_key_with_a_longer_name_is_not_a_part(tmp_path):
    near = searching(key='optim_wrapper.optimizer.lr_decay', values=[1, 2])
    # The study may state seeds that equal those of the searches.
    read_study(written(tmp_path, seeds=[0, 1], **near))


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """Plan a study without a search (`earlier`), and then with a search (`runs`). No run is trained."""
    folder = tmp_path_factory.mktemp('searched')
    (folder / 'toy.yaml').write_text(yaml.safe_dump(toy_scale(64, epochs=0.005, tasks=['knn'])))
    register()
    scale = read_scale(str(folder / 'toy.yaml'))
    before = read_study(written(folder))
    configs = {row.name: resolve(row, scale) for row in before.rows}
    earlier = prepare_runs(before, configs, (0, 1), ('knn',), folder / 'out')
    study = read_study(written(folder, search={**SEARCH, 'budget': 2}))
    runs = prepare_runs(study, configs, study.seeds, ('knn',), folder / 'out')
    return study, configs, scale, runs, earlier, folder / 'out'


@pytest.fixture
def trained(monkeypatch) -> list[tuple[Path, float, int]]:
    """Replace training and measuring. Return a list of the trained runs: folder, learning rate and seed.

    Trials score 50, 60, 55 and 90, other runs 70.
    """
    calls = []
    scores = {'0': 50.0, '1': 60.0, '2': 55.0, '3': 90.0}

    def train(cfg, request, folder, launcher):
        calls.append((folder, cfg.optim_wrapper.optimizer.lr, request.seed))
        torch.save(dict(state_dict={}), folder / 'epoch_1.pth')
        write_text(folder / 'last_checkpoint', 'elsewhere/epoch_1.pth')
        origin = reuse.origin(request, folder)
        write_json(folder / 'trained.json', Trained(seconds=9.0, steps=4, made=origin))

    def result(cfg, folder, request, measured):
        return RunResult(scores=measured, labels={'knn': 'k'}, made=reuse.origin(request, folder))

    monkeypatch.setattr(worker, 'train_row', train)
    monkeypatch.setattr(worker, 'measure', lambda task, folder, *_: scores.get(folder.name, 70.0))
    monkeypatch.setattr(worker, 'result_of', result)
    return calls


def test_trials_keep_published_runs_and_see_no_tests(searched):
    _, configs, _, runs, earlier, _ = searched
    published = [run for run in runs if run.part == 'published']
    assert [run.folder for run in published] == [run.folder for run in earlier]
    trials = [run for run in runs if run.part == 'trial']
    assert len(trials) == 8 and {run.seed for run in trials} == {FIRST, FIRST + 1}
    for run in trials:
        data = load_config(str(run.folder / 'asked/config.yaml')).evaluation
        assert data.train.dataset == data.test.dataset == configs['one'].evaluation.train
        assert (data.train.held, data.test.held) == (False, True)
    winners = [run for run in runs if run.part == 'compared']
    assert [run.seed for run in winners] == [0, 0, 1, 1] and not winners[0].ready
    assert winners[0].needs == tuple(run.folder for run in trials[:4] if run.row.name == 'one')
    lines = [line.split('\t') for line in plain_commands(runs, 1)]
    assert len({name for name, *_ in lines}) == len(runs), 'two jobs have the same name'
    after = {name: needs for name, needs, _ in lines if needs != '-'}
    assert after['one_seed_0'] == 'one_seed_1000_trial_0,one_seed_1000_trial_1'
    assert len(after) == len(winners)


def test_best_trial_is_retrained_from_a_fresh_seed(searched, trained, monkeypatch):
    study, configs, scale, runs, _, out = searched
    train = worker.train_row

    def diverging(cfg, request, folder, launcher):
        train(cfg, request, folder, launcher)
        if request.trial is not None and folder.name == '0' and 'two' in str(folder):
            raise Diverged('3 steps had a loss that is not finite')

    monkeypatch.setattr(worker, 'train_row', diverging)
    for run in runs:
        assert run.ready
        worker.complete_run(run.folder)
    assert len(trained) == len(runs)
    assert all(run.done for run in runs if run.part == 'trial')
    names = {run.folder: run.name for run in runs}
    rates = {names[folder]: rate for folder, rate, _ in trained}
    seeds = {names[folder]: seed for folder, _, seed in trained}
    assert rates['one, search 0, trial 1'] == rates['one, seed 0'] != rates['one, seed 0 as published']
    assert (seeds['one, seed 1'], seeds['one, search 1, trial 1']) == (1, FIRST + 1)
    record = collect(study, configs, scale, runs, out)
    assert [row['runs'][0]['scores'] for row in record['rows']] == [{'knn': 70.0}] * 2
    assert record['as_published']['rows'][0]['runs'][0]['folder'] == 'runs/one/seed_0'
    tried = record['search']['rows']['two']
    outcomes = [(trial['score'], bool(trial['diverged']), trial['chosen']) for trial in tried]
    assert outcomes == [(None, True, False), (60.0, False, True)] * 2
    assert [point['estimate'] for point in record['search']['curves']['two']] == [0.0, 60.0]
    chosen = read_json(out / 'tuned/one/seed_0/chosen.json', Choice)
    assert (chosen.score, chosen.options[RATE['key']]) == (60.0, pytest.approx(rates['one, seed 0']))


def planted_trials(values: dict[str, list], scores: list[float]) -> list[dict]:
    """Return records of the trials of a finished search of one row. The first trial has the published settings."""
    base = dict(state='done', seed=FIRST)
    trials = [dict(base, folder='0/0', trial={}, scores=dict(knn=scores[0]))]
    for at, score in enumerate(scores[1:]):
        options = {key: column[at] for key, column in values.items()}
        trials.append(dict(base, folder=f'0/{at + 1}', trial=options, scores=dict(knn=score)))
    return trials


@pytest.mark.parametrize(('factor', 'end'), [(0.5, 'high'), (2, 'low')])
def test_edges_name_the_end_of_the_range(searched, factor, end):
    study, configs, *_ = searched
    momentum = own_value(configs['one'], TEACHER['key'])
    rate = own_value(configs['one'], RATE['key'])
    values = {TEACHER['key']: [1 - (1 - momentum) * factor], RATE['key']: [rate]}
    trials = planted_trials(values, [40.0, 60.0])
    record = search_record(study, configs, (0,), dict(one=trials, two=[]))
    assert [(edge['dimension'], edge['end']) for edge in record['edges']] == [('teacher', end)]


def test_chosen_trials_are_marked_once_a_search_ended(searched):
    study, configs, *_ = searched
    trials = planted_trials({RATE['key']: [own_value(configs['one'], RATE['key'])]}, [60.0, 60.0])
    record = search_record(study, configs, (0,), dict(one=trials, two=trials[:1]))
    assert [trial['chosen'] for trial in record['rows']['one']] == [True, False], (
        'of two trials with equal scores, not only the first is marked'
    )
    assert [trial['chosen'] for trial in record['rows']['two']] == [False], (
        'a search that has not ended has a chosen trial'
    )


def test_winner_as_published_is_not_trained_twice(searched, trained, tmp_path, monkeypatch):
    study, configs, *_ = searched
    runs = {run.slug: run for run in prepare_runs(study, configs, (0,), ('knn',), tmp_path)}
    scores = iter((60.0, 50.0, 70.0, 70.0, 70.0))
    monkeypatch.setattr(worker, 'measure', lambda *_: next(scores))
    published = runs['one_seed_0_published'].folder
    winner = runs['one_seed_0'].folder
    for name in ('one_seed_1000_trial_0', 'one_seed_1000_trial_1', 'one_seed_0_published'):
        worker.complete_run(runs[name].folder)
    write_text(published / 'job.sh', 'job 1')
    write_text(winner / 'job.sh', 'job 2')
    worker.complete_run(winner)
    assert (winner / 'job.sh').read_text() == 'job 2', 'the job script of the published run was copied'
    assert winner not in {folder for folder, *_ in trained}
    assert reuse.last_checkpoint(winner).read_bytes()
    record = read_json(winner / 'trained.json', Trained)
    origin = reuse.origin(runs['one_seed_0'].asked, winner)
    assert (record.seconds, record.steps, record.made) == (0.0, 4, origin)
    assert read_json(published / 'trained.json', Trained).made == {}
    (winner / 'trained.json').unlink()
    (published / 'result.json').unlink()
    worker.complete_run(winner)
    assert winner in {folder for folder, *_ in trained}, (
        'the winner was not trained, although the published run is not finished'
    )


def test_untrained_row_is_in_both_tracks(searched, tmp_path):
    _, _, scale, *_ = searched
    rows = [*ROWS, dict(ROWS[0], name='pixels', untrained='pixels')]
    study = read_study(written(tmp_path, rows=rows, search={**SEARCH, 'budget': 2}))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    runs = prepare_runs(study, configs, study.seeds, ('knn',), tmp_path)
    record = collect(study, configs, scale, runs, tmp_path)
    untrained = record['rows'][2]['runs']
    assert untrained and untrained == record['as_published']['rows'][2]['runs']
    folders = [run['folder'] for run in search_runs(record)]
    counts = sum(record['search']['counts'].values())
    assert len(folders) == len({*folders}) == 2 * (2 + counts)


def plant_trials(folder: Path, **scores: float) -> Chosen:
    for trial, score in scores.items():
        result = RunResult(scores={'knn': score}, labels={'knn': 'k'})
        write_json(folder / trial / 'result.json', result)
        write_json(folder / trial / 'asked.json', Asked(0, ('knn',), trial={'x': trial}))
    return Chosen(tuple(str(folder / trial) for trial in scores), 'knn')


def test_winner_with_another_choice_is_set_aside(tmp_path):
    chosen = plant_trials(tmp_path, a=1.0, b=2.0)
    run = tmp_path / 'run'
    assert take_best(run, chosen) == {'x': 'b'} == take_best(run, chosen)
    assert not list(tmp_path.glob('run_set_aside*'))
    request = {'asked', 'asked.json', 'log.txt', '.lock_0'}
    files = {'result.json', 'trained.json', 'epoch_1.pth'}
    (run / 'asked').mkdir()
    for name in {'asked/config.yaml', *request, *files} - {'asked'}:
        (run / name).write_text(name)
    for number, winner in enumerate('cd', 1):  # Each iteration adds a better trial, as a larger budget could
        chosen = plant_trials(tmp_path, a=1.0, b=2.0, **{winner: 2.0 + number})
        assert take_best(run, chosen) == {'x': winner}
        assert read_json(run / 'chosen.json', Choice).options == {'x': winner}
    assert {path.name for path in run.iterdir()} == request | {'chosen.json'}
    first, second = (tmp_path / f'run_set_aside_{number}' for number in (1, 2))
    assert {path.name for path in first.iterdir()} == files | {'chosen.json'}
    assert read_json(first / 'chosen.json', Choice).options == {'x': 'b'}
    assert [path.name for path in second.iterdir()] == ['chosen.json']


def test_search_without_finished_trial_has_no_choice(tmp_path):
    chosen = plant_trials(tmp_path, a=1.0, b=2.0)
    for trial in 'ab':
        diverged = RunResult(labels={'knn': 'k'}, diverged='NaN')
        write_json(tmp_path / trial / 'result.json', diverged)
    with raises_code('all-trials-diverged'):
        take_best(tmp_path / 'other', chosen)


def test_other_ranks_wait_for_the_first_choice(tmp_path, monkeypatch):
    chosen = plant_trials(tmp_path, a=1.0, b=2.0)
    run = tmp_path / 'run'
    monkeypatch.setattr(trials.time, 'sleep', lambda seconds: take_best(run, chosen))
    assert trials.wait_for_choice(run, chosen) == {'x': 'b'}
    plant_trials(tmp_path, a=3.0)
    monkeypatch.setattr(trials.time, 'sleep', lambda seconds: None)
    with raises_code('no-choice'):
        trials.wait_for_choice(run, chosen)


def test_larger_budget_trains_a_changed_winner_again(searched, trained, tmp_path):
    study, configs, *_ = searched
    for budget in (2, 4):
        larger = replace(study, search=replace(study.search, budget=budget))
        runs = prepare_runs(larger, configs, (0,), ('knn',), tmp_path)
        for run in runs:
            if not run.done:
                worker.complete_run(run.folder)
    winner = runs[-2]
    assert winner.name == 'one, seed 0' and winner.done
    assert [folder for folder, *_ in trained].count(winner.folder) == 2
    assert read_json(winner.folder / 'chosen.json', Choice).trial.endswith('/3')
    assert (winner.folder.parent / 'seed_0_set_aside_1' / 'result.json').is_file()


OUT_OF_MEMORY = 'RuntimeError: CUDA out of memory. Tried to allocate {} GiB'


def fail_trial(run: Run, words: str) -> str:
    """End a trial as if its worker had failed with the message `words`."""
    work = object.__new__(local_pool.ActiveRun)
    work.run = run
    work.log = run.folder / 'log.txt'
    work.log_start = 0
    work.log.write_text(f'Epoch(train) [1][3/9]\n{words}\n')
    return work.describe_end(1)


def test_trial_that_fails_twice_equally_is_the_worst(searched, tmp_path):
    study, configs, scale, *_ = searched
    planned = study, configs, (0,), ('knn',), tmp_path
    runs = prepare_runs(*planned)
    first, second = [run for run in runs if run.part == 'trial' and run.row.name == 'one']
    for words in (OUT_OF_MEMORY.format(2.5), 'OSError: the disk is full', OUT_OF_MEMORY.format(2)):
        fail_trial(second, words)
    result = RunResult(scores={'knn': 50.0}, labels={'knn': 'k-NN'})
    write_json(first.folder / 'result.json', result)
    assert settle_failed_trials(prepare_runs(*planned)) == [], 'a trial is settled although its last two errors differ'
    fail_trial(second, OUT_OF_MEMORY.format(2.75))
    runs = prepare_runs(*planned)
    assert second.done and OUT_OF_MEMORY.format(2.75) in second.result.diverged
    winner = runs[-2]
    assert winner.ready and take_best(winner.folder, winner.asked.chosen) == {}
    tried = collect(study, configs, scale, runs, tmp_path)['search']['rows']['one']
    assert [trial['chosen'] for trial in tried] == [True, False]
    assert [trial['diverged'][:12] for trial in tried] == ['', 'failed twice']


def test_trials_that_all_fail_are_repeated(searched, tmp_path):
    study, configs, *_ = searched
    planned = study, configs, (0,), ('knn',), tmp_path
    for run in [run for run in prepare_runs(*planned) if run.part == 'trial'] * 2:
        fail_trial(run, 'OSError: the disk is full')
    assert not any(run.result for run in prepare_runs(*planned) if run.part == 'trial')


SCRIPT = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
if 'trials/one' in str(folder) and folder.name == '1':
    sys.exit('error: it does not fit')
result = dict(scores=dict(knn=1), labels=dict(knn='k'))
folder.joinpath('result.json').write_text(json.dumps(result))
"""


def test_search_ends_when_a_trial_fails_again(searched, tmp_path, monkeypatch):
    study, configs, *_ = searched
    reported = []
    script = [sys.executable, '-c', SCRIPT]
    monkeypatch.setattr(local_pool, 'commands', lambda run, devices: [[*script, str(run.folder)]])
    for start in (1, 2):
        planned = prepare_runs(study, configs, (0,), ('knn',), tmp_path)
        local_pool.execute(planned, 4, 1, lambda run, event: reported.append((run.name, event)))
        assert (planned[-2].result is not None) == (start == 2)
    assert reported.count(('one, search 0, trial 1', 'running')) == 2


def test_trials_of_listed_values_do_not_repeat(tmp_path):
    key = TEMPERATURE['key']
    value = own_value(resolved(read_study(written(tmp_path)), 'demo')['one'], key)
    listed = dict(temperature=dict(key=key, values=[value, 0.123, 0.456, 0.456]))
    study = read_study(written(tmp_path, search={**SEARCH, 'budget': 9, 'dimensions': listed}))
    configs = resolved(study, 'demo')
    for number in range(8):
        options = trial_options(study.search, study.rows[0], configs['one'], number, 9)
        values = [trial.get(key, value) for trial in options]
        assert values[0] == value and sorted(values[1:]) == [0.123, 0.456]
    assert trial_counts(study, configs) == dict(one=3, two=3)
    planned = plan_runs(study, configs, (0,), ('knn',), tmp_path)
    assert sum(run.part == 'trial' for run in planned) == 6
    crossed = dict(SEARCH, budget=5, dimensions=dict(rate=RATE, **listed))
    study = read_study(written(tmp_path, search=crossed))
    options = trial_options(study.search, study.rows[0], configs['one'], 0, 5)
    assert len(options) == 5 and all(RATE['key'] in trial for trial in options[1:]), (
        'a listed value is not repeated at another learning rate'
    )


def test_until_decided_counts_runs_of_a_search(searched, tmp_path):
    study, configs, *_ = searched
    each = runs_of_each(study, configs)
    planned = plan_runs(study, configs, (0,), ('knn',), tmp_path)
    assert each == dict(one=4, two=4)
    assert all(sum(run.row.name == name for run in planned) == 4 for name in each)
    assert begin(tmp_path / 'a', study, (0, 1), 35, sum(each.values())).most == 4, (
        'the plan does not end with 4 seeds (32 runs)'
    )
    with pytest.raises(UserError, match='--most to at least 16'):
        begin(tmp_path / 'b', study, (0, 1), 12, sum(each.values()))
    assert runs_of_each(replace(study, search=None), configs) == dict(one=1, two=1)
    external = replace(study.rows[1], weights={0: 'a.pth', 1: 'b.pth'})
    assert runs_of_each(replace(study, search=None, rows=[study.rows[0], external]), configs) == dict(one=1)


def leaking(folder: Path, **changes) -> Scale:
    """Return a small scale in which `changes` replace parts of the evaluation data."""
    scale = toy_scale(64, epochs=0.005, tasks=['knn'])
    data = scale['replace']['evaluation']
    data |= {part: value(data) if callable(value) else value for part, value in changes.items()}
    (folder / 'toy.yaml').write_text(yaml.safe_dump(scale))
    return read_scale(str(folder / 'toy.yaml'))


def part_of_test(data: dict) -> dict:
    return dict(type='Part', dataset=data['test'], held=False)


@pytest.mark.parametrize(
    ('changes', 'code'),
    [
        (dict(val=lambda data: data['test']), 'val-is-test'),
        (dict(val=lambda data: data['train']), 'val-is-train'),
        (dict(train=lambda data: data['test']), 'train-is-test'),
        (dict(val=part_of_test), 'val-is-test'),
        (dict(held_out=0), 'bad-held-out'),
        (dict(held_out=2), 'bad-held-out'),
    ],
)
def test_search_on_test_images_is_an_error(tmp_path, changes, code):
    scale = leaking(tmp_path, **changes)
    for change, task in ((dict(search=SEARCH), 'knn'), (dict(tune=dict(finetune=TUNE)), 'finetune')):
        with raises_code(code):
            at_scale(read_study(written(tmp_path, **change)), scale, [task])
    # A study without a search chooses nothing on the validation images, so these may be test
    # images.
    at_scale(read_study(written(tmp_path)), scale, ['knn'])


def test_sweep_on_test_images_is_an_error(tmp_path):
    scale = leaking(tmp_path, val=lambda data: data['test'], sweep=True)
    study = read_study(written(tmp_path))
    for task in ('linear', 'linear#1', 'logreg'):
        with raises_code('val-is-test'):
            at_scale(study, scale, [task])
    at_scale(study, scale, ['knn', 'svm'])  # k-NN and SVM choose nothing on the validation images


def test_trial_compares_its_images_with_test_images(tmp_path, monkeypatch):
    # The validation images are some of the test images.
    scale = leaking(tmp_path, val=lambda data: dict(data['test'], count=12))
    study = read_study(written(tmp_path, search={**SEARCH, 'budget': 2}))
    study, configs, _ = at_scale(study, scale, ['knn'])
    runs = prepare_runs(study, configs, (0,), ('knn',), tmp_path)
    monkeypatch.setattr(worker, 'train_row', lambda *_: pytest.fail('the trial was trained'))
    with raises_code('val-in-test'):
        worker.complete_run(next(run for run in runs if run.part == 'trial').folder)


def test_task_is_tuned_on_equal_points_for_all_rows(tmp_path):
    changes = dict(tune=dict(finetune=TUNE))
    study = read_study(written(tmp_path, tasks=dict(demo=['knn', 'finetune']), **changes))
    configs = resolved(study, 'demo')
    runs = prepare_runs(study, configs, (0, 1), ('knn', 'finetune'), tmp_path / 'out')
    first, second, other, _ = (read_json(run.folder / 'asked.json', Asked).tuned['finetune'] for run in runs)
    assert first == second != other and first[0] == {} and len(first) == 3
    torch.save(resnet18().state_dict(), tmp_path / 'a.pth')
    external = dict(weights={0: str(tmp_path / 'a.pth')})
    study = read_study(written(tmp_path, {}, external, seeds=[0], **changes))
    theirs = plan_runs(study, resolved(study, 'demo'), (0,), ('finetune',), tmp_path)[1]
    assert theirs.asked.external and theirs.asked.tuned['finetune'] == first
    _, settings = measure.task_settings('finetune', runs[0].folder, runs[0].asked)
    assert settings.trials == first
    recipe = settings.recipe_for(load_config(str(runs[0].folder / 'asked/config.yaml')))
    assert [dict(trial) for trial in recipe.trials] == [dict(trial) for trial in first]
    base_rate = recipe.optim_wrapper.optimizer.lr
    assert all(base_rate / 8 <= trial[RATE['key']] <= base_rate * 8 for trial in first[1:])


def test_task_without_images_to_choose_is_not_tuned(tmp_path):
    study = read_study(written(tmp_path, tune=dict(knn=TUNE)))
    with raises_code('not-tunable'):
        plan_runs(study, resolved(study, 'demo'), (0,), ('knn',), tmp_path)
