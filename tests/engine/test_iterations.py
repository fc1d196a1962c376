"""Training that is counted in iterations, with several kinds of samplers.

Configs of `data_variation` resume inside an epoch.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code
from mmengine.config import Config
from torch.utils.data import DataLoader, Sampler

from mmairl.config import load_config
from mmairl.data.sampler import ResumableSampler
from mmairl.engine import run
from mmairl.engine.batches import endless, sampler_of
from mmairl.engine.runner import RemainingBatches

VARIATION = Path(resuming.toy.CONFIGS) / 'data_variation'


def config(work_dir: Path, leave_at: int | None = None, resume: bool = False) -> Config:
    """Return a config from `data_variation` with 2 workers and synthetic images. An epoch has 5 full batches of 8 images."""
    cfg = resuming.config('workers', str(work_dir), leave_at=leave_at, resume=resume)
    loader = load_config(str(VARIATION / 'mocov2plus_50pct_r50.py')).train_dataloader
    loader.update(num_workers=2, pin_memory=False)
    loader.dataset.fraction, loader.dataset.dataset = 0.5, {**cfg.train_dataloader.dataset, 'count': 87}
    cfg.train_dataloader = loader
    cfg.train_cfg = dict(by_epoch=False, max_iters=8)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=8)]
    return cfg


def skip(batches: RemainingBatches, number: int) -> None:
    for _ in range(number):
        next(batches)


@pytest.mark.parametrize('skip', [skip, RemainingBatches.skip_iter], ids=['mmengine', 'onedl'])
def test_each_mmengine_skips_seen_batches(skip):
    loader = DataLoader(list(range(6)), 2, sampler=ResumableSampler(list(range(6)), shuffle=False))
    remaining = RemainingBatches(loader, 2)
    skip(remaining, 2)
    assert next(remaining).tolist() == [4, 5]


def test_iteration_configs_train_and_resume_exactly(tmp_path):
    """The run is interrupted in its second epoch. Its last checkpoint lies inside the first epoch."""
    runner = run.train(config(tmp_path / 'whole'))
    assert len(runner.train_dataloader) == 5 and runner.iter == runner.max_iters == 8
    assert isinstance(sampler_of(runner.train_dataloader), ResumableSampler)
    assert len(runner.message_hub.get_scalar('train/loss').data[0]) == 8
    resuming.run(config(tmp_path / 'resumed', 6))
    last = resuming.run(config(tmp_path / 'resumed', resume=True))
    resuming.assert_the_same_run(tmp_path / 'whole' / 'iter_8.pth', last)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_infinite_sampler_works_with_workers(tmp_path):
    """The constructor of mmengine's loop starts to read, but an InfiniteSampler can be read only once."""
    cfg = config(tmp_path)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler')
    cfg.default_hooks.checkpoint.interval = 100
    assert run.train(cfg).iter == 8


class Given(Sampler):
    """Yield `indices`, and report `length`. If `indices` is an iterator, only the first epoch yields indices."""

    def __init__(self, indices: Iterable[int], length: int) -> None:
        self.indices, self.length = indices, length

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.length


@pytest.mark.timeout(300)
def test_epoch_without_a_batch_raises():
    reader = endless(DataLoader(torch.arange(8), batch_size=2, sampler=Given(iter(range(8)), 8)), 0)
    assert torch.stack(list(islice(reader, 4))).flatten().tolist() == list(range(8))
    with raises_code('no-batch', 'Given yields no batch in epoch 2'):
        next(reader)
    # The sampler yields fewer indices than its length, so an epoch has only three batches. A run
    # that resumes after the third batch continues with the next epoch.
    loader = DataLoader(torch.arange(8), batch_size=2, sampler=Given(range(6), 8))
    assert next(endless(loader, 3)).tolist() == [0, 1]
