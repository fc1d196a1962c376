"""An interrupted run that is resumed is the run that was not interrupted, to the last bit."""

from pathlib import Path

import pytest
import resuming
import torch

from mmairl.data.sampler import ResumableSampler
from mmairl.data.training import TrainingImages
from mmairl.engine import launch
from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.loops import batches
from mmairl.errors import UserError

SCRIPT = Path(resuming.__file__)


def trained(folder: Path, case: str, *leave_at: int) -> Path:
    """The last checkpoint of a run that was left at these iterations, one after the other."""
    for place, iteration in enumerate([*leave_at, None]):
        last = resuming.run(resuming.config(case, str(folder), leave_at=iteration, resume=place > 0))
    return last


@pytest.mark.parametrize('case', ['workers', 'shuffle_bn', 'lars_accumulated', 'views_of_the_batch'])
def test_interrupted_and_resumed_equals_uninterrupted_bit_for_bit(tmp_path, case):
    """Left in the first epoch after its checkpoint, again at an iteration that saves, and at an epoch's last."""
    whole = trained(tmp_path / 'whole', case)
    resumed = trained(tmp_path / 'resumed', case, 5, 8, 10)
    resuming.assert_the_same_run(whole, resumed)


def test_the_comparison_sees_a_difference_of_one_draw(tmp_path):
    """The control of the test above: a generator that is not put back is found."""
    whole = trained(tmp_path / 'whole', 'shuffle_bn')
    resuming.run(resuming.config('shuffle_bn', str(tmp_path / 'resumed'), leave_at=5))
    path = tmp_path / 'resumed' / 'iter_4.pth'
    checkpoint = load_checkpoint(path)
    del checkpoint['random_states']
    torch.save(checkpoint, path)
    last = resuming.run(resuming.config('shuffle_bn', str(tmp_path / 'resumed'), resume=True))
    with pytest.raises((AssertionError, KeyError)):
        resuming.assert_the_same_run(whole, last)


@pytest.mark.parametrize('case', ['workers', 'lars_accumulated'])
def test_two_interrupted_processes_equal_two_uninterrupted_bit_for_bit(tmp_path, run_processes, case):
    run_processes(2, SCRIPT, 'pytorch', case, tmp_path / 'whole', 0, 'new')
    run_processes(2, SCRIPT, 'pytorch', case, tmp_path / 'resumed', 7, 'new')
    run_processes(2, SCRIPT, 'pytorch', case, tmp_path / 'resumed', 0, 'resume')
    ends = [Path((tmp_path / name / 'last_checkpoint').read_text()) for name in ('whole', 'resumed')]
    resuming.assert_the_same_run(*ends)


def test_another_number_of_processes_sees_every_image_of_the_epoch_once(tmp_path, run_processes):
    """One process for 7 steps, then two for the rest; without a queue, whose order differs, SyncBN makes the weights agree."""
    case = 'no_queue'
    trained(tmp_path / 'whole', case)
    resuming.run(resuming.config(case, str(tmp_path / 'resumed'), leave_at=7))
    said = run_processes(2, SCRIPT, 'pytorch', case, tmp_path / 'resumed', 0, 'resume')
    assert 'resumed with 2 processes after 1: batches and views are the same' in said
    one, two = (
        load_checkpoint(Path((tmp_path / name / 'last_checkpoint').read_text())) for name in ('whole', 'resumed')
    )
    assert one['meta']['iter'] == two['meta']['iter']
    for key in ('backbone.conv1.weight', 'teacher.backbone.conv1.weight'):
        torch.testing.assert_close(two['state_dict'][key], one['state_dict'][key], rtol=1e-3, atol=1e-5)


def test_another_batch_is_refused_since_its_steps_are_not_the_same_steps(tmp_path):
    resuming.run(resuming.config('shuffle_bn', str(tmp_path), leave_at=5))
    with pytest.raises(UserError, match='made with 8 images an iteration and this run has 16'):
        resuming.run(resuming.config('shuffle_bn', str(tmp_path), resume=True, batch=16))


def test_a_checkpoint_of_plain_openmmlab_is_gone_on_with_and_the_difference_is_said(tmp_path):
    resuming.run(resuming.config('views_of_the_batch', str(tmp_path), leave_at=5))
    path = tmp_path / 'iter_4.pth'
    checkpoint = load_checkpoint(path)
    del checkpoint['random_states'], checkpoint['place']
    torch.save(checkpoint, path)
    cfg = resuming.config('views_of_the_batch', str(tmp_path), resume=True)
    runner = launch.train(cfg)
    assert runner.iter == 15
    log = next(Path(runner.log_dir).glob('*.log')).read_text()
    assert 'not as if uninterrupted' in log


def images_of(world: int, start: int, epoch: int = 3, count: int = 60) -> list[list[tuple[int, int]]]:
    """Each process's images of an epoch, with their seeds, from the `start`-th on."""
    found = []
    for rank in range(world):
        sampler = ResumableSampler(TrainingImages(range(count)), seed=5)
        sampler.rank, sampler.world_size = rank, world
        sampler.set_epoch(epoch, start)
        found.append(list(sampler))
    return found


@pytest.mark.parametrize('before,after', [(1, 2), (2, 1), (2, 4), (5, 2)])
def test_every_world_size_goes_on_with_the_rest_of_the_same_order(before, after):
    order = images_of(1, 0)[0]
    done = 20
    seen = [image for images in images_of(before, 0) for image in images[: done // before]]
    rest = [image for images in images_of(after, done) for image in images]
    assert sorted(seen) == sorted(order[:done])
    assert sorted(seen + rest) == sorted(order) and sorted(index for index, _ in order) == list(range(60))


def test_the_order_is_openmmlabs_and_the_seeds_are_all_different():
    from mmengine.dataset import DefaultSampler

    theirs = DefaultSampler(range(60), seed=5)
    theirs.set_epoch(3)
    assert [index for index, _ in images_of(1, 0)[0]] == list(theirs)
    seeds = [seed for epoch in range(40) for _, seed in images_of(1, 0, epoch)[0]]
    assert len(set(seeds)) == len(seeds)
    ones = sum(bin(seed).count('1') for seed in seeds) / len(seeds) / 32
    assert abs(ones - 0.5) < 5 / (2 * (32 * len(seeds)) ** 0.5)  # five standard deviations of fair bits


class Counting(torch.utils.data.Dataset):
    """Knows what was read of it."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.read.append(int(index))
        return int(index)


def test_what_was_seen_is_not_read_again():
    dataset = Counting()
    loader = torch.utils.data.DataLoader(dataset, batch_size=4, sampler=ResumableSampler(dataset, seed=1))
    whole = [batch.tolist() for batch in batches(loader, epoch=2, done=0)]
    dataset.read.clear()
    assert [batch.tolist() for batch in batches(loader, epoch=2, done=7)] == whole[7:]
    assert len(dataset.read) == 12 and len(loader) == 10


def test_a_foreign_sampler_gets_there_by_reading_again():
    dataset = Counting()
    loader = torch.utils.data.DataLoader(dataset, batch_size=4)
    assert [batch.tolist() for batch in batches(loader, epoch=0, done=8)] == [[32, 33, 34, 35], [36, 37, 38, 39]]
    assert len(dataset.read) == 40


def test_views_do_not_depend_on_the_number_of_workers(toy_config):
    """The same seed, 0 and 2 workers: the first batch of both loaders is the same."""
    found = []
    for workers in (0, 2):
        cfg = resuming.config('workers', str(toy_config().work_dir) + str(workers))
        cfg.train_dataloader.update(num_workers=workers, persistent_workers=False)
        launch.share_batch(cfg, 1)
        runner = launch.build(cfg)
        before = torch.get_rng_state()
        found.append([next(batches(runner.train_dataloader, epoch, 0))['inputs'] for epoch in (0, 1)])
        assert torch.equal(torch.get_rng_state(), before)
    (first, second), again = found
    assert not torch.equal(first[0], second[0])
    assert all(torch.equal(a, b) for one, other in zip(found[0], again) for a, b in zip(one, other))
