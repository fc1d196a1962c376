"""Test changes in the source code of modules outside the package and of evaluation protocols.

This includes results of earlier versions, which did not record any source code.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from filelock import FileLock
from harness.errors import raises_code
from mmengine import Config
from study.small_runs import toy_scale
from study.test_stale import leave_weights

from mmairl.checkpoints.read import read_backbone
from mmairl.engine.run import register
from mmairl.evaluation import sources
from mmairl.evaluation.identity import _earlier_weights_identity, is_verified
from mmairl.io import read_json, write_json
from mmairl.study import worker
from mmairl.study.collect import collect, describe, watched_tests
from mmairl.study.fairness import at_scale
from mmairl.study.pages.study_page import write_study_page
from mmairl.study.pages.study_tables import markdown
from mmairl.study.planner import measure_again, plan_runs, prepare_runs
from mmairl.study.runs import Run, status, unfinished
from mmairl.study.scale import read_scale
from mmairl.study.schema import Trained
from mmairl.study.spec import read_study

CONFIG = 'mocov2plus_r50_200e.py'
OWN = {
    'custom_imports': dict(imports=['outside_method'], allow_failed_imports=False),
    'model.head.temperature': 0.3,
}
STUDY = dict(
    title='t',
    seeds=[0],
    rows=[
        dict(name='base', config=CONFIG),
        dict(name='own', config=CONFIG, options=OWN, declares=['custom_imports', 'model'], factor='code'),
        dict(name='half', config=CONFIG, along=dict(of='own', part='1/2'), against='own'),
    ],
)


class Planned:
    """A study in a folder. Its checkpoints are written by `leave_weights` instead of being trained."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / 'out'

    def __call__(self, act: Callable[..., list[Run]] = plan_runs) -> list[Run]:
        scale = read_scale(str(self.folder / 'toy.yaml'))
        self.study, self.configs, _ = at_scale(read_study(self.folder / 'study.yaml'), scale, ['knn'])
        return act(self.study, self.configs, [0], ['knn'], self.out)

    def finish(self, runs: list[Run]) -> None:
        for run in runs:
            if run.asked.trains and not (run.folder / 'trained.json').is_file():
                leave_weights(run.folder, seed=len(run.row.name))
                trained = read_json(run.folder / 'trained.json', Trained)
                trained.sources = run.asked.sources
                write_json(run.folder / 'trained.json', trained)
            worker.complete_run(run.folder)
        assert all(run.done for run in self())

    def record(self) -> dict:
        runs, scale = self(), read_scale(str(self.folder / 'toy.yaml'))
        return collect(self.study, self.configs, scale, runs, self.out)


def find_modules_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    for name in ('outside_method', 'outside_helper'):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture(scope='module')
def finished(tmp_path_factory) -> tuple[Path, Path]:
    """Return a folder with finished runs, and a copy of the folder."""
    folder = tmp_path_factory.mktemp('sources') / 'study'
    folder.mkdir()
    (folder / 'outside_method.py').write_text('import outside_helper\n')
    (folder / 'outside_helper.py').write_text('weight = 1.0\n')
    (folder / 'study.yaml').write_text(yaml.safe_dump(STUDY))
    scale = toy_scale(64, epochs=0.015, tasks=['knn'], floor=[])
    (folder / 'toy.yaml').write_text(yaml.safe_dump(scale))
    register()
    planned = Planned(folder)
    with pytest.MonkeyPatch.context() as patch:
        find_modules_in(folder, patch)
        planned.finish(planned(prepare_runs))
    return folder, shutil.copytree(folder, folder.with_name('copy'))


@pytest.fixture
def planned(finished, monkeypatch) -> Planned:
    """Return the finished study. Its path is the same in each test, because its files contain absolute paths."""
    folder, copy = finished
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    find_modules_in(folder, monkeypatch)
    return Planned(folder)


def stored(run: Run) -> list[Path]:
    return sorted(run.folder.glob('knn_*.json'))


def test_changed_method_is_trained_again_and_kept(planned):
    before = planned()[1].result.scores
    (planned.folder / 'outside_helper.py').write_text('weight = 0.0\n')
    base, trained_run, half = planned()
    assert [run.done for run in (base, trained_run, half)] == [True, False, True]
    assert status(trained_run) == ('stale', 'the source of outside_helper')
    assert unfinished([base, trained_run, half]) == [trained_run, half], (
        "row 'half' is finished, although it uses weights of row 'own'"
    )
    assert describe(trained_run, planned.out)['state'] == 'replaced'
    assert 'own, seed 0: the checkpoint, data, settings or source changed later' in markdown(planned.record())
    planned(prepare_runs)
    old_folder = trained_run.folder.with_name('seed_0_set_aside_1')
    assert not (trained_run.folder / 'trained.json').exists()
    assert json.loads((old_folder / 'result.json').read_text())['scores'] == before
    planned.finish(planned())
    assert not (planned()[1].folder / 'seed_0_set_aside_2').exists()


def test_comment_or_unused_module_changes_nothing(planned):
    (planned.folder / 'outside_helper.py').write_text('weight = 1.0  # of the loss\n')
    (planned.folder / 'unused.py').write_text('value = 1\n')
    assert all(run.done for run in planned(prepare_runs))


def test_half_trained_run_of_other_source_is_stale(planned):
    trained_run = planned()[1]
    for name in ('result.json', 'trained.json'):
        (trained_run.folder / name).unlink()
    (planned.folder / 'outside_method.py').write_text('import outside_helper\nvalue = 2\n')
    assert status(planned()[1]) == ('stale', 'the source of outside_method')
    with raises_code('source-changed'):
        worker.complete_run(trained_run.folder)  # This is what a requeued job does


def test_running_run_is_not_set_aside(planned):
    (planned.folder / 'outside_method.py').write_text('value = 2\n')
    trained_run = planned()[1]
    with FileLock(trained_run.folder / '.lock_0'):
        with raises_code('source-changed-while-running'):
            planned(prepare_runs)
        with raises_code('remeasure-running'):
            measure_again([trained_run])
    assert trained_run.folder.is_dir() and trained_run.result


def test_corrected_protocol_is_measured_again(planned, tmp_path, monkeypatch):
    room = tmp_path / 'mmairl' / 'evaluation'
    shutil.copytree(sources.PACKAGE / 'evaluation', room, ignore=shutil.ignore_patterns('__pycache__'))
    monkeypatch.setattr(sources, 'PACKAGE', room.parent)
    assert all(run.done for run in planned())
    (room / 'knn.py').write_text((room / 'knn.py').read_text() + '\nEDITED = 1\n')
    assert all(run.stale_reason.startswith('knn: sources.protocol (') for run in planned())
    trained = [run.folder / 'trained.json' for run in planned()]
    before = [path.stat().st_mtime_ns for path in trained]
    planned.finish(planned(prepare_runs))
    assert [len(stored(run)) for run in planned()] == [2, 2, 2]
    assert [path.stat().st_mtime_ns for path in trained] == before


def test_scores_are_replaced_by_remeasure(planned):
    runs = planned()
    for run in runs:
        (path,) = stored(run)
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, 'scores': {'k-NN, k = 20': -1.0}}))
        (run.folder / 'result.json').unlink()
    planned.finish(runs)
    assert planned()[0].result.scores == {'knn': -1.0}, 'the stored score is not used'
    measure_again(planned())
    assert not any(run.result or stored(run) for run in runs)
    planned.finish(runs)
    assert planned()[0].result.scores['knn'] >= 0


def as_earlier(run: Run) -> None:
    """Rewrite the files of a run as an earlier version wrote them: without sources, and with the earlier digest of
    weights.
    """
    weights = {run.result.weights: _earlier_weights_identity(read_backbone(run.folder / run.result.checkpoint).weights)}
    if run.row.along:
        source = read_backbone(run.folder.parents[1] / 'own/seed_0/iter_4.pth')
        weights[run.result.made['of']] = _earlier_weights_identity(source.weights)
    for name in ('asked.json', 'trained.json', 'result.json', *(path.name for path in stored(run))):
        text = (run.folder / name).read_text()
        for new, old in weights.items():
            text = text.replace(new, old)
        content = json.loads(text)
        for identity in [content.get('identity', {}), *content.get('identities', {}).values(), content]:
            identity.pop('sources', None)
        if name == 'result.json':
            content.pop('weights')
        (run.folder / name).write_text(json.dumps(content))


def test_results_of_earlier_versions_are_labeled(planned):
    for run in planned():
        as_earlier(run)
    runs = planned(prepare_runs)
    assert [run.stale_reason for run in runs] == ['', '', '']
    assert [describe(run, planned.out)['unverified'] for run in runs] == [['knn'], ['training', 'knn'], ['knn']]
    record = planned.record()
    assert 'the source code of 3 runs is not fully known' in markdown(record)
    page = write_study_page(record, planned.out / 'page.html').read_text()
    assert 'code, identity unknown' in page and 'own: knn, training' in page
    for run in runs:
        (run.folder / 'result.json').unlink()
        worker.complete_run(run.folder)
    assert [len(stored(run)) for run in runs] == [1, 1, 1], 'a score was measured again'
    assert not any(is_verified(run.result.identities['knn']) for run in planned())
    (planned.folder / 'outside_helper.py').write_text('weight = 0.0\n')
    assert planned(prepare_runs)[1].done, 'a run with an unknown source does not count as finished'
    measure_again(planned())
    planned.finish(planned())
    assert [describe(run, planned.out).get('unverified') for run in planned()] == [None, ['training'], None]


def test_earlier_result_of_other_weights_is_stale(planned):
    for run in planned():
        as_earlier(run)
    _, trained_run, half = planned()
    leave_weights(trained_run.folder, seed=9)
    assert trained_run.stale_reason == 'checkpoint' and half.stale_reason.startswith('weights: of (')


def test_checkpoint_that_is_saved_again_is_the_same(planned):
    base = planned()[0]
    path = base.folder / 'iter_8.pth'
    torch.save(dict(torch.load(path, weights_only=True), more=1), path)
    assert base.done
    leave_weights(base.folder, seed=9)
    assert base.stale_reason == 'checkpoint'


def test_page_states_what_equal_code_covers(planned):
    record = planned.record()
    text = write_study_page(record, planned.out / 'page.html').read_text()
    assert 'The code of two runs is equal if the commit and all Python files of mmairl are equal' in text
    assert 'source of outside_helper' in text
    checks = {check['check']: check for check in record['fairness']['after']}
    assert checks['code']['equal'] and ', source ' in checks['code']['values']['base']
    assert checks['source of outside_method']['values'].keys() == {'own', 'half'}


def test_rows_that_watch_test_images_are_named():
    hooks = {name: [dict(type='OnlineKNNHook', images=name)] for name in ('held_out', 'test')}
    configs = {name: Config(dict(custom_hooks=custom_hooks)) for name, custom_hooks in hooks.items()}
    (sentence,) = watched_tests(configs)
    assert "'test'" in sentence
