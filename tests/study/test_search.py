"""Equal chances: the points that all rows share, trials by budget, the choice that no test image has a part in, bad input."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from study.small_runs import toy_scale
from study.test_spec import resolved, written
from torchvision.models import resnet18

from mmairl.configs import load_config
from mmairl.engine.launch import register
from mmairl.errors import Diverged, UserError
from mmairl.files import read_json, write_json, write_text
from mmairl.report.search_section import search_runs
from mmairl.study import derived, measure, worker
from mmairl.study.collect import collect
from mmairl.study.guard import compare, require_fair
from mmairl.study.plan import flops
from mmairl.study.runs import lay_out, plan_runs
from mmairl.study.scale import read_scale, resolve
from mmairl.study.search import FIRST, own_value, places, trial_options, trials_for
from mmairl.study.slurm import plain_commands
from mmairl.study.spec import read_study
from mmairl.study.stored import Asked, Choice, Chosen, Result, Trained
from mmairl.study.trials import search_record, take_best

RATE = dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])
TEACHER = dict(key='default_hooks.momentum.base', times=[0.5, 2], complement=True)
SEARCH = dict(budget=4, searches=2, dimensions=dict(rate=RATE, teacher=TEACHER))
TEMPERATURE = dict(key='model.head.temperature', values=[0.1, 0.2, 0.4])


def test_all_rows_share_their_points_relative_to_their_own_values(tmp_path):
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
    assert places(2, 0, 5) != places(2, 1, 5)
    assert places(2, 0, 5)[:4] == places(2, 0, 9)[:4]  # a larger budget adds to a smaller one


def test_a_row_may_add_a_dimension_and_keeps_the_points_of_all(tmp_path):
    plain = read_study(written(tmp_path, search=SEARCH))
    own = read_study(
        written(tmp_path, {}, dict(search=dict(t=TEMPERATURE), declares=['optim_wrapper', 'model.head']), search=SEARCH)
    )
    configs = resolved(own, 'demo')
    without, with_it = (trial_options(SEARCH and s.search, s.rows[1], configs['two'], 0, 5) for s in (plain, own))
    for few, more in zip(without[1:], with_it[1:]):
        assert more.pop(TEMPERATURE['key']) in TEMPERATURE['values'] and more == few
    require_fair(compare(own, configs))
    two_of_them = read_study(written(tmp_path, {}, dict(search=dict(t=TEMPERATURE)), search=SEARCH))
    with pytest.raises(
        UserError, match="model.head.temperature is searched in 'two' and not in 'one', which the study does not"
    ):
        compare(two_of_them, configs)


def test_the_budget_is_flops(tmp_path):
    study = read_study(
        written(tmp_path, dict(config='mocov2_r50_200e.py'), dict(declares=['model', 'default_hooks', 'optim_wrapper']))
    )
    costs = flops(resolved(study, 'demo'))
    assert 1.9 < costs['two'] / costs['one'] < 2.2  # both directions of the loss
    assert trials_for(5, costs) == {'one': 5, 'two': 2} and trials_for(1, costs) == {'one': 1, 'two': 1}


def refused(folder: Path, said: str, *rows: dict, **search) -> None:
    with pytest.raises(UserError, match=said):
        study = read_study(written(folder, *rows, search={**SEARCH, **search}))
        require_fair(compare(study, resolved(study, 'demo')))


def test_what_cannot_be_searched_is_one_sentence(tmp_path):
    wrong = {
        'which no row has': dict(key='model.head.tmperature', times=[0.5, 2]),
        'is empty': dict(key=RATE['key'], times=[8, '1/8']),
        'is not of numbers': dict(key=RATE['key'], times=['low', 'high']),
        'which is no number': dict(key='model.head.type', times=[0.5, 2]),
        'wants either': dict(key=RATE['key']),
        'lies in 0 to 1': dict(key=TEACHER['key'], times=[0.5, 200], complement=True),
    }
    for said, dimension in wrong.items():
        refused(tmp_path, said, dimensions=dict(new=dimension))
    refused(tmp_path, 'two dimensions vary', dimensions=dict(rate=RATE, again=dict(RATE, times=[0.5, 2])))
    refused(tmp_path, 'expected', budget=0.5)
    refused(tmp_path, "no criterion 'linear@imagenet'", criterion='linear@imagenet')
    with pytest.raises(UserError, match='this study has one row'):
        path = tmp_path / 'single.yaml'
        path.write_text(json.dumps(dict(title='x', rows=[dict(name='a', config='mocov2_r50_200e.py')], search=SEARCH)))
        read_study(path)
    with pytest.raises(UserError, match='and the study has no `search`'):
        read_study(written(tmp_path, dict(search=dict(t=TEMPERATURE))))


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """A study that was begun without a search, and gone on with one; the training of its runs is made up."""
    folder = tmp_path_factory.mktemp('searched')
    (folder / 'toy.yaml').write_text(yaml.safe_dump(toy_scale(64, epochs=0.005, tasks=['knn'])))
    register()
    scale = read_scale(str(folder / 'toy.yaml'))
    before = read_study(written(folder))
    configs = {row.name: resolve(row, scale) for row in before.rows}
    earlier = lay_out(before, configs, (0, 1), ('knn',), folder / 'out')
    study = read_study(written(folder, search={**SEARCH, 'budget': 2}))
    return (
        study,
        configs,
        scale,
        lay_out(study, configs, study.seeds, ('knn',), folder / 'out'),
        earlier,
        folder / 'out',
    )


def test_runs_as_published_are_kept_and_trials_see_no_test_image(searched):
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


def test_the_best_trial_is_trained_anew_from_a_fresh_seed_and_one_that_diverges_is_the_worst(searched, monkeypatch):
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
        lambda cfg, folder, asked, measured: Result(
            scores=measured, labels={'knn': 'knn'}, made=derived.origin(asked, folder)
        ),
    )
    for run in runs:
        assert run.ready
        worker.run(run.folder)
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
    assert record['search']['ahead'][0]['budget'] is None  # equal trials have no spread to tell by
    chosen = read_json(out / 'tuned/one/seed_0/chosen.json', Choice)
    assert chosen.score == 60.0 and math.isclose(chosen.options[RATE['key']], rates['one, seed 0'])


def test_searches_of_two_rows_are_compared_by_their_numbers_where_both_have_ended(searched):
    study, configs, *_ = searched
    levels = {'one': (40.0, 70.0, 50.0), 'two': (30.0, 60.4, 40.2)}  # ten apart in each search, and thirty between them

    def trials(name: str, ended: tuple[int, ...]) -> list[dict]:
        kept = [(number, trial) for number in ended for trial in (0, 1)]
        score = {number: dict(knn=level) for number, level in enumerate(levels[name])}
        beside = dict(state='done', trial={})
        return [dict(beside, seed=FIRST + n, folder=f'{n}/{trial}', scores=score[n]) for n, trial in kept]

    def ahead(one: tuple[int, ...], two: tuple[int, ...]) -> int | None:
        found = search_record(study, configs, (0, 1, 2), dict(one=trials('one', one), two=trials('two', two)))
        return next(entry['budget'] for entry in found['ahead'] if entry['row'] == 'one')

    assert ahead((0, 1, 2), (0, 1, 2)) == 1 == ahead((0, 1, 2), (0, 1)) == ahead((1, 2), (1, 2, 0))
    assert ahead((0, 1), (1, 2)) is None  # they share one search


def test_a_winner_as_published_is_not_trained_twice(searched, tmp_path, monkeypatch):
    study, configs, *_ = searched
    runs = {run.slug: run for run in lay_out(study, configs, (0,), ('knn',), tmp_path)}
    trained, scores = [], iter((60.0, 50.0, 70.0, 70.0))

    def train(cfg, asked, folder, launcher):
        trained.append(folder)
        torch.save(dict(state_dict={}), folder / 'epoch_1.pth')
        write_text(folder / 'last_checkpoint', 'elsewhere/epoch_1.pth')
        write_json(folder / 'trained.json', Trained(seconds=9.0, steps=4, made=derived.origin(asked, folder)))

    monkeypatch.setattr(worker, 'train_row', train)
    monkeypatch.setattr(worker, 'measure', lambda *_: next(scores))
    monkeypatch.setattr(worker, 'result_of', lambda cfg, folder, asked, got: Result(scores=got, labels={'knn': 'knn'}))
    published, winner = runs['one_seed_0_published'].folder, runs['one_seed_0'].folder
    for name in ('one_seed_1000_trial_0', 'one_seed_1000_trial_1', 'one_seed_0_published', 'one_seed_0'):
        if runs[name].folder == winner:
            for job, folder in ((1, published), (2, winner)):  # jobs of Slurm, each with files of its own
                write_text(folder / 'job.sh', f'job {job}')
        worker.run(runs[name].folder)
    assert (winner / 'job.sh').read_text() == 'job 2'
    assert winner not in trained and derived.last_checkpoint(winner).read_bytes()
    record = read_json(winner / 'trained.json', Trained)
    assert (record.seconds, record.steps, record.made) == (0.0, 4, derived.origin(runs['one_seed_0'].asked, winner))
    assert read_json(published / 'trained.json', Trained).made == {}
    shutil.rmtree(winner), (published / 'result.json').unlink()  # not there yet: the winner is trained
    lay_out(study, configs, (0,), ('knn',), tmp_path)
    scores = iter((70.0,))
    worker.run(winner)
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
    record = collect(study, configs, scale, lay_out(study, configs, study.seeds, ('knn',), tmp_path), tmp_path)
    floor, beside = (track['rows'][2]['runs'] for track in (record, record['as_published']))
    assert floor == beside and floor
    folders = [run['folder'] for run in search_runs(record)]
    assert len(folders) == len({*folders}) == 2 * (2 + sum(record['search']['counts'].values()))


def test_a_choice_that_changes_after_training_is_said(searched, tmp_path):
    for trial, score in (('a', 1.0), ('b', 2.0)):
        write_json(tmp_path / trial / 'result.json', Result(scores={'knn': score}, labels={'knn': 'k'}))
        write_json(tmp_path / trial / 'asked.json', Asked(0, ('knn',), trial={'x': trial}))
    chosen = Chosen((str(tmp_path / 'a'), str(tmp_path / 'b')), 'knn')
    assert take_best(tmp_path / 'run', chosen) == {'x': 'b'} == take_best(tmp_path / 'run', chosen)
    write_json(tmp_path / 'a/result.json', Result(scores={'knn': 3.0}, labels={'knn': 'k'}))
    with pytest.raises(UserError, match='begun with another choice'):
        take_best(tmp_path / 'run', chosen)
    for trial in 'ab':
        write_json(tmp_path / trial / 'result.json', Result(labels={'knn': 'k'}, diverged='NaN'))
    with pytest.raises(UserError, match='all 2 trials'):
        take_best(tmp_path / 'other', chosen)


def test_a_task_is_tuned_on_the_same_relative_points_for_every_network(tmp_path):
    tune = dict(trials=3, dimensions=dict(rate=RATE))
    study = read_study(written(tmp_path, tune=dict(finetune=tune), tasks=dict(demo=['knn', 'finetune'])))
    runs = lay_out(study, resolved(study, 'demo'), (0, 1), ('knn', 'finetune'), tmp_path / 'out')
    asked = [read_json(run.folder / 'asked.json', Asked).tuned['finetune'] for run in runs]
    torch.save(resnet18().state_dict(), tmp_path / 'a.pth')
    beside = read_study(
        written(tmp_path, {}, dict(weights={0: str(tmp_path / 'a.pth')}), tune=dict(finetune=tune), seeds=[0])
    )
    theirs = plan_runs(beside, resolved(beside, 'demo'), (0,), ('finetune',), tmp_path / 'beside')[1]
    assert theirs.asked.given and theirs.asked.tuned['finetune'] == asked[0]  # of networks from elsewhere, too
    assert asked[0] == asked[1] != asked[2] and asked[0][0] == {} and len(asked[0]) == 3
    _, _, settings = measure.settings_of('finetune', runs[0].folder, runs[0].asked)
    assert settings.trials == asked[0]
    recipe = settings.recipe_for(load_config(str(runs[0].folder / 'asked/config.yaml')), 'finetune', 'random')
    own, options = recipe.optim_wrapper.optimizer.lr, [trial[RATE['key']] for trial in asked[0][1:]]
    assert [dict(trial) for trial in recipe.trials] == [dict(trial) for trial in asked[0]]
    assert all(own / 8 <= rate <= own * 8 for rate in options)
    with pytest.raises(
        UserError, match="`tune` is for linear, finetune, and tasks whose config has `held_out` .* not for 'knn'"
    ):
        wrong = read_study(written(tmp_path, tune=dict(knn=tune)))
        lay_out(wrong, resolved(wrong, 'demo'), (0,), ('knn',), tmp_path / 'other')
