"""Test the analysis projects.label_free.networks: it measures a study's networks without labels, and reports the regret.

Regret is the test score that is lost if a measure chooses among networks.
"""

import json
import math
import re

import pytest
import torch
import yaml
from study.small_runs import toy_scale
from study.test_spec import written

from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.io import read_json, write_json, write_text
from mmairl.study.collect import collect
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.planner import prepare_runs
from mmairl.study.scale import read_scale, resolve
from mmairl.study.schema import RunResult
from mmairl.study.spec import read_study
from projects.label_free.choose import goodness_of_trials
from projects.label_free.networks import (
    AT_RANDOM,
    HELD_OUT,
    Network,
    choices_among,
    measured_networks,
)
from projects.label_free.pool import markdown, pool
from projects.label_free.regret import UNDECIDED
from projects.label_free.trusted import EPOCHS, METHODS, SETTINGS, TRUSTED, trusted
from projects.label_free.unlabelled import Unlabelled, goodness_of

SEARCH = dict(
    budget=2,
    searches=1,
    dimensions=dict(rate=dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])),
)


def network(row, seed=0, trial=None, along=None, part='compared', score=50.0, **values) -> Network:
    return Network(row, 'trial' if trial is not None else part, seed, trial, along, score, values)


def test_choices_are_among_settings_methods_and_epochs():
    trials = [
        network(row, seed, trial)
        for row in 'ab'
        for seed in (0, 1)
        for trial in range(3 if row == 'a' else 2)
    ]
    runs = [
        network('a'),
        network('b'),
        network('a', along=10),
        network('a', along=20),
        network('b', 1),
    ]
    situations = choices_among([*trials, *runs])
    assert {name: sorted(map(len, choices)) for name, choices in situations.items()} == {
        'a': [3, 3], 'b': [2, 2], SETTINGS: [2, 2, 3, 3], METHODS: [2, 2, 2, 2, 2], EPOCHS: [3]
    }  # fmt: skip


def test_winner_equal_to_the_default_stops_once():
    both = [network('a', along=10, part=part, x=1.0) for part in ('compared', 'published')]
    ends = [network('a', part=part, x=2.0) for part in ('compared', 'published')]
    assert len(choices_among([*both, *ends])[EPOCHS]) == 1
    assert len(choices_among([*both, ends[0], network('a', part='published', x=3.0)])[EPOCHS]) == 2


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """Return a study with two rows, whose searches have two trials each, and its configs, scale, runs and folder.

    The trials are untrained networks with invented scores on held-out images.
    """
    register()
    folder = tmp_path_factory.mktemp('label_free')
    (folder / 'toy.yaml').write_text(
        yaml.safe_dump(toy_scale(48, epochs=0.005, tasks=['knn'], floor=[]))
    )
    study = read_study(written(folder, search=SEARCH, analyses=['projects.label_free.networks']))
    scale = folder / 'toy.yaml'
    scale = read_scale(str(scale))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    runs = prepare_runs(study, configs, study.seeds, ('knn',), folder / 'out')
    for number, run in enumerate(run for run in runs if run.part == 'trial'):
        weights = load_backbone(configs['one'], seed=number).state_dict()
        torch.save(
            dict(state_dict={f'backbone.{key}': value for key, value in weights.items()}),
            run.folder / 'epoch_1.pth',
        )
        write_text(run.folder / 'last_checkpoint', 'epoch_1.pth')
        end(
            run.folder,
            scores={'knn': 50.0 + number},
            labels={'knn': 'k-NN'},
            checkpoint='epoch_1.pth',
            sha256=str(number),
        )
    return study, configs, scale, runs, folder / 'out'


def end(folder, **result) -> None:
    write_json(folder / 'result.json', RunResult(**result))


def test_trials_are_tested_once_their_choice_is_made(searched, capsys):
    study, configs, _, runs, out = searched
    trials = [run for run in runs if run.part == 'trial']
    # Without the result of one of its trials, the search of row 'two' has not finished.
    (trials[1].folder / 'result.json').rename(out / 'kept')
    _, networks = measured_networks(study, configs, runs)
    assert {trial.row for trial in networks} == {
        'one'
    } and 'not tested yet' in capsys.readouterr().out
    assert not any(
        (run.folder / 'measures.json').is_file() for run in trials if run.row.name == 'two'
    )
    (out / 'kept').rename(trials[1].folder / 'result.json')
    task, networks = measured_networks(study, configs, runs)
    assert task == 'knn' and len(networks) == 4 and (out / 'tuned/two/seed_0/chosen.json').is_file()
    assert {trial.values[HELD_OUT] for trial in networks} == {50.0, 51.0, 52.0, 53.0}
    assert all(0 <= trial.score <= 100 for trial in networks)


def test_measured_networks_are_not_measured_again(searched):
    study, configs, _, runs, _ = searched
    measured_networks(study, configs, runs)
    path = next(run.folder / 'measures.json' for run in runs if run.part == 'trial')
    before = path.read_bytes()
    write_json(
        path, Unlabelled('0', {**read_json(path, Unlabelled).values, 'RankMe': None}, {'knn': 99.0})
    )
    _, networks = measured_networks(study, configs, runs)
    path.write_bytes(before)
    assert max(trial.score for trial in networks) == 99.0


def test_record_and_page_show_the_regret(searched):
    study, configs, scale, runs, out = searched
    page = write_study_page(
        collect(study, configs, scale, runs, out), out / 'page.html'
    ).read_text()
    section = page[page.index('Choosing without labels') :]
    columns = re.findall('<th scope="col">(.*?)</th>', section)
    assert columns[0] == 'measure'
    assert {'one', 'two'} <= {*columns}
    assert 'alignment</th>' in section
    assert '†' in section
    text = (out / 'study.json').read_text()
    record = json.loads(text, parse_constant=pytest.fail)['measures']  # NaN is not valid JSON
    assert record['rewarded']['one'] == ['alignment', 'uniformity'] and len(record['networks']) == 4
    assert record['task'] == 'knn' and record['situations'].keys() == {
        'one',
        'two',
        SETTINGS,
        METHODS,
    }
    assert (
        'training loss' not in record['situations'][METHODS]
        and HELD_OUT in record['situations'][SETTINGS]
    )
    cell = record['situations']['one']['CLID']
    assert cell['choices'] == 1 and cell['word'] == UNDECIDED and cell['regret'] >= 0
    assert record['situations'][SETTINGS][AT_RANDOM]['correlation'] is None
    pooled = pool([out / 'study.json'])['measures']
    assert pooled['task'] == 'knn' and pooled['situations'].keys() == {SETTINGS, METHODS}
    assert pooled['situations'][SETTINGS]['CLID'] == record['situations'][SETTINGS]['CLID']


def test_search_of_diverged_trials_has_no_choice(searched, tmp_path):
    study, configs, *_ = searched
    runs = prepare_runs(study, configs, study.seeds, ('knn',), tmp_path)
    for run in runs:
        if run.part == 'trial':
            end(run.folder, labels={'knn': 'k-NN'}, diverged='the loss is not finite')
    assert measured_networks(study, configs, runs) == ('knn', [])
    assert not list(tmp_path.rglob('chosen.json'))


def test_studies_are_pooled_choice_by_choice(tmp_path, run_tool):
    def study(name: str, seeds: range, margin: float = 1.0) -> str:
        trials = [
            dict(row=row, part='trial', seed=seed, trial=t, along=None, score=50.0 + 5 * t, values=dict(RankMe=t, LiDAR=None))
            for row in 'abcdefghi' for seed in seeds for t in range(3)
        ]  # fmt: skip
        record = dict(
            title=name,
            scale=dict(name='demo'),
            measures=dict(task='knn', margin=margin, networks=trials),
        )
        return str(write_json(tmp_path / name, record))

    one, two, other = study('one', range(2)), study('two', range(2)), study('other', range(1), 2.0)
    alone, both = (pool(paths)['measures']['situations'][SETTINGS] for paths in ([one], [one, two]))
    assert (alone['RankMe']['choices'], both['RankMe']['choices']) == (18, 36)
    assert (both['RankMe']['word'], both['RankMe']['regret'], both['RankMe']['correlation']) == (
        TRUSTED,
        0,
        1,
    )
    assert both[AT_RANDOM]['regret'] == 5 and 'LiDAR' not in both
    assert '| RankMe | **trusted** 0.0 (0.0 to 0.0), 36, ρ 1.00 |' in markdown(
        pool([one, two])['measures']
    )
    run_tool('projects/label_free/pool.py', one, two, '--out', tmp_path / 'pooled.json')
    assert trusted(SETTINGS, tmp_path / 'pooled.json')[0] == 'RankMe'
    empty = write_json(tmp_path / 'empty.json', {})
    for paths, code in (
        ([one, one], 'same-study'),
        ([one, other], 'different-studies'),
        ([one, empty], 'no-measures'),
    ):
        with pytest.raises(UserError) as error:
            pool(paths)
        assert error.value.code == code


def test_diverged_trials_do_not_change_clid():
    values = [
        {'cluster learnability': cl, 'intrinsic dimension': d}
        for cl, d in ((80, 3), (math.nan, math.nan), (90, 5))
    ]
    assert goodness_of('CLID', dict(enumerate(values))) == pytest.approx([-2, -math.inf, 2])


def test_trials_are_chosen_by_their_measures(searched):
    folders = [run.folder for run in searched[3] if run.part == 'trial' and run.row.name == 'one']
    result = read_json(folders[0] / 'result.json', RunResult)
    goodness = goodness_of_trials(folders, 'RankMe')
    assert goodness[1] == read_json(folders[1] / 'measures.json', Unlabelled).values['RankMe']
    end(folders[0], diverged='NaN')
    assert goodness_of_trials(folders, 'RankMe')[0] == -math.inf
    write_json(folders[0] / 'result.json', result)


def test_search_without_labels_names_the_project(tmp_path):
    with pytest.raises(UserError) as error:
        read_study(written(tmp_path, search={**SEARCH, 'criterion': 'label_free'}))
    assert error.value.code == 'unknown-criterion'


def test_malformed_record_raises(tmp_path):
    (path := tmp_path / 'other.json').write_text('{"measures": {"margin": 1, "situations": [3]}}')
    with pytest.raises(UserError, match=r'measures.situations: expected `object`, got `array`'):
        trusted(SETTINGS, path)
