"""A change in a resumed run's config holds from there on, or is refused, and is said."""

from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from mmengine.config import Config

from mmairl.engine.checkpoint import load_checkpoint, settings
from mmairl.engine.resume import config_changes
from mmairl.errors import UserError


def config(folder: Path, **how: object):
    cfg = resuming.config('shuffle_bn', str(folder), **how)
    cfg.custom_hooks = [hook for hook in cfg.custom_hooks if hook['type'] == 'LeaveAt']
    return cfg


@pytest.fixture(scope='module')
def left(tmp_path_factory) -> Path:
    """The checkpoint of a run of 15 iterations, left after the eighth."""
    return resuming.run(config(tmp_path_factory.mktemp('left'), leave_at=9))


def resumed(left: Path, folder: Path, change=lambda cfg: None, checkpoint: dict | None = None):
    """The run of a changed config, one iteration after the checkpoint, and what its log says."""
    source = left
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


def test_only_a_changed_rate_decay_or_momentum_holds_from_there_on_and_is_spoken_of(left, tmp_path):
    before, log = resumed(left, tmp_path / 'before')
    assert 'differs from the one in the checkpoint' not in log and 'resumed after epoch 1, iteration 8' in log

    def change(cfg) -> None:
        cfg.optim_wrapper.optimizer.update(lr=2 * cfg.optim_wrapper.optimizer.lr, weight_decay=0.25, momentum=0.5)

    after, log = resumed(left, tmp_path / 'after', change)
    group = after['optimizer']['param_groups'][0]
    assert (group['weight_decay'], group['momentum']) == (0.25, 0.5)
    assert rate(after) == pytest.approx(2 * rate(before), rel=1e-9)
    assert 'optim_wrapper.optimizer.weight_decay: 0.0001 -> 0.25 (applied)' in log
    checkpoint = load_checkpoint(left)
    del checkpoint['param_schedulers'], checkpoint['message_hub']
    without, _ = resumed(left, tmp_path, checkpoint=checkpoint)
    assert rate(without) == rate(before), 'a checkpoint without schedules gets those of the config'


def test_a_longer_schedule_is_the_one_of_a_run_that_was_long_from_the_start(left, tmp_path):
    def longer(cfg) -> None:
        cfg.train_cfg.max_epochs = cfg.param_scheduler[0].end = 6

    whole = config(tmp_path / 'whole', leave_at=9)
    longer(whole)
    whole.default_hooks.checkpoint.interval = 1
    wanted = load_checkpoint(resuming.run(whole))
    found, log = resumed(left, tmp_path, longer)
    assert rate(found) == rate(wanted) and found['param_schedulers'] == wanted['param_schedulers']
    assert 'rebuilt for the whole run' in log and 'train_cfg.max_epochs: 3 -> 6' in log


def test_a_longer_run_whose_schedule_ends_early_is_refused_with_the_flag_that_chooses(left, tmp_path):
    with pytest.raises(UserError, match=r'max_iters is 30 now.* still ends at 15.*param_scheduler.0.end'):
        resumed(left, tmp_path, lambda cfg: cfg.train_cfg.update(max_epochs=6))


def test_a_longer_run_goes_on_where_a_warm_up_ends_and_a_cosine_follows(tmp_path):
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


def test_another_version_of_ours_is_said(left, tmp_path):
    checkpoint = load_checkpoint(left)
    checkpoint['meta']['mmairl_version'] = '0.0.9'
    _, log = resumed(left, tmp_path, checkpoint=checkpoint)
    assert 'mmairl: 0.0.9 -> ' in log


LARS = dict(type='LARS', lr=0.1)


@pytest.mark.parametrize(
    'change, sentence',
    [
        (lambda cfg: cfg.train_dataloader.dataset.update(count=51), 'was made with 43 images and this run has 51'),
        (lambda cfg: cfg.optim_wrapper.update(optimizer=LARS), "optimizer is SGD and the config's is LARS"),
        (
            lambda cfg: cfg.optim_wrapper.update(paramwise_cfg=dict(norm_decay_mult=0.0)),
            'different number of parameter groups',
        ),
    ],
)
def test_what_cannot_go_on_is_one_sentence_that_names_the_way_out(left, tmp_path, change, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        resumed(left, tmp_path, change)
    assert 'load_from without resume' in str(caught.value)


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
def test_a_malformed_checkpoint_is_one_sentence(left, tmp_path, spoil):
    checkpoint = load_checkpoint(left)
    spoil(checkpoint)
    with pytest.raises(UserError, match='cannot be resumed from') as caught:
        resumed(left, tmp_path, checkpoint=checkpoint)
    assert '\n' not in str(caught.value)


def test_settings_are_compared_by_their_keys():
    old = settings(Config(dict(model=dict(type='A', layers=[dict(n=1)], size=(1, 2)), randomness=dict(seed=1), x=1)))
    new = settings(Config(dict(model=dict(type='A', layers=[dict(n=2)], size=[1, 2]), randomness=dict(seed=2), x=2)))
    assert config_changes(old, new) == [
        ('model.layers.0.n', '1', '2', 'applied'),
        ('randomness.seed', '1', '2', "the checkpoint's is kept"),
    ]
    assert config_changes(None, new) == config_changes('foreign', new) == []
