"""Faults of a config are told before anything is built; what is right is left alone."""

import pytest

from mmairl.config import load_config
from mmairl.engine.checks import check_config
from mmairl.errors import UserError

WRONG = {
    'a misspelt key of a hook': ({'default_hooks.checkpoint.intervall': 2}, "intervall'; did you mean 'interval'"),
    'a hook without a type': ({'default_hooks.mine': dict(interval=2)}, 'default_hooks.mine has no type'),
    'an unknown schedule': ({'param_scheduler': [dict(type='CosineLR')]}, 'not a registered parameter scheduler'),
    'an unknown sampler': ({'train_dataloader.sampler.type': 'ResumableSampller'}, "did you mean 'ResumableSampler'"),
    'a misspelt key of the scaling rule': ({'auto_scale_lr.base_batchsize': 8}, "did you mean 'base_batch_size'"),
    'a key that ZeRO has not': ({'strategy': dict(type='ZeroStrategy', fp16={})}, "strategy has no key 'fp16'"),
    'a misspelt key deep in the network': (
        {'model.projector.hiden_channels': 64},
        "model.projector has no key 'hiden_channels'; did you mean 'hidden_channels'",
    ),
    'a misspelt type of a part': (
        {'model.head.type': 'ContrastivHead'},
        "check model.head.type; did you mean 'ContrastiveHead'",
    ),
    'a misspelt key of a view': (
        {'model.data_preprocessor.views.0.0.siz': 3},
        "views.0.0 has no key 'siz'; did you mean 'size'",
    ),
    'text for a number': ({'model.queue.length': 'long'}, "model.queue.length='long' is text; set a number"),
    'text for a choice': ({'model.symmetric': 'maybe'}, 'is text; set True or False'),
    'a rate that is no number': ({'optim_wrapper.optimizer.lr': float('nan')}, 'lr=nan is not a number from 0 to inf'),
    'a rate without end': ({'optim_wrapper.optimizer.lr': float('inf')}, 'lr=inf is not a number from 0 to inf'),
    'a momentum that diverges': ({'optim_wrapper.optimizer.momentum': 7}, 'momentum=7 is not a number from 0 to 1'),
    'a negative norm': ({'optim_wrapper.clip_grad': dict(max_norm=-1)}, 'max_norm=-1 is not a number from 0 to inf'),
    'a number for a section': ({'fast': 5}, 'fast=5 is not a section with keys; set fast=dict(precision=...)'),
    'a backbone without a type': ({'model.backbone': dict(depth=18, _delete_=True)}, 'model.backbone has no type'),
    'a misspelt key of the processes': ({'env_cfg.dist_cfg.backnd': 'gloo'}, "did you mean 'backend'"),
    'a misspelt protocol of a recipe': (
        {'recipes': dict(linaer='a')},
        "recipes has no key 'linaer'; did you mean 'linear'",
    ),
    'no channels': ({'model.backbone.base_channels': 0}, 'base_channels=0 is not a whole number of 1 or more'),
    'half an epoch': ({'train_cfg.max_epochs': 1.5}, 'max_epochs=1.5 is not a whole number of 1 or more'),
    'nothing to train': ({'optim_wrapper': None}, 'sets optim_wrapper=None, so there is nothing to train'),
}


@pytest.mark.parametrize('mistake', WRONG)
def test_a_mistake_is_one_sentence_with_its_key(mistake):
    options, sentence = WRONG[mistake]
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.merge_from_dict(options)
    with pytest.raises(UserError) as caught:
        check_config(cfg)
    assert sentence in str(caught.value) and '\n' not in str(caught.value)


def test_parts_of_other_packages_and_of_users_are_left_alone():
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.custom_hooks = [dict(type='EMAHook', momentum=0.01, priority='LOW'), dict(type='mmengine.EmptyCacheHook')]
    cfg.default_hooks.health = None
    check_config(cfg)


def test_a_variable_that_the_config_has_used_up_cannot_be_overridden(tmp_path):
    path = tmp_path / 'mine.py'
    path.write_text("_base_ = 'mmairl::demo/mocov2plus_shapes.py'\nlength = 3\ntrain_cfg = dict(max_epochs=length)\n")
    with pytest.raises(UserError, match="'length' is a variable of the config"):
        load_config(path, {'length': 5})
