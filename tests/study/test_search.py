"""Searches: points that all rows share, trials by budget, choices without test images, and invalid input."""

import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
import yaml
from msgspec.structs import replace
from study.small_runs import toy_scale
from study.test_spec import resolved, written
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
from mmairl.study.scale import read_scale, resolve
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


def test_rows_share_points_relative_to_their_values(tmp_path):
    study = read_study(written(tmp_path, search=SEARCH))
    configs = resolved(study, 'demo')
    assert study.seeds == (0, 1)
    for number in study.seeds:
        one, two = (trial_options(study.search, row, configs[row.name], number, 5) for row in study.rows)
        assert one[0] == two[0] == {}  # as published
        for here, there in zip(one[1:], two[1:]):
            factor = here[RATE['key']] / own_value(configs['one'], RATE['key'])
            assert 1 / 8 <= factor <= 8
            assert factor == pytest.approx(there[RATE['key']] / own_value(configs['two'], RATE['key']))
            own = 1 - own_value(configs['one'], TEACHER['key'])
            assert 0.5 <= (1 - here[TEACHER['key']]) / own <= 2 and here[TEACHER['key']] == there[TEACHER['key']]
    assert sobol_points(2, 0, 5) != sobol_points(2, 1, 5)
    assert sobol_points(2, 0, 5)[:4] == sobol_points(2, 0, 9)[:4]  # a larger budget adds to a smaller one


def test_row_dimension_keeps_the_shared_points(tmp_path):
    plain = read_study(written(tmp_path, search=SEARCH))
    own = read_study(
        written(tmp_path, {}, dict(search=dict(t=TEMPERATURE), declares=['optim_wrapper', 'model.head']), search=SEARCH)
    )
    configs = resolved(own, 'demo')
    without, with_it = (trial_options(SEARCH and s.search, s.rows[1], configs['two'], 0, 5) for s in (plain, own))
    for few, more in zip(without[1:], with_it[1:]):
        assert more.pop(TEMPERATURE['key']) in TEMPERATURE['values'] and more == few
    require_fair(compare_configs(own, configs))
    two_of_them = read_study(written(tmp_path, {}, dict(search=dict(t=TEMPERATURE)), search=SEARCH))
    with pytest.raises(UserError) as error:
        compare_configs(two_of_them, configs)
    assert error.value.code == 'undeclared-search'


def test_budget_is_counted_in_flops(tmp_path):
    study = read_study(
        written(tmp_path, dict(config='mocov2_r50_200e.py'), dict(declares=['model', 'default_hooks', 'optim_wrapper']))
    )
    costs = flops(resolved(study, 'demo'))
    assert 1.9 < costs['two'] / costs['one'] < 2.2  # both directions of the loss
    assert trials_for(5, costs) == {'one': 5, 'two': 2} and trials_for(1, costs) == {'one': 1, 'two': 1}


@pytest.mark.parametrize(
    'dimension, code',
    [
        (dict(key='model.head.tmperature', times=[0.5, 2]), 'no-key-to-search'),
        (dict(key=RATE['key'], times=[8, '1/8']), 'empty-range'),
        (dict(key=RATE['key'], times=['low', 'high']), 'range-not-numbers'),
        (dict(key='model.head.type', times=[0.5, 2]), 'range-does-not-fit'),
        (dict(TEACHER, times=[0.5, 200]), 'range-does-not-fit'),
        (dict(key=RATE['key']), 'times-or-values'),
    ],
)
def test_dimension_that_cannot_be_searched_is_an_error(tmp_path, dimension, code):
    with pytest.raises(UserError) as error:
        study = read_study(written(tmp_path, search={**SEARCH, 'dimensions': dict(new=dimension)}))
        compare_configs(study, resolved(study, 'demo'))
    assert error.value.code == code


@pytest.mark.parametrize(
    'study, code',
    [
        (dict(search={**SEARCH, 'criterion': 'linear@imagenet'}), 'unknown-criterion'),
        (dict(search={**SEARCH, 'budget': 0.5}), 'wrong-content'),
        (dict(search=SEARCH, rows=[dict(name='a', config='mocov2_r50_200e.py')]), 'search-one-row'),
        (dict(rows=[dict(name='a', config='x', search=dict(t=TEMPERATURE))]), 'row-search-without-search'),
    ],
)
def test_invalid_search_is_an_error(tmp_path, study, code):
    with pytest.raises(UserError) as error:
        read_study(written(tmp_path, **study))
    assert error.value.code == code


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """A study that was begun without a search, and gone on with one; the training of its runs is made up."""
    folder = tmp_path_factory.mktemp('searched')
    (folder / 'toy.yaml').write_text(yaml.safe_dump(toy_scale(64, epochs=0.005, tasks=['knn'])))
    register()
    scale = read_scale(str(folder / 'toy.yaml'))
    before = read_study(written(folder))
    configs = {row.name: resolve(row, scale) for row in before.rows}
    earlier = prepare_runs(before, configs, (0, 1), ('knn',), folder / 'out')
    study = read_study(written(folder, search={**SEARCH, 'budget': 2}))
    return (
        study,
        configs,
        scale,
        prepare_runs(study, configs, study.seeds, ('knn',), folder / 'out'),
        earlier,
        folder / 'out',
    )


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
    lines = [line.split('\t') for line in plain_commands(runs, 1)]  # as jobs: names of their own, winners after trials
    assert len({name for name, *_ in lines}) == len(runs)
    after = {name: needs for name, needs, _ in lines if needs != '-'}
    assert after['one_seed_0'] == 'one_seed_1000_trial_0,one_seed_1000_trial_1' and len(after) == len(winners)


def test_best_trial_is_retrained_from_a_fresh_seed(searched, monkeypatch):
    study, configs, scale, runs, _, out = searched
    trained = []

    def train(cfg, asked, folder, launcher):
        trained.append((folder, cfg.optim_wrapper.optimizer.lr, asked.seed))
        if asked.trial is not None and folder.name == '0' and 'two' in str(folder):
            raise Diverged('3 steps had a loss that is not finite')

    monkeypatch.setattr(worker, 'train_row', train)
    scores = {'0': 50.0, '1': 60.0}
    monkeypatch.setattr(worker, 'measure', lambda task, folder, *_: scores.get(folder.name, 70.0))
    monkeypatch.setattr(
        worker,
        'result_of',
        lambda cfg, folder, asked, measured: RunResult(
            scores=measured, labels={'knn': 'knn'}, made=reuse.origin(asked, folder)
        ),
    )
    for run in runs:
        assert run.ready
        worker.complete_run(run.folder)
    again = len(trained)
    for run in (run for run in runs if run.part == 'trial'):
        assert run.done, run.name
    rates = {run.name: rate for run in runs for folder, rate, _ in trained if folder == run.folder}
    seeds = {run.name: seed for run in runs for folder, _, seed in trained if folder == run.folder}
    assert rates['one, seed 0'] == rates['one, search 0, trial 1'] != rates['one, seed 0 as published']
    assert (seeds['one, seed 1'], seeds['one, search 1, trial 1']) == (1, FIRST + 1)
    assert again == len(runs)
    record = collect(study, configs, scale, runs, out)
    assert [row['runs'][0]['scores'] for row in record['rows']] == [{'knn': 70.0}] * 2
    assert record['as_published']['rows'][0]['runs'][0]['folder'] == 'runs/one/seed_0'
    tried = record['search']['rows']['two']
    assert [(trial['search'], trial['score'], bool(trial['diverged'])) for trial in tried] == [
        (0, None, True), (0, 60.0, False), (1, None, True), (1, 60.0, False)
    ]  # fmt: skip
    assert [point['estimate'] for point in record['search']['curves']['two']] == [0.0, 60.0]
    assert [trial['chosen'] for trial in tried] == [False, True, False, True]
    chosen = read_json(out / 'tuned/one/seed_0/chosen.json', Choice)
    assert chosen.score == 60.0 and math.isclose(chosen.options[RATE['key']], rates['one, seed 0'])


def planted_trials(values: dict[str, list], scores: list[float]) -> list[dict]:
    """One ended search of a row, as the page has runs; the first trial is as published."""
    options = [{}, *({key: column[at] for key, column in values.items()} for at in range(len(scores) - 1))]
    return [
        dict(state='done', seed=FIRST, folder=f'0/{at}', trial=trial, scores=dict(knn=score))
        for at, (trial, score) in enumerate(zip(options, scores))
    ]


@pytest.mark.parametrize('momentum, end', [(0.98, 'high'), (0.5, 'low')])
def test_edges_name_the_end_by_the_key_itself(searched, momentum, end):
    study, configs, *_ = searched
    own = own_value(configs['one'], TEACHER['key'])
    ends = 1 - (1 - own) * 2, 1 - (1 - own) * 0.5
    value = max(ends) if end == 'high' else min(ends)
    rate = own_value(configs['one'], RATE['key'])
    trials = planted_trials({TEACHER['key']: [value], RATE['key']: [rate]}, [40.0, 60.0])
    found = search_record(study, configs, (0,), dict(one=trials, two=[]))
    assert [(edge['dimension'], edge['end']) for edge in found['edges']] == [('teacher', end)]


def test_chosen_trials_are_marked_once_a_search_ended(searched):
    study, configs, *_ = searched
    rate = own_value(configs['one'], RATE['key'])
    trials = planted_trials({RATE['key']: [rate]}, [60.0, 60.0])
    found = search_record(study, configs, (0,), dict(one=trials, two=trials[:1]))
    assert [trial['chosen'] for trial in found['rows']['one']] == [True, False]  # the first of equals
    assert [trial['chosen'] for trial in found['rows']['two']] == [False]  # its second trial has not run


def test_a_winner_as_published_is_not_trained_twice(searched, tmp_path, monkeypatch):
    study, configs, *_ = searched
    runs = {run.slug: run for run in prepare_runs(study, configs, (0,), ('knn',), tmp_path)}
    trained, scores = [], iter((60.0, 50.0, 70.0, 70.0))

    def train(cfg, asked, folder, launcher):
        trained.append(folder)
        torch.save(dict(state_dict={}), folder / 'epoch_1.pth')
        write_text(folder / 'last_checkpoint', 'elsewhere/epoch_1.pth')
        write_json(folder / 'trained.json', Trained(seconds=9.0, steps=4, made=reuse.origin(asked, folder)))

    monkeypatch.setattr(worker, 'train_row', train)
    monkeypatch.setattr(worker, 'measure', lambda *_: next(scores))
    monkeypatch.setattr(
        worker, 'result_of', lambda cfg, folder, asked, got: RunResult(scores=got, labels={'knn': 'knn'})
    )
    published, winner = runs['one_seed_0_published'].folder, runs['one_seed_0'].folder
    for name in ('one_seed_1000_trial_0', 'one_seed_1000_trial_1', 'one_seed_0_published', 'one_seed_0'):
        if runs[name].folder == winner:
            for job, folder in ((1, published), (2, winner)):  # jobs of Slurm, each with files of its own
                write_text(folder / 'job.sh', f'job {job}')
        worker.complete_run(runs[name].folder)
    assert (winner / 'job.sh').read_text() == 'job 2'
    assert winner not in trained and reuse.last_checkpoint(winner).read_bytes()
    record = read_json(winner / 'trained.json', Trained)
    assert (record.seconds, record.steps, record.made) == (0.0, 4, reuse.origin(runs['one_seed_0'].asked, winner))
    assert read_json(published / 'trained.json', Trained).made == {}
    shutil.rmtree(winner), (published / 'result.json').unlink()  # not there yet: the winner is trained
    prepare_runs(study, configs, (0,), ('knn',), tmp_path)
    scores = iter((70.0,))
    worker.complete_run(winner)
    assert winner in trained


def test_an_untrained_row_is_the_floor_of_both_tracks(searched, tmp_path):
    *_, scale, _, _, _ = searched
    rows = [
        dict(name='one', config='mocov2plus_r50_200e.py'),
        dict(name='two', config='byol_r50_200e.py', declares=['model']),
    ]
    rows.append(dict(name='pixels', config='mocov2plus_r50_200e.py', untrained='pixels'))
    study = read_study(written(tmp_path, cross=None, rows=rows, search={**SEARCH, 'budget': 2}))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    record = collect(study, configs, scale, prepare_runs(study, configs, study.seeds, ('knn',), tmp_path), tmp_path)
    floor, beside = (track['rows'][2]['runs'] for track in (record, record['as_published']))
    assert floor == beside and floor
    folders = [run['folder'] for run in search_runs(record)]
    assert len(folders) == len({*folders}) == 2 * (2 + sum(record['search']['counts'].values()))


def plant_trials(folder: Path, **scores: float) -> Chosen:
    for trial, score in scores.items():
        write_json(folder / trial / 'result.json', RunResult(scores={'knn': score}, labels={'knn': 'k'}))
        write_json(folder / trial / 'asked.json', Asked(0, ('knn',), trial={'x': trial}))
    return Chosen(tuple(str(folder / trial) for trial in scores), 'knn')


def test_a_winner_with_another_choice_is_set_aside(tmp_path):
    chosen, run = plant_trials(tmp_path, a=1.0, b=2.0), tmp_path / 'run'
    assert take_best(run, chosen) == {'x': 'b'} == take_best(run, chosen)
    assert not list(tmp_path.glob('run.replaced*'))
    (run / 'asked').mkdir()
    for name in ('asked/config.yaml', 'asked.json', 'log.txt', '.lock_0', 'result.json', 'trained.json', 'epoch_1.pth'):
        (run / name).write_text(name)
    for number, winner in enumerate('cd', 1):  # as after two larger budgets
        chosen = plant_trials(tmp_path, a=1.0, b=2.0, **{winner: 2.0 + number})
        assert take_best(run, chosen) == {'x': winner}
        assert read_json(run / 'chosen.json', Choice).options == {'x': winner}
    assert {path.name for path in run.iterdir()} == {'asked', 'asked.json', 'log.txt', '.lock_0', 'chosen.json'}
    moved = {path.name for path in (tmp_path / 'run_set_aside_1').iterdir()}
    assert moved == {'result.json', 'trained.json', 'epoch_1.pth', 'chosen.json'}
    assert read_json(tmp_path / 'run_set_aside_1/chosen.json', Choice).options == {'x': 'b'}
    assert [path.name for path in (tmp_path / 'run_set_aside_2').iterdir()] == ['chosen.json']


def test_search_without_finished_trial_has_no_choice(tmp_path):
    chosen = plant_trials(tmp_path, a=1.0, b=2.0)
    for trial in 'ab':
        write_json(tmp_path / trial / 'result.json', RunResult(labels={'knn': 'k'}, diverged='NaN'))
    with pytest.raises(UserError) as error:
        take_best(tmp_path / 'other', chosen)
    assert error.value.code == 'all-trials-diverged'


def test_other_ranks_wait_for_the_first_choice(tmp_path, monkeypatch):
    chosen, run = plant_trials(tmp_path, a=1.0, b=2.0), tmp_path / 'run'
    monkeypatch.setattr(trials.time, 'sleep', lambda seconds: take_best(run, chosen))
    assert trials.wait_for_choice(run, chosen) == {'x': 'b'}
    plant_trials(tmp_path, a=3.0)
    monkeypatch.setattr(trials.time, 'sleep', lambda seconds: None)
    with pytest.raises(UserError) as error:
        trials.wait_for_choice(run, chosen)
    assert error.value.code == 'no-choice'


def test_a_larger_budget_trains_a_changed_winner_again(searched, tmp_path, monkeypatch):
    study, configs, *_ = searched
    trained = []

    def train(cfg, asked, folder, launcher):
        trained.append(folder)
        write_json(folder / 'trained.json', Trained(made=reuse.origin(asked, folder)))

    scores = {'0': 50.0, '1': 60.0, '2': 55.0, '3': 90.0}
    monkeypatch.setattr(worker, 'train_row', train)
    monkeypatch.setattr(worker, 'measure', lambda task, folder, *_: scores.get(folder.name, 70.0))
    monkeypatch.setattr(
        worker,
        'result_of',
        lambda cfg, folder, asked, got: RunResult(scores=got, labels={'knn': 'k'}, made=reuse.origin(asked, folder)),
    )
    for budget in (2, 4):
        larger = replace(study, search=replace(study.search, budget=budget))
        runs = prepare_runs(larger, configs, (0,), ('knn',), tmp_path)
        for run in runs:
            if not run.done:
                worker.complete_run(run.folder)
    winner = next(run for run in runs if run.part == 'compared' and run.row.name == 'one')
    assert winner.done and trained.count(winner.folder) == 2
    assert read_json(winner.folder / 'chosen.json', Choice).trial.endswith('/3')
    assert (winner.folder.parent / 'seed_0_set_aside_1' / 'result.json').is_file()


OUT_OF_MEMORY = 'RuntimeError: CUDA out of memory. Tried to allocate {} GiB'


def fail_trial(run: Run, words: str) -> str:
    """End a trial as a worker does that failed with these last words."""
    work = object.__new__(local_pool.ActiveRun)
    work.run, work.log, work.log_start = run, run.folder / 'log.txt', 0
    work.log.write_text(f'Epoch(train) [1][3/9]\n{words}\n' if words else '')
    return work.describe_end(1)


def test_trial_that_fails_twice_equally_is_the_worst(searched, tmp_path):
    study, configs, scale, *_ = searched
    planned = study, configs, (0,), ('knn',), tmp_path
    first, second, *_ = trials_of_one = [
        run for run in prepare_runs(*planned) if run.part == 'trial' and run.row.name == 'one'
    ]
    assert len(trials_of_one) == 2
    fail_trial(second, OUT_OF_MEMORY.format(2.5))
    fail_trial(second, 'OSError: the disk is full')
    fail_trial(second, OUT_OF_MEMORY.format(2.5))
    write_json(first.folder / 'result.json', RunResult(scores={'knn': 50.0}, labels={'knn': 'k-NN'}))
    assert settle_failed_trials(prepare_runs(*planned)) == []  # the two last failures were of two kinds
    fail_trial(second, OUT_OF_MEMORY.format(2.75))  # the numbers in it may change
    runs = prepare_runs(*planned)
    assert second.done and OUT_OF_MEMORY.format(2.75) in second.result.diverged
    winner = next(run for run in runs if run.part == 'compared' and run.row.name == 'one')
    assert winner.ready and take_best(winner.folder, winner.asked.chosen) == {}
    tried = collect(study, configs, scale, runs, tmp_path)['search']['rows']['one']
    assert [(trial['chosen'], trial['diverged'][:12]) for trial in tried] == [(True, ''), (False, 'failed twice')]


def test_trials_that_all_fail_are_repeated(searched, tmp_path):
    study, configs, *_ = searched
    planned = study, configs, (0,), ('knn',), tmp_path
    for run in [run for run in prepare_runs(*planned) if run.part == 'trial'] * 2:
        fail_trial(run, 'OSError: the disk is full')
    assert not any(run.result for run in prepare_runs(*planned) if run.part == 'trial')


def test_search_ends_when_a_trial_fails_again(searched, tmp_path, monkeypatch):
    study, configs, *_ = searched
    reported = []
    script = (
        'import json, pathlib, sys\n'
        'folder = pathlib.Path(sys.argv[1])\n'
        'if "trials/one" in str(folder) and folder.name == "1":\n'
        '    sys.exit("error: it does not fit")\n'
        'folder.joinpath("result.json").write_text(json.dumps(dict(scores=dict(knn=1), labels=dict(knn="k"))))\n'
    )
    monkeypatch.setattr(local_pool, 'commands', lambda run, devices: [[sys.executable, '-c', script, str(run.folder)]])
    for start in (1, 2):
        planned = prepare_runs(study, configs, (0,), ('knn',), tmp_path)
        local_pool.execute(planned, 4, 1, lambda run, what: reported.append((run.name, what)))
        winner = next(run for run in planned if run.part == 'compared' and run.row.name == 'one')
        assert (winner.result is not None) == (start == 2)
    assert sum(name == 'one, search 0, trial 1' and what == 'running' for name, what in reported) == 2


@pytest.mark.parametrize(
    'key',
    [
        'train_cfg.max_epochs',
        'train_cfg',
        'total_batch_size',
        'evaluation.test.split',
        'evaluation.train.count',
        'recipes.linear',
        'randomness.seed',
        'train_dataloader.batch_size',
    ],
)
def test_keys_of_budget_and_measuring_are_not_searched(tmp_path, key):
    dimension = dict(wrong=dict(key=key, values=[1, 2]))
    for rows, dimensions in (((), dict(rate=RATE, **dimension)), (({}, dict(search=dimension)), dict(rate=RATE))):
        with pytest.raises(UserError) as error:
            study = read_study(written(tmp_path, *rows, search={**SEARCH, 'dimensions': dimensions}))
            compare_configs(study, resolved(study, 'demo'))
        assert error.value.code == 'not-searchable' and key in str(error.value)


def test_key_and_its_part_are_not_both_searched(tmp_path):
    whole = dict(key='optim_wrapper.optimizer', values=[dict(type='SGD', lr=1), dict(type='SGD', lr=2)])
    for dimensions in (dict(rate=RATE, all=whole), dict(all=whole, rate=RATE)):
        with pytest.raises(UserError) as error:
            read_study(written(tmp_path, search={**SEARCH, 'dimensions': dimensions}))
        assert error.value.code == 'same-dimension'
    near = dict(rate=RATE, other=dict(key='optim_wrapper.optimizer.lr_decay', values=[1, 2]))
    read_study(written(tmp_path, search={**SEARCH, 'dimensions': near}))  # a longer name is not a part


@pytest.mark.parametrize('budget', [math.inf, math.nan, 1e9])
def test_unbounded_budget_is_an_error(tmp_path, budget):
    with pytest.raises(UserError) as error:
        read_study(written(tmp_path, search={**SEARCH, 'budget': budget}))
    assert error.value.code == 'wrong-content' and 'budget' in str(error.value)


def test_seeds_next_to_a_search_are_an_error(tmp_path):
    with pytest.raises(UserError) as error:
        read_study(written(tmp_path, seeds=[0, 1, 2], search=SEARCH))
    assert error.value.code == 'seeds-and-search'
    assert read_study(written(tmp_path, seeds=[0, 1], search=SEARCH)).seeds == (0, 1)  # the same two searches


def test_trials_of_listed_values_do_not_repeat(tmp_path):
    own = own_value(resolved(read_study(written(tmp_path)), 'demo')['one'], TEMPERATURE['key'])
    listed = dict(temperature=dict(TEMPERATURE, values=[own, 0.123, 0.456, 0.456]))
    study = read_study(written(tmp_path, search={**SEARCH, 'budget': 9, 'dimensions': listed}))
    configs = resolved(study, 'demo')
    for number in range(8):
        options = trial_options(study.search, study.rows[0], configs['one'], number, 9)
        values = [trial.get(TEMPERATURE['key'], own) for trial in options]
        assert values[0] == own and sorted(values[1:]) == [0.123, 0.456]
    assert trial_counts(study, configs) == dict(one=3, two=3)
    assert len([run for run in plan_runs(study, configs, (0,), ('knn',), tmp_path) if run.part == 'trial']) == 6
    crossed = dict(SEARCH, budget=5, dimensions=dict(rate=RATE, **listed))
    study = read_study(written(tmp_path, search=crossed))
    options = trial_options(study.search, study.rows[0], configs['one'], 0, 5)
    assert len(options) == 5 and all(
        RATE['key'] in trial for trial in options[1:]
    )  # with another rate its own may return


def test_until_decided_counts_runs_of_a_search(searched, tmp_path):
    study, configs, *_ = searched
    each = runs_of_each(study, configs)
    planned = plan_runs(study, configs, (0,), ('knn',), tmp_path)
    assert each == {name: sum(run.row.name == name for run in planned) for name in ('one', 'two')} == dict(one=4, two=4)
    assert begin(tmp_path / 'a', study, (0, 1), 35, sum(each.values())).most == 4  # 32 runs
    with pytest.raises(UserError, match='--most 16 or more'):
        begin(tmp_path / 'b', study, (0, 1), 12, sum(each.values()))
    assert runs_of_each(replace(study, search=None), configs) == dict(one=1, two=1)


def leaking(folder: Path, **changes) -> tuple:
    """A study at a small scale whose evaluation data are changed."""
    scale = toy_scale(64, epochs=0.005, tasks=['knn'])
    data = scale['replace']['evaluation']
    data |= {part: value(data) if callable(value) else value for part, value in changes.items()}
    (folder / 'toy.yaml').write_text(yaml.safe_dump(scale))
    return read_scale(str(folder / 'toy.yaml'))


@pytest.mark.parametrize(
    'changes, code',
    [
        (dict(val=lambda data: data['test']), 'val-is-test'),
        (dict(val=lambda data: data['train']), 'val-is-train'),
        (dict(train=lambda data: data['test']), 'train-is-test'),
        (dict(val=lambda data: dict(type='Part', dataset=data['test'], held=False)), 'val-is-test'),
        (dict(held_out=0), 'bad-held-out'),
        (dict(held_out=2), 'bad-held-out'),
    ],
)
def test_search_on_test_images_is_an_error(tmp_path, changes, code):
    scale = leaking(tmp_path, **changes)
    tune = dict(trials=2, dimensions=dict(rate=RATE))
    for asked, task in ((dict(search=SEARCH), 'knn'), (dict(tune=dict(finetune=tune)), 'finetune')):
        with pytest.raises(UserError) as error:
            at_scale(read_study(written(tmp_path, **asked)), scale, [task])
        assert error.value.code == code
    at_scale(read_study(written(tmp_path)), scale, ['knn'])  # which chooses nothing


def test_sweep_on_test_images_is_an_error(tmp_path):
    scale = leaking(tmp_path, val=lambda data: data['test'], sweep=True)
    for task in ('linear', 'linear#1', 'logreg'):
        with pytest.raises(UserError) as error:
            at_scale(read_study(written(tmp_path)), scale, [task])
        assert error.value.code == 'val-is-test'
    at_scale(read_study(written(tmp_path)), scale, ['knn', 'svm'])  # which choose nothing by them


def test_trial_compares_its_images_with_test_images(tmp_path, monkeypatch):
    scale = leaking(tmp_path, val=lambda data: dict(data['test'], count=12))  # the first of the test images
    study, configs, _ = at_scale(read_study(written(tmp_path, search={**SEARCH, 'budget': 2})), scale, ['knn'])
    run = next(run for run in prepare_runs(study, configs, (0,), ('knn',), tmp_path) if run.part == 'trial')
    monkeypatch.setattr(worker, 'train_row', lambda *_: pytest.fail('it was trained'))
    with pytest.raises(UserError) as error:
        worker.complete_run(run.folder)
    assert error.value.code == 'val-in-test'


def test_task_is_tuned_on_equal_points_for_all_rows(tmp_path):
    tune = dict(trials=3, dimensions=dict(rate=RATE))
    study = read_study(written(tmp_path, tune=dict(finetune=tune), tasks=dict(demo=['knn', 'finetune'])))
    runs = prepare_runs(study, resolved(study, 'demo'), (0, 1), ('knn', 'finetune'), tmp_path / 'out')
    asked = [read_json(run.folder / 'asked.json', Asked).tuned['finetune'] for run in runs]
    torch.save(resnet18().state_dict(), tmp_path / 'a.pth')
    beside = read_study(
        written(tmp_path, {}, dict(weights={0: str(tmp_path / 'a.pth')}), tune=dict(finetune=tune), seeds=[0])
    )
    theirs = plan_runs(beside, resolved(beside, 'demo'), (0,), ('finetune',), tmp_path / 'beside')[1]
    assert theirs.asked.external and theirs.asked.tuned['finetune'] == asked[0]  # of networks from elsewhere, too
    assert asked[0] == asked[1] != asked[2] and asked[0][0] == {} and len(asked[0]) == 3
    _, settings = measure.task_settings('finetune', runs[0].folder, runs[0].asked)
    assert settings.trials == asked[0]
    recipe = settings.recipe_for(load_config(str(runs[0].folder / 'asked/config.yaml')))
    own, options = recipe.optim_wrapper.optimizer.lr, [trial[RATE['key']] for trial in asked[0][1:]]
    assert [dict(trial) for trial in recipe.trials] == [dict(trial) for trial in asked[0]]
    assert all(own / 8 <= rate <= own * 8 for rate in options)
    wrong = read_study(written(tmp_path, tune=dict(knn=tune)))
    with pytest.raises(UserError) as error:
        prepare_runs(wrong, resolved(wrong, 'demo'), (0,), ('knn',), tmp_path / 'other')
    assert error.value.code == 'not-tunable'
