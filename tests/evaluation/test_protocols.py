"""Tests of every protocol for labeled images, and of one that is not in the package (`class_means.py`).

Two processes also run this file as a script. Their scores must equal those of one process.
"""

import dataclasses
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from class_means import NearestClassMean
from harness.errors import raises_code
from mmengine.dist import is_main_process

from mmairl.apis.compare import compare
from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.identity import difference, identity_of
from mmairl.evaluation.protocol import BASELINES, evaluate, settings_for
from mmairl.evaluation.sets import described_sets
from mmairl.io import write_json
from mmairl.registry import DATASETS, PROTOCOLS
from mmairl.signals import stop_processes
from mmairl.study.pages.study_tables import latex
from mmairl.study.scale import read_scale
from mmairl.study.task_hours import task_hours
from mmairl.study.task_names import is_local, is_measured, require_known

ROOT = Path(__file__).parents[2]


def is_for_labeled_images(name: str) -> bool:
    """Return whether this file tests a protocol. Other files test dense protocols and protocols without labels."""
    kind = PROTOCOLS.get(name)
    return 'dense' not in kind.labels and kind.metric != 'none'


NAMES = list(filter(is_for_labeled_images, PROTOCOLS.names()))
ON_FEATURES = [name for name in NAMES if not PROTOCOLS.get(name).trains]
if __name__ != '__main__':
    # The nearest-class-mean protocol is registered only during the tests of this file.
    del PROTOCOLS.module_dict['ncm']
TINY = """
_base_ = '{root}/configs/evaluation/shapes_r18.py'
custom_imports = dict(imports=['class_means'])
model = dict(backbone=dict(base_channels=8, stem_channels=8), in_channels=64)
evaluation = dict(train=dict(count=101, size=24), test=dict(count=51, size=24), batch_size=16, ks=[5, 20])
"""
RECIPE = """
_base_ = '{root}/configs/_base_/recipes/linear_shapes_20e.py'
train_view = [dict(type='Resize', size=24), dict(type='CenterCrop', size=24)]  # nothing at random
total_batch_size = 20
train_cfg = dict(max_epochs=2)
param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=True, begin=0, end=2, convert_to_iter_based=True, eta_min=0.0)]
randomness = dict(seed=0)
"""


@pytest.fixture(scope='module', autouse=True)
def ncm():
    PROTOCOLS.module_dict['ncm'] = NearestClassMean
    yield
    del PROTOCOLS.module_dict['ncm']


def settings_of(name: str, folder: Path, **options):
    """Return settings with which the protocol takes only seconds."""
    if PROTOCOLS.get(name).trains:
        recipe = folder / 'recipe.py'
        recipe.write_text(RECIPE.format(root=ROOT))
        options['recipe'] = str(recipe)
    return settings_for(name, **options)


def measure_all(folder: Path, processes: str) -> dict[str, dict[str, float]]:
    launcher = 'pytorch' if 'RANK' in os.environ else 'none'
    cfg = load_config(str(folder / 'tiny.py'))
    results = {}
    for name in NAMES:
        place = dict(cache=folder / f'{processes}_features', work_dir=folder / processes / name)
        settings = settings_of(name, folder, launcher=launcher, **place)
        results[name] = evaluate(cfg, name, folder / 'start.pth', settings=settings).scores
    first, second = (name for name in NAMES if PROTOCOLS.get(name).trains)
    settings = settings_of(second, folder, launcher=launcher, work_dir=folder / processes / first)
    # If the main process raises an error, all processes raise it.
    with raises_code('other-result'):
        evaluate(cfg, second, folder / 'start.pth', settings=settings)
    return results


def random_checkpoint(config: Path, folder: Path, seed: int) -> Path:
    state = load_backbone(load_config(str(config)), None, seed=seed).state_dict()
    path = folder / f'start_{seed}.pth'
    torch.save(dict(state_dict={f'backbone.{key}': value for key, value in state.items()}), path)
    return path


@pytest.fixture(scope='module')
def measured(tmp_path_factory, run_processes) -> Path:
    """Return a folder with the scores of all protocols, measured by one process and by two."""
    folder = tmp_path_factory.mktemp('protocols')
    register()
    (folder / 'tiny.py').write_text(TINY.format(root=ROOT))
    random_checkpoint(folder / 'tiny.py', folder, 3).rename(folder / 'start.pth')
    write_json(folder / 'one.json', measure_all(folder, 'one'))
    run_processes(2, __file__, folder)
    return folder


@pytest.mark.parametrize('name', NAMES)
def test_two_processes_score_as_one(measured, name):
    one, two = (json.loads((measured / f'{processes}.json').read_text())[name] for processes in ('one', 'two'))
    assert all(one.values()), 'a score is 0, so two processes could have the same score by chance'
    assert two == pytest.approx(one, abs=1e-3)


def test_two_processes_extract_the_same_features(measured):
    stored = sorted((measured / 'one_features').glob('*.npy'))
    assert len(stored) == 2, 'the protocols do not share the features of training and test images'
    for path in stored:
        np.testing.assert_allclose(np.load(path), np.load(measured / 'two_features' / path.name), atol=1e-5)


# For settings whose default is None or empty: another valid value.
VALUES = dict(
    gallery='train', ks=(5,), recipe='finetune_shapes', sweep=True, trials=({'optim_wrapper.optimizer.lr': 0.1},)
)


def another(value: object, name: str) -> object:
    if name in VALUES:
        return VALUES[name]
    return not value if isinstance(value, bool) else (value or 0) + 1


@pytest.mark.parametrize('name', NAMES)
def test_identity_follows_each_setting(cfg, checkpoint, name):
    cfg.recipes = dict.fromkeys(NAMES, 'linear_shapes_20e')
    backbone = read_backbone(checkpoint)
    plain = settings_for(name)
    base = identity_of(cfg, plain, backbone)
    assert not difference(base, identity_of(cfg, plain, read_backbone(checkpoint)))
    for setting in dataclasses.fields(plain):
        neutral = bool(setting.metadata.get('neutral'))
        value = 'other' if neutral else another(getattr(plain, setting.name), setting.name)
        changed = identity_of(cfg, dataclasses.replace(plain, **{setting.name: value}), backbone)
        assert bool(difference(base, changed)) != neutral, setting.name


@pytest.mark.parametrize('name', NAMES)
def test_settings_of_other_protocols_are_errors(name):
    names = {setting.name for setting in dataclasses.fields(PROTOCOLS.get(name))}
    every = {setting.name for other in NAMES for setting in dataclasses.fields(PROTOCOLS.get(other))}
    for setting in {*every, 'no_such_setting'} - names:
        with raises_code('unknown-setting'):
            settings_for(name, **{setting: 1})


@pytest.mark.parametrize('name', NAMES)
def test_multi_label_images_are_scored_or_rejected(cfg, tmp_path, name):
    cfg.evaluation.train = dict(type='Labeled', several=True)
    cfg.evaluation.test = dict(type='Labeled', several=True, count=30, seed=1)
    settings = settings_of(name, tmp_path, work_dir=tmp_path / 'run')
    if 'multi' in settings.labels:
        scores = evaluate(cfg, name, 'random', settings=settings).scores
        assert 'mAP' in next(iter(scores))
    else:
        with raises_code('unsupported-labels'):
            evaluate(cfg, name, 'random', settings=settings)


@pytest.mark.parametrize('name', NAMES)
def test_validation_images_are_used_as_declared(cfg, name):
    train, val = dict(type='STL10', split='train'), dict(type='STL10', split='val')
    cfg.evaluation.update(train=train, val=val)
    cfg.recipes = dict.fromkeys(NAMES, 'linear_shapes_20e')
    settings = settings_for(name)
    joined = settings.validation == 'join'
    described = described_sets(cfg, name)
    assert described['train']['split'] == ('train+val' if joined else 'train')
    assert ('val' in described) != joined
    assert settings.chooses(cfg) == (settings.validation == 'choose')
    assert settings.chooses(cfg, trials=True) != joined


# Retrieval has no classes that could be unseen.
@pytest.mark.parametrize('name', [name for name in ON_FEATURES if name != 'retrieval'])
def test_unseen_class_is_wrong_or_an_error(cfg, name):
    cfg.evaluation.train = dict(type='Labeled', classes=2)
    try:
        result = evaluate(cfg, name, 'pixels', settings=settings_for(name))
    except UserError as error:
        assert 'class' in str(error)
        return
    assert max(result.scores.values()) <= 100 * 2 / 3
    assert result.left_out == {'classes without a training image': 1}


@pytest.mark.parametrize('name', NAMES)
def test_cost_and_null_rows_are_stated(cfg, name):
    cfg.recipes = dict.fromkeys(NAMES, 'linear_shapes_20e')
    settings = settings_for(name)
    assert settings.images_seen(cfg, 100) >= 100
    assert settings.null_rows and set(settings.null_rows) <= set(BASELINES)
    assert is_local(name) and is_local(f'{name}#1') == settings.trains
    assert [kind for kind in BASELINES if is_measured(kind, name)] == sorted(settings.null_rows, key=BASELINES.index)


@pytest.mark.parametrize('name', ON_FEATURES)
def test_score_names_follow_the_metric_as_declared(cfg, name, monkeypatch):
    settings = settings_for(name)
    names = {}
    for metric in ('top-1', 'mean per class'):
        monkeypatch.setattr(DATASETS.get('Noise'), 'metric', metric)
        names[metric] = next(iter(evaluate(cfg, name, 'pixels', settings=settings).scores))
    assert (names['top-1'] != names['mean per class']) == (settings.metric == 'dataset')


def test_outside_protocol_runs_on_the_command_line(tmp_path, run_tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'tiny.py').write_text(TINY.format(root=ROOT))
    checkpoint = random_checkpoint(tmp_path / 'tiny.py', tmp_path, 0)
    run_tool('tools/evaluate.py', 'ncm', 'tiny.py', checkpoint, '--settings', 'center=False')
    record = json.loads((tmp_path / 'start_0_student_ncm.json').read_text())
    assert record['scores']['nearest class mean, top-1'] > 0
    assert record['identity']['protocol'] == dict(name='ncm', center=False)
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/evaluate.py', 'ncm', 'tiny.py', checkpoint, '--k', 3)


def test_protocol_from_outside_has_a_cost_in_studies():
    require_known(['ncm'])
    cfg = load_config('mmairl::evaluation/shapes_r18.py')
    hours = task_hours(cfg, ['ncm', 'knn'], read_scale('demo'))
    assert hours['ncm'] > 0 and hours['knn'] == 0, 'the time to extract features is not counted in the first task only'


@pytest.mark.slow
def test_protocol_from_outside_is_a_task_of_studies(tmp_path, monkeypatch):
    (tmp_path / 'tiny.py').write_text(TINY.format(root=ROOT))
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    monkeypatch.setenv('PYTHONPATH', paths)
    first, *others = (random_checkpoint(tmp_path / 'tiny.py', tmp_path, seed) for seed in range(4))
    networks = dict(a=[first, others[0]], b=others[1:])
    judged = compare(networks, data=str(tmp_path / 'tiny.py'), tasks=['ncm'], out=tmp_path / 'out', jobs=1)
    rows = {row['name']: row for row in judged.record['rows']}
    assert {'a', 'b', 'random initialisation'} <= rows.keys()
    assert all(math.isfinite(run['scores']['ncm']) for row in rows.values() for run in row['runs'])
    assert 'nearest class mean' in (tmp_path / 'out' / 'page.html').read_text()
    assert 'nearest class mean' in latex(judged.record)


if __name__ == '__main__':
    register()
    results = measure_all(Path(sys.argv[1]), 'two')
    if is_main_process():
        write_json(Path(sys.argv[1]) / 'two.json', results)
    stop_processes()
