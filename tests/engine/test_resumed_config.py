"""If the config of a resumed run has changed, the change is applied and logged, or is an error."""

from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.engine.checkpoint import load_checkpoint, settings
from mmairl.engine.resume import config_changes
from mmairl.errors import UserError


def config(folder: Path, **how: object):
    cfg = resuming.config('shuffle_bn', str(folder), **how)
    cfg.custom_hooks = [hook for hook in cfg.custom_hooks if hook['type'] == 'LeaveAt']
    return cfg


@pytest.fixture(scope='module')
def interrupted(tmp_path_factory) -> Path:
    """Return the checkpoint of iteration 8 of a run of 15 iterations."""
    return resuming.run(config(tmp_path_factory.mktemp('left'), leave_at=9))


def resumed(interrupted: Path, folder: Path, change=lambda cfg: None, checkpoint: dict | None = None):
    """Resume for one iteration with a changed config. Return the new checkpoint and the log."""
    source = interrupted
    if checkpoint is not None:
        source = folder / 'changed.pth'
        torch.save(checkpoint, source)
    cfg = config(folder / 'run', leave_at=9, resume=True)
    cfg.load_from = str(source)
    cfg.default_hooks.checkpoint.interval = 1
    change(cfg)
    resuming.run(cfg)
    return load_checkpoint(folder / 'run' / 'iter_9.pth'), next((folder / 'run').rglob('*.log')).read_text()


def rate(checkpoint: dict) -> float:
    return checkpoint['optimizer']['param_groups'][0]['lr']


def test_changed_hyperparameters_apply_and_are_logged(interrupted, tmp_path):
    before, log = resumed(interrupted, tmp_path / 'before')
    assert 'differs from the one in the checkpoint' not in log and 'resumed after epoch 1, iteration 8' in log

    def change(cfg) -> None:
        cfg.optim_wrapper.optimizer.update(lr=2 * cfg.optim_wrapper.optimizer.lr, weight_decay=0.25, momentum=0.5)

    after, log = resumed(interrupted, tmp_path / 'after', change)
    group = after['optimizer']['param_groups'][0]
    assert (group['weight_decay'], group['momentum']) == (0.25, 0.5)
    assert rate(after) == pytest.approx(2 * rate(before), rel=1e-9)
    assert 'optim_wrapper.optimizer.weight_decay: 0.0001 -> 0.25 (applied)' in log
    checkpoint = load_checkpoint(interrupted)
    del checkpoint['param_schedulers'], checkpoint['message_hub']
    without, _ = resumed(interrupted, tmp_path, checkpoint=checkpoint)
    assert rate(without) == rate(before), 'a run whose checkpoint has no schedules does not use those of the config'


def test_longer_schedule_equals_a_long_run(interrupted, tmp_path):
    def longer(cfg) -> None:
        cfg.train_cfg.max_epochs = cfg.param_scheduler[0].end = 6

    whole = config(tmp_path / 'whole', leave_at=9)
    longer(whole)
    whole.default_hooks.checkpoint.interval = 1
    expected = load_checkpoint(resuming.run(whole))
    checkpoint, log = resumed(interrupted, tmp_path, longer)
    assert rate(checkpoint) == rate(expected) and checkpoint['param_schedulers'] == expected['param_schedulers']
    assert 'rebuilt for the whole run' in log and 'train_cfg.max_epochs: 3 -> 6' in log


def test_longer_run_with_a_short_schedule_raises(interrupted, tmp_path):
    with raises_code('other-length', match=r'param_scheduler\.0\.end'):
        resumed(interrupted, tmp_path, lambda cfg: cfg.train_cfg.update(max_epochs=6))


def test_longer_run_may_append_a_schedule(tmp_path):
    def with_warm_up(folder: Path, length: int, **how) -> Config:
        cfg = config(folder, **how)
        cfg.train_cfg = dict(by_epoch=False, max_iters=length)
        cfg.default_hooks.checkpoint.interval = 1
        how = dict(by_epoch=False, begin=4, end=length)
        cfg.param_scheduler = [
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=4),
            *([dict(type='CosineAnnealingLR', eta_min=0.0, **how)] if length > 4 else []),
        ]
        return cfg

    resuming.run(with_warm_up(tmp_path, 4))
    cfg = with_warm_up(tmp_path / 'longer', 8, resume=True)
    cfg.load_from = str(tmp_path / 'iter_4.pth')
    assert resuming.run(cfg).name == 'iter_8.pth'


def test_other_version_is_logged(interrupted, tmp_path):
    checkpoint = load_checkpoint(interrupted)
    checkpoint['meta']['mmairl_version'] = '0.0.9'
    _, log = resumed(interrupted, tmp_path, checkpoint=checkpoint)
    assert 'mmairl: 0.0.9 -> ' in log


LARS = dict(type='LARS', lr=0.1)


@pytest.mark.parametrize(
    'change, code',
    [
        (lambda cfg: cfg.train_dataloader.dataset.update(count=51), 'other-images'),
        (lambda cfg: cfg.optim_wrapper.update(optimizer=LARS), 'other-optimizer'),
        (
            lambda cfg: cfg.optim_wrapper.update(paramwise_cfg=dict(norm_decay_mult=0.0)),
            'malformed-checkpoint',
        ),
    ],
)
def test_change_that_cannot_resume_raises(interrupted, tmp_path, change, code):
    with raises_code(code, match='load_from without resume'):
        resumed(interrupted, tmp_path, change)


@pytest.mark.parametrize(
    'spoil',
    [
        lambda one: one['optimizer'].pop('param_groups'),
        lambda one: one['meta'].update(iter='8'),
        lambda one: one['meta'].update(run=5),
        lambda one: one.update(message_hub=[]),
        lambda one: one.update(random_states=[{}]),
    ],
)
def test_malformed_checkpoint_raises(interrupted, tmp_path, spoil):
    checkpoint = load_checkpoint(interrupted)
    spoil(checkpoint)
    with pytest.raises(UserError) as caught:
        resumed(interrupted, tmp_path, checkpoint=checkpoint)
    assert caught.value.code in ('malformed-checkpoint', 'not-a-training-checkpoint')
    assert '\n' not in str(caught.value)


def test_settings_are_compared_by_their_keys():
    old = settings(Config(dict(model=dict(type='A', layers=[dict(n=1)], size=(1, 2)), randomness=dict(seed=1), x=1)))
    new = settings(Config(dict(model=dict(type='A', layers=[dict(n=2)], size=[1, 2]), randomness=dict(seed=2), x=2)))
    assert config_changes(old, new) == [
        ('model.layers.0.n', '1', '2', 'applied'),
        ('randomness.seed', '1', '2', "the checkpoint's value is kept"),
    ]
    assert config_changes(None, new) == config_changes('foreign', new) == []
