"""The fairness check before the first run, rows that become equal at a scale, and models that are listed twice."""

import shutil

import torch
from harness.errors import raises_code
from msgspec.structs import replace
from study.small_studies import LARS, SGD, prepared

from mmairl.registry import MODELS
from mmairl.study.fairness import compare_configs, compare_runs
from mmairl.study.runs import equal_rows, plan_runs
from mmairl.study.scale import read_scale
from mmairl.study.study import Row, Source

GRAY = {
    'train_dataloader.dataset.views': [[dict(type='RandomResizedCrop', size=224, scale=[0.2, 1.0])]]
    * 2
}


def test_undeclared_difference_is_an_error_before_the_first_run(tmp_path):
    with raises_code('undeclared-difference', match='optim_wrapper'):
        prepared(SGD, replace(LARS, declares=()), out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_declared_difference_is_listed(tmp_path):
    (entry,) = compare_configs(prepared(SGD, LARS, out=tmp_path))
    assert 'optim_wrapper.optimizer.type' in entry['found']
    assert entry['undeclared'] == [] and entry['declares'] == ['optim_wrapper']


def test_declaring_one_key_does_not_declare_others(tmp_path):
    row = replace(
        SGD,
        name='b',
        against='SGD',
        declares=('model.queue',),
        options={'total_batch_size': 512},
    )
    small = replace(read_scale('demo'), batch=None)
    with raises_code('undeclared-difference', match='total_batch_size'):
        prepared(SGD, row, out=tmp_path, scale=small)


def test_checkpoint_settings_do_not_count(tmp_path):
    row = replace(
        SGD,
        name='b',
        against='SGD',
        options={'default_hooks.checkpoint.max_keep_ckpts': 3},
    )
    assert compare_configs(prepared(SGD, row, out=tmp_path))[0]['found'] == []


def test_equal_rows_are_noted(tmp_path):
    study = prepared(SGD, replace(SGD, name='b', against='SGD'), out=tmp_path)
    assert 'is noise' in equal_rows(plan_runs(study))[0]


def test_scale_adds_untrained_rows(tmp_path):
    study = prepared(SGD, LARS, out=tmp_path, scale=read_scale('demo'))
    assert [row.untrained for row in study.study.rows] == [
        None,
        None,
        'pixels',
        'random',
    ]


def test_unknown_task_is_an_error(tmp_path):
    with raises_code('unknown-task'):
        prepared(SGD, LARS, out=tmp_path, tasks=['nkn'])


def checkpoint(path, seed):
    torch.manual_seed(seed)
    network = MODELS.build(
        dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8)
    )
    state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
    torch.save(dict(state_dict=state), path)
    return str(path)


def given(tmp_path, files):
    config = tmp_path / 'given.py'
    config.write_text(
        "model = dict(backbone=dict(type='mmpretrain.ResNet', depth=18, stem_channels=8, base_channels=8))\n"
    )
    return Row('given', str(config), source=Source(files=files))


def test_same_model_as_two_seeds_is_an_error(tmp_path):
    first = checkpoint(tmp_path / 'a.pth', 0)
    shutil.copy(first, tmp_path / 'copy.pth')
    row = given(tmp_path, {0: first, 1: str(tmp_path / 'copy.pth')})
    with raises_code('same-model'):
        prepared(row, out=tmp_path)


def test_missing_checkpoint_is_an_error(tmp_path):
    with raises_code('no-checkpoint'):
        prepared(given(tmp_path, {0: str(tmp_path / 'none.pth')}), out=tmp_path)


def test_finished_runs_are_compared_by_code_and_images():
    one, two = (
        dict(images_seen=64, source=source, sources=dict.fromkeys(modules, '1'))
        for source, modules in (('a', ['the source of own']), ('b', []))
    )
    checks = {check['check']: check for check in compare_runs({'x': [one], 'y': [two]})}
    assert checks['images seen']['equal'] and not checks['source of mmairl']['equal']
    assert checks['source of mmairl']['values'] == {'x': 'a', 'y': 'b'}
    assert not checks['source of own modules']['equal']
