"""Choosing without labels: networks of a study are measured, tested after the choice alone, and regret stands on the page."""

import json
import math

import pytest
import torch
import yaml
from study.numbers.test_regret import evidence
from study.small_runs import toy_scale
from study.test_spec import written

from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.files import read_json, write_json, write_text
from mmairl.report.study_page import write_study_page
from mmairl.study.collect import collect
from mmairl.study.label_free import AT_RANDOM, HELD_OUT, Network, choices_among, measured_networks, regret_record
from mmairl.study.numbers.regret import EPOCHS, METHODS, SETTINGS, TRUSTED, UNDECIDED
from mmairl.study.runs import lay_out, plan_runs
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import read_study
from mmairl.study.stored import Result
from mmairl.study.trials import scores_of
from mmairl.study.unlabelled import Unlabelled

SEARCH = dict(budget=2, searches=1, dimensions=dict(rate=dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])))


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
    study, scale = read_study(written(folder, search=SEARCH)), folder / 'toy.yaml'
    scale = read_scale(str(scale))
    configs = {row.name: resolve(row, scale) for row in study.rows}
    runs = lay_out(study, configs, study.seeds, ('knn',), folder / 'out')
    for number, run in enumerate(run for run in runs if run.part == 'trial'):
        weights = load_backbone(configs['one'], seed=number).state_dict()
        torch.save(
            dict(state_dict={f'backbone.{key}': value for key, value in weights.items()}), run.folder / 'epoch_1.pth'
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
    write_json(folder / 'result.json', Result(**result))


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
    write_json(path, Unlabelled('0', {**read_json(path, Unlabelled).values, 'RankMe': None}, {'knn': 99.0}))
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


def test_a_criterion_without_labels_chooses_and_asks_no_trial_for_a_score(searched, tmp_path):
    _, _, scale, runs, _ = searched
    criterion = f'label_free {evidence(tmp_path, SETTINGS, RankMe=TRUSTED)}'
    tried = read_study(written(tmp_path, search={**SEARCH, 'criterion': criterion}))
    configs = {row.name: resolve(row, scale) for row in tried.rows}
    laid = plan_runs(tried, configs, tried.seeds, ('knn',), tmp_path)
    assert [run.tasks for run in laid if run.part == 'trial'] == [()] * 4
    folders = [run.folder for run in runs if run.part == 'trial' and run.row.name == 'one']
    ranks = {folder: read_json(folder / 'measures.json', Unlabelled).values['RankMe'] or -1 for folder in folders}
    end(folders[0], diverged='NaN')
    assert scores_of(folders, criterion)[0] == -math.inf and scores_of(folders, criterion)[1] == ranks[folders[1]]
    with pytest.raises(UserError, match='no measure is trusted'):
        read_study(written(tmp_path, search={**SEARCH, 'criterion': 'label_free'}))
