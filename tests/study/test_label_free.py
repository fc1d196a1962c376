"""Choosing without labels: networks of a study are measured, tested after the choice alone, and regret stands on the page."""

import json

import pytest
import torch
import yaml
from study.small_runs import toy_scale
from study.test_search import SEARCH
from study.test_spec import written

from mmairl.evaluation.backbone import load_backbone
from mmairl.files import read_json, write_json, write_text
from mmairl.report.study_page import write_study_page
from mmairl.study.collect import collect
from mmairl.study.label_free import (
    AT_RANDOM,
    EPOCHS,
    HELD_OUT,
    METHODS,
    SETTINGS,
    Network,
    Unlabelled,
    choices_among,
    measured_networks,
    regret_record,
)
from mmairl.study.numbers.regret import UNDECIDED
from mmairl.study.runs import lay_out
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import read_study
from mmairl.study.stored import Result


def network(row, seed=0, trial=None, along=None, part='compared', score=50.0, **values) -> Network:
    return Network(row, 'trial' if trial is not None else part, seed, trial, along, score, values)


def test_choices_are_among_settings_methods_and_epochs():
    trials = [network(row, seed, trial) for row in 'ab' for seed in (0, 1) for trial in range(3 if row == 'a' else 2)]
    runs = [network('a'), network('b'), network('a', along=10), network('a', along=20), network('b', 1)]
    found = choices_among([*trials, *runs])
    assert {name: sorted(map(len, of)) for name, of in found.items()} == {
        'a': [3, 3], 'b': [2, 2], SETTINGS: [2, 2, 3, 3], METHODS: [2, 2, 2, 2, 2], EPOCHS: [3]
    }  # fmt: skip


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """Two rows of two trials, which are untrained networks with a made up score on held-out images."""
    folder = tmp_path_factory.mktemp('label_free')
    (folder / 'toy.yaml').write_text(yaml.safe_dump(toy_scale(48, epochs=0.005, tasks=['knn'], floor=[])))
    study, scale = read_study(written(folder, search={**SEARCH, 'budget': 2, 'searches': 1})), folder / 'toy.yaml'
    scale = read_scale(str(scale))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    runs = lay_out(study, configs, study.seeds, ('knn',), folder / 'out')
    for number, run in enumerate(run for run in runs if run.part == 'trial'):
        weights = load_backbone(configs['one'], seed=number).state_dict()
        torch.save(
            dict(state_dict={f'backbone.{key}': value for key, value in weights.items()}), run.folder / 'epoch_1.pth'
        )
        write_text(run.folder / 'last_checkpoint', 'epoch_1.pth')
        end(run, scores={'knn': 50.0 + number}, labels={'knn': 'k-NN'}, checkpoint='epoch_1.pth', sha256=str(number))
    return study, configs, scale, runs, folder / 'out'


def end(run, **result) -> None:
    write_json(run.folder / 'result.json', Result(**result))


def test_trials_are_tested_when_their_choice_is_noted_and_no_choice_reads_it(searched):
    study, configs, scale, runs, out = searched
    trials, said = [run for run in runs if run.part == 'trial'], []
    (trials[1].folder / 'result.json').rename(out / 'kept')  # one of row 'two' is not there yet
    _, found = measured_networks(study, configs, runs, ('knn',), said.append)
    assert {of.row for of in found} == {'one'} and 'before which no test image is looked at' in said[0]
    assert not [run for run in trials if run.row.name == 'two' and (run.folder / 'measures.json').is_file()]
    (out / 'kept').rename(trials[1].folder / 'result.json')
    task, found = measured_networks(study, configs, runs, ('knn',), said.append)
    assert len(found) == 4 and (out / 'tuned/two/seed_0/chosen.json').is_file()
    assert {of.values[HELD_OUT] for of in found} == {50.0, 51.0, 52.0, 53.0} and all(
        0 <= of.score <= 100 for of in found
    )
    path = trials[0].folder / 'measures.json'
    write_json(path, Unlabelled('0', 'knn', 99.0, {**read_json(path, Unlabelled).values, 'RankMe': None}))
    _, found = measured_networks(study, configs, runs, ('knn',), said.append)  # what is measured is not measured again
    assert sorted(of.score for of in found)[-1] == 99.0
    record = regret_record(study, configs, task, found)
    assert record['rewarded']['one'] == ['alignment', 'uniformity'] and len(record['networks']) == 4
    assert record['situations'].keys() == {'one', 'two', SETTINGS, METHODS}
    assert 'training loss' not in record['situations'][METHODS] and HELD_OUT in record['situations'][SETTINGS]
    cell = record['situations']['one']['CLID']
    assert cell['choices'] == 1 and cell['word'] == UNDECIDED and cell['regret'] >= 0
    assert record['situations'][SETTINGS][AT_RANDOM]['correlation'] is None
    page = write_study_page(collect(study, configs, scale, runs, out, measures=record), out / 'page.html').read_text()
    assert 'Choosing without labels' in page and 'alignment</th>' in page and '†' in page
    assert json.loads((out / 'study.json').read_text())['measures']['task'] == 'knn'
