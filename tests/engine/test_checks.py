"""Mistakes in a config raise an error before anything is built."""

import re

import pytest
from harness.errors import raises_code

from mmairl.config import load_config
from mmairl.engine import speed
from mmairl.engine.checks import check_config

# Each mistake has the code of its error, and the key or the advice that the message must contain.
MISTAKES = {
    'misspelled hook key': (
        {'default_hooks.checkpoint.intervall': 2},
        'unknown-key',
        "did you mean 'interval'",
    ),
    'hook without a type': (
        {'default_hooks.mine': dict(interval=2)},
        'no-type',
        'default_hooks.mine',
    ),
    'unknown schedule': (
        {'param_scheduler': [dict(type='CosineLR')]},
        'unknown-type',
        'param_scheduler.0.type',
    ),
    'unknown sampler': (
        {'train_dataloader.sampler.type': 'ResumableSampller'},
        'unknown-type',
        "did you mean 'ResumableSampler'",
    ),
    'misspelled scaling rule': (
        {'auto_scale_lr.base_batchsize': 8},
        'unknown-key',
        "did you mean 'base_batch_size'",
    ),
    'unknown key of ZeRO': (
        {'strategy': dict(type='ZeroStrategy', fp16={})},
        'unknown-key',
        "'fp16'",
    ),
    'misspelled key of a projector': (
        {'model.projector.hiden_channels': 64},
        'unknown-key',
        "model.projector has no key 'hiden_channels'; did you mean 'hidden_channels'",
    ),
    'misspelled type': (
        {'model.head.type': 'ContrastivHead'},
        'unknown-type',
        "did you mean 'ContrastiveHead'",
    ),
    'misspelled key of a view': (
        {'model.data_preprocessor.views.0.0.siz': 3},
        'unknown-key',
        "views.0.0 has no key 'siz'; did you mean 'size'",
    ),
    'text for a number': ({'model.queue.length': 'long'}, 'wrong-type', 'model.queue.length'),
    'text for a choice': ({'model.symmetric': 'maybe'}, 'wrong-type', 'True or False'),
    'rate is NaN': ({'optim_wrapper.optimizer.lr': float('nan')}, 'bad-number', '0 to inf'),
    'infinite rate': ({'optim_wrapper.optimizer.lr': float('inf')}, 'bad-number', '0 to inf'),
    'momentum above 1': ({'optim_wrapper.optimizer.momentum': 7}, 'bad-number', '0 to 1'),
    'negative norm': ({'optim_wrapper.clip_grad': dict(max_norm=-1)}, 'bad-number', 'max_norm'),
    'number for a section': ({'fast': 5}, 'not-a-section', 'fast=dict(precision=...)'),
    'backbone without a type': (
        {'model.backbone': dict(depth=18, _delete_=True)},
        'no-type',
        'model.backbone',
    ),
    'misspelled backend': (
        {'env_cfg.dist_cfg.backnd': 'gloo'},
        'unknown-key',
        "did you mean 'backend'",
    ),
    'misspelled protocol': ({'recipes': dict(linaer='a')}, 'unknown-key', "did you mean 'linear'"),
    'no channels': ({'model.backbone.base_channels': 0}, 'bad-count', 'at least 1'),
    'half an epoch': ({'train_cfg.max_epochs': 1.5}, 'bad-count', 'train_cfg.max_epochs'),
    'nothing to train': ({'optim_wrapper': None}, 'not-a-training-config', 'optim_wrapper'),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_mistake_raises_one_line_with_its_key(mistake):
    options, code, text = MISTAKES[mistake]
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.merge_from_dict(options)
    with raises_code(code) as caught:
        check_config(cfg)
    message = str(caught.value)
    assert text in message
    assert '\n' not in message


def test_every_documented_optimization_passes():
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    documented = re.findall(r'^ {8}(\w+)=', speed.__doc__, re.M)
    assert 'fused' in documented
    cfg.fast = dict.fromkeys(documented)
    check_config(cfg)


def test_parts_of_other_packages_pass():
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.custom_hooks = [
        dict(type='EMAHook', momentum=0.01, priority='LOW'),
        dict(type='mmengine.EmptyCacheHook'),
    ]
    cfg.default_hooks.health = None
    check_config(cfg)


def test_variable_of_a_config_cannot_be_overridden(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmairl::demo/mocov2plus_shapes.py'\nlength = 3\ntrain_cfg = dict(max_epochs=length)\n")
    with raises_code('config-variable', match='length'):
        load_config(path, {'length': 5})
