"""Choosing without labels: networks of a study are measured, tested after the choice alone, and regret stands on the page."""

import json
import math

import pytest
import torch
import yaml
from study.small_runs import toy_scale
from study.test_spec import written
from test_regret import evidence

from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.io import read_json, write_json, write_text
from mmairl.study.collect import collect
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.runs import lay_out, plan_runs
from mmairl.study.scale import read_scale, resolve
from mmairl.study.schema import Result
from mmairl.study.spec import read_study
from mmairl.study.trials import scores_of
from mmairl.study.trusted import EPOCHS, METHODS, SETTINGS, TRUSTED, trusted
from mmairl.study.unlabelled import Unlabelled, goodness_of
from projects.label_free.networks import AT_RANDOM, HELD_OUT, Network, choices_among, measured_networks, regret_record
from projects.label_free.pool import markdown, pool
from projects.label_free.regret import UNDECIDED

SEARCH = dict(budget=2, searches=1, dimensions=dict(rate=dict(key='optim_wrapper.optimizer.lr', times=['1/8', 8])))


def network(row, seed=0, trial=None, along=None, part='compared', score=50.0, **values) -> Network:
    return Network(row, 'trial' if trial is not None else part, seed, trial, along, score, values)


def test_choices_are_among_settings_methods_and_epochs():
    trials = [network(row, seed, trial) for row in 'ab' for seed in (0, 1) for trial in range(3 if row == 'a' else 2)]
    runs = [network('a'), network('b'), network('a', along=10), network('a', along=20), network('b', 1)]
    found = choices_among([*trials, *runs])
    assert {name: sorted(map(len, choices)) for name, choices in found.items()} == {
        'a': [3, 3], 'b': [2, 2], SETTINGS: [2, 2, 3, 3], METHODS: [2, 2, 2, 2, 2], EPOCHS: [3]
    }  # fmt: skip


def test_a_winner_that_is_the_run_as_published_stops_once():
    both = [network('a', along=10, part=part, x=1.0) for part in ('compared', 'published')]
    ends = [network('a', part=part, x=2.0) for part in ('compared', 'published')]
    assert len(choices_among([*both, *ends])[EPOCHS]) == 1
    assert len(choices_among([*both, ends[0], network('a', part='published', x=3.0)])[EPOCHS]) == 2


@pytest.fixture(scope='module')
def searched(tmp_path_factory):
    """Two rows of two trials, which are untrained networks with a made up score on held-out images."""
    register()
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
    assert {trial.row for trial in found} == {'one'} and 'before which no test image is looked at' in said[0]
    assert not [run for run in trials if run.row.name == 'two' and (run.folder / 'measures.json').is_file()]
    (out / 'kept').rename(trials[1].folder / 'result.json')
    task, found = measured_networks(study, configs, runs, ('knn',), said.append)
    assert len(found) == 4 and (out / 'tuned/two/seed_0/chosen.json').is_file()
    assert {trial.values[HELD_OUT] for trial in found} == {50.0, 51.0, 52.0, 53.0} and all(
        0 <= trial.score <= 100 for trial in found
    )
    path = trials[0].folder / 'measures.json'
    write_json(path, Unlabelled('0', {**read_json(path, Unlabelled).values, 'RankMe': None}, {'knn': 99.0}))
    _, found = measured_networks(study, configs, runs, ('knn',), said.append)  # what is measured is not measured again
    assert sorted(trial.score for trial in found)[-1] == 99.0
    record = regret_record(study, configs, task, found)
    assert record['rewarded']['one'] == ['alignment', 'uniformity'] and len(record['networks']) == 4
    assert record['situations'].keys() == {'one', 'two', SETTINGS, METHODS}
    assert 'training loss' not in record['situations'][METHODS] and HELD_OUT in record['situations'][SETTINGS]
    cell = record['situations']['one']['CLID']
    assert cell['choices'] == 1 and cell['word'] == UNDECIDED and cell['regret'] >= 0
    assert record['situations'][SETTINGS][AT_RANDOM]['correlation'] is None
    page = write_study_page(collect(study, configs, scale, runs, out, measures=record), out / 'page.html').read_text()
    assert 'Choosing without labels' in page and 'alignment</th>' in page and '†' in page
    kept = json.loads((out / 'study.json').read_text(), parse_constant=pytest.fail)[
        'measures'
    ]  # no NaN, which is no JSON
    pooled = pool([out / 'study.json'])['measures']
    assert kept['task'] == pooled['task'] == 'knn' and pooled['situations'].keys() == {SETTINGS, METHODS}
    assert pooled['situations'][SETTINGS]['CLID'] == kept['situations'][SETTINGS]['CLID']


def test_a_search_whose_trials_have_all_diverged_has_no_choice(searched, tmp_path):
    study, configs, *_ = searched
    runs = lay_out(study, configs, study.seeds, ('knn',), tmp_path)
    for run in runs:
        if run.part == 'trial':
            end(run.folder, labels={'knn': 'k-NN'}, diverged='the loss is not finite')
    assert measured_networks(study, configs, runs, ('knn',), print) == ('knn', [])
    assert not list(tmp_path.rglob('chosen.json'))


def test_studies_are_pooled_choice_by_choice_and_what_cannot_be_is_a_sentence(tmp_path, run_tool):
    def study(name: str, seeds: range, margin: float = 1.0) -> str:
        trials = [
            dict(row=row, part='trial', seed=seed, trial=t, along=None, score=50.0 + 5 * t, values=dict(RankMe=t, LiDAR=None))
            for row in 'abc' for seed in seeds for t in range(3)
        ]  # fmt: skip
        record = dict(title=name, scale=dict(name='demo'), measures=dict(task='knn', margin=margin, networks=trials))
        return str(write_json(tmp_path / name, record))

    one, two, other = study('one', range(2)), study('two', range(2)), study('other', range(1), 2.0)
    alone, both = (pool(paths)['measures']['situations'][SETTINGS] for paths in ([one], [one, two]))
    assert (alone['RankMe']['choices'], both['RankMe']['choices']) == (6, 12)
    assert (both['RankMe']['word'], both['RankMe']['regret'], both['RankMe']['correlation']) == (TRUSTED, 0, 1)
    assert both[AT_RANDOM]['regret'] == 5 and 'LiDAR' not in both
    assert '| RankMe | **trusted** 0.0 (0.0 to 0.0), 12, ρ 1.00 |' in markdown(pool([one, two])['measures'])
    run_tool('projects/label_free/pool.py', one, two, '--out', tmp_path / 'pooled.json')
    assert trusted(SETTINGS, f'label_free {tmp_path / "pooled.json"}')[0] == 'RankMe'
    empty = write_json(tmp_path / 'empty.json', {})
    for paths, said in (([one, one], 'given twice'), ([one, other], 'one margin'), ([one, empty], 'with --measures')):
        with pytest.raises(UserError, match=said):
            pool(paths)


def test_a_trial_that_diverged_is_the_worst_and_takes_clid_from_no_other():
    values = [
        {'cluster learnability': cl, 'intrinsic dimension': d} for cl, d in ((80, 3), (math.nan, math.nan), (90, 5))
    ]
    assert goodness_of('CLID', dict(enumerate(values))) == pytest.approx([-2, -math.inf, 2])


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


def test_a_record_that_is_no_studys_is_told(tmp_path):
    (path := tmp_path / 'other.json').write_text('{"measures": {"margin": 1, "situations": [3]}}')
    with pytest.raises(UserError, match=r'measures.situations: expected `object`, got `array`'):
        trusted(SETTINGS, f'label_free {path}')
