"""The guard keeps the initial weights unless a later checkpoint is better by more than chance."""

import json
from pathlib import Path

import pytest
import torch
from harness import toy
from harness.errors import raises_code
from mmengine.hooks import Hook
from PIL import Image, ImageOps

from mmairl.apis.pretrain import pretrain
from mmairl.apis.sample import PATH
from mmairl.data.shapes import Shapes
from mmairl.engine import run
from mmairl.engine.hooks.guard import decision
from mmairl.registry import HOOKS

GUARD = dict(val_cfg=dict(type='KNNValLoop', half=True), val_dataloader=dict(), val_evaluator=[])


@HOOKS.register_module()
class Planted(Hook):
    """Replace the predictions: step N classifies the first `right[N]` images of each half correctly."""

    priority = 'VERY_HIGH'

    def __init__(self, right: list[int]) -> None:
        self.right = right

    def after_val_epoch(self, runner, metrics) -> None:
        loop = runner.val_loop
        loop.right = torch.arange(100).repeat_interleave(2) < self.right[runner.iter]
        metrics['knn_accuracy'] = float(loop.right[::2].sum())


def guarded(toy_config, right: list[int], **options):
    cfg = toy_config(width=8, steps=4, **options)
    cfg.train_cfg.val_interval = 1
    cfg.evaluation = toy.KNN
    cfg.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
    cfg.merge_from_dict(GUARD)
    guard = dict(type='GuardHook')
    cfg.custom_hooks = [dict(type='Planted', right=right), guard, *cfg.get('custom_hooks', [])]
    return cfg


@pytest.mark.parametrize(
    'right, kept',
    [([50, 40, 70, 60, 45], 'guard/later.pth'), ([50, 48, 52, 40, 50], 'guard/start.pth')],
)
def test_guard_keeps_what_is_better(toy_config, right, kept, capfd):
    cfg = guarded(toy_config, right)
    runner = run.train(cfg)
    found = json.loads(Path(cfg.work_dir, 'guard.json').read_text())
    assert found['checkpoint'] == str(Path(cfg.work_dir).absolute() / kept)
    assert found['accuracies'] == [50, max(right)] and found['sentence'] in capfd.readouterr().out
    start, best = (
        torch.load(Path(cfg.work_dir, f'guard/{name}.pth'), weights_only=True)
        for name in ('start', 'later')
    )
    assert start['meta']['iter'] == 0 and best['meta']['iter'] == 2 and 'optimizer' not in best
    assert not torch.equal(
        start['state_dict']['backbone.conv1.weight'], best['state_dict']['backbone.conv1.weight']
    )
    last = runner.model.state_dict()['backbone.conv1.weight']
    assert not torch.equal(best['state_dict']['backbone.conv1.weight'], last)


def test_resumed_run_compares_with_the_start(toy_config):
    cfg = guarded(toy_config, [50, 40, 70, 60, 45])
    run.train(cfg)
    first = json.loads(Path(cfg.work_dir, 'guard.json').read_text())
    Path(cfg.work_dir, 'guard.json').unlink()
    resumed = guarded(
        toy_config, [0, 0, 70, 60, 45], resume=True, load_from=f'{cfg.work_dir}/iter_2.pth'
    )
    run.train(resumed)
    assert json.loads(Path(cfg.work_dir, 'guard.json').read_text()) == first


def test_run_without_held_out_images_raises(toy_config):
    cfg = guarded(toy_config, [0] * 5)
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    with raises_code('no-validation'):
        run.train(cfg)


def test_equal_checkpoints_are_rarely_called_better():
    """The best of five equally good checkpoints by one half is declared better by the other half in at most 2.5 %."""
    generator = torch.Generator().manual_seed(0)
    false, runs = 0, 2000
    for _ in range(runs):
        # Each image is right with its own probability, and the networks differ in what is random about it.
        chance = torch.rand(400, generator=generator)
        right = torch.rand(6, 400, generator=generator) < chance
        start, later = right[0], right[1:]
        best = later[later[:, ::2].sum(dim=1).argmax()]
        if best[::2].sum() > start[::2].sum():
            false += decision(start[1::2], best[1::2])['kept'] == 'best'
    assert 0 < false <= 0.025 * runs


def test_clear_gain_is_found_and_interval_is_exact():
    start = torch.arange(200) < 100
    found = decision(start, torch.arange(200) < 130)
    # All 30 images that differ are gained: the exact lower limit of their share is 0.025^(1/30).
    assert found['kept'] == 'best'
    assert found['interval'] == pytest.approx([(2 * 0.025 ** (1 / 30) - 1) * 15, 15])
    assert decision(start, start)['interval'] == [0, 0]


def test_run_that_ended_before_its_first_checkpoint_starts_again(toy_config):
    cfg = guarded(toy_config, [50] * 5)
    folder = Path(cfg.work_dir, 'guard')
    folder.mkdir(parents=True)
    (folder / 'start.pth').write_bytes(b'')
    cfg.resume = True
    assert run.train(cfg).iter == 4 and (folder / 'start.pth').stat().st_size > 0


@pytest.mark.slow
def test_start_is_kept_if_the_learning_rate_is_too_high(tmp_path):
    """Ten times the rate with which the sample was trained on such images keeps the start weights in 20 of 20 runs."""
    shapes = Shapes(count=1000, split='val')
    for number, kind in enumerate(shapes.labels):
        part = 'train' if number < 700 else 'test'
        folder = tmp_path / ('images' if number < 400 else f'labels/{part}/{kind}')
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(shapes.raw(number).permute(1, 2, 0).numpy())
        ImageOps.invert(image).save(folder / f'{number}.png')
    rate = 10 * 0.3 / 256 * 32
    how = dict(size=32, batch=32, workers=0, labels=tmp_path / 'labels', weights=PATH)
    how['options'] = {'optim_wrapper.optimizer.lr': rate}
    for seed in range(20):
        kept = pretrain(
            'mocov2plus', tmp_path / 'images', tmp_path / f'{seed}', 2, seed=seed, **how
        )
        assert kept == tmp_path / f'{seed}/guard/start.pth'


def test_one_held_out_image_is_an_error(toy_config):
    cfg = guarded(toy_config, [0])
    cfg.evaluation.val = dict(type='Shapes', split='val', count=1, size=32)
    with raises_code('no-validation'):
        run.train(cfg)
