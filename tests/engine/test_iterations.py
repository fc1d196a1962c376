"""Training by iterations: workers, samplers of every kind, and the configs of Fig. 8, which are resumed inside an epoch."""

from itertools import islice
from pathlib import Path

import pytest
import resuming
import torch
from mmengine.config import Config
from torch.utils.data import DataLoader, Sampler

from mmairl.data.sampler import ResumableSampler
from mmairl.engine import launch
from mmairl.engine.loops import endless, sampler_of
from mmairl.errors import UserError

CONFIGS = Path(resuming.toy.CONFIGS)
VARIATION = sorted(path.stem for path in (CONFIGS / 'data_variation').glob('*.py'))


def config(name: str, work_dir: Path, leave_at: int | None = None, resume: bool = False) -> Config:
    """A config of Fig. 8 with its own loader, but of 2 workers and drawn images: 5 batches of 8 in an epoch, and a rest."""
    cfg = resuming.config('workers', str(work_dir), leave_at=leave_at, resume=resume)
    loader = launch.load_config(str(CONFIGS / 'data_variation' / f'{name}.py')).train_dataloader
    loader.update(num_workers=2, pin_memory=False)
    loader.dataset.fraction, loader.dataset.dataset = 0.5, {**cfg.train_dataloader.dataset, 'count': 87}
    cfg.train_dataloader = loader
    cfg.train_cfg = dict(by_epoch=False, max_iters=13)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=13)]
    return cfg


@pytest.mark.timeout(600)
def test_the_configs_of_fig_8_train_to_their_last_iteration_and_resume_bit_for_bit(tmp_path):
    """Left in the first epoch, at its last iteration but one, and in the second; a checkpoint every 4 iterations."""
    name = 'mocov2plus_50pct_r50'
    runner = launch.train(config(name, tmp_path / 'whole'))
    assert len(runner.train_dataloader) == 5 and runner.iter == runner.max_iters == 13
    losses, _ = runner.message_hub.get_scalar('train/loss').data
    assert len(losses) == 13
    for place, leave_at in enumerate([6, 9, None]):
        last = resuming.run(config(name, tmp_path / 'resumed', leave_at, resume=place > 0))
    resuming.assert_the_same_run(tmp_path / 'whole' / 'iter_13.pth', last)


@pytest.mark.parametrize('name', VARIATION)
def test_fig_8_is_sampled_by_a_sampler_that_resumes_inside_an_epoch(name, tmp_path):
    cfg = config(name, tmp_path)
    launch.share_batch(cfg, 1)
    assert isinstance(sampler_of(launch.build(cfg).train_dataloader), ResumableSampler)
    assert cfg.train_dataloader.drop_last


@pytest.mark.timeout(300)
def test_a_sampler_that_is_one_stream_lasts_when_workers_read_it(tmp_path):
    """mmengine's InfiniteSampler ends for ever once a reader of it is dropped, and its loop begins to read too early."""
    cfg = config('mocov2plus_50pct_r50', tmp_path)
    cfg.train_dataloader.sampler = dict(type='InfiniteSampler')
    assert launch.train(cfg).iter == 13


class Once(Sampler):
    """Gives its indices a single time, as one who holds a generator does."""

    def __init__(self, count: int) -> None:
        self.count, self.indices = count, iter(range(count))

    def __iter__(self):
        return self.indices

    def __len__(self) -> int:
        return self.count


@pytest.mark.timeout(60)
def test_an_epoch_without_a_batch_is_one_sentence_and_not_a_loop_without_end():
    loader = DataLoader(torch.arange(8), batch_size=2, sampler=Once(8))
    reader = endless(loader, 0)
    assert torch.stack(list(islice(reader, 4))).flatten().tolist() == list(range(8))
    with pytest.raises(UserError, match='Once gives no batch in epoch 2, .*ResumableSampler') as caught:
        next(reader)
    assert '. ' not in str(caught.value)


def test_an_epoch_that_was_left_behind_its_last_batch_is_not_an_empty_one():
    """A sampler that gives less than it says: the rest of the epoch is empty, and the next one is not."""
    loader = DataLoader(torch.arange(8), batch_size=2, sampler=ShortOf(6, 8))
    assert next(endless(loader, 3)).tolist() == [0, 1]


class ShortOf(Sampler):
    def __init__(self, given: int, said: int) -> None:
        self.given, self.said = given, said

    def __iter__(self):
        return iter(range(self.given))

    def __len__(self) -> int:
        return self.said
