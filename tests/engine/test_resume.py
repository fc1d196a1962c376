"""A resumed run equals the uninterrupted run bit for bit."""

from pathlib import Path

import pytest
import torch
from harness import resume as resuming
from harness.errors import raises_code
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from mmairl.data.sampler import ResumableSampler
from mmairl.data.training_images import TrainingImages
from mmairl.engine import run
from mmairl.engine.batches import batches
from mmairl.engine.checkpoint import load_checkpoint

SCRIPT = Path(resuming.__file__)


def trained(folder: Path, case: str, *leave_at: int) -> Path:
    """Interrupt a run at each iteration in `leave_at` and resume it each time. Return its last checkpoint."""
    for place, iteration in enumerate([*leave_at, None]):
        cfg = resuming.config(case, str(folder), leave_at=iteration, resume=place > 0, **resuming.SHORT)
        last = resuming.run(cfg)
    return last


@pytest.mark.parametrize('case', ['shuffle_bn', 'views_of_the_batch'])
def test_resumed_run_equals_uninterrupted_run(tmp_path, case):
    """The run is interrupted at iteration 4, the last one of an epoch, and at iteration 6, which saves a checkpoint."""
    whole = trained(tmp_path / 'whole', case)
    resumed = trained(tmp_path / 'resumed', case, 4, 6)
    resuming.assert_the_same_run(whole, resumed)


def test_resume_without_random_state_differs_and_warns(tmp_path):
    """A checkpoint of plain OpenMMLab can be resumed although it has no random state.

    The test also shows that `assert_the_same_run` can fail.
    """
    whole = trained(tmp_path / 'whole', 'shuffle_bn')
    resuming.run(resuming.config('shuffle_bn', str(tmp_path / 'resumed'), leave_at=4, **resuming.SHORT))
    path = tmp_path / 'resumed' / 'iter_3.pth'
    checkpoint = load_checkpoint(path)
    del checkpoint['random_states'], checkpoint['place']
    torch.save(checkpoint, path)
    runner = run.train(resuming.config('shuffle_bn', str(tmp_path / 'resumed'), resume=True, **resuming.SHORT))
    assert 'differ from an uninterrupted run' in next(Path(runner.log_dir).glob('*.log')).read_text()
    with pytest.raises((AssertionError, KeyError)):
        resuming.assert_the_same_run(whole, tmp_path / 'resumed' / 'iter_8.pth')
    with raises_code('other-batch-size'):
        resuming.run(resuming.config('shuffle_bn', str(tmp_path / 'whole'), resume=True, batch=16, **resuming.SHORT))


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> tuple[Path, str]:
    """Return the folder of the runs of two processes (harness/resume.py), and the output of the processes.

    A single process has started the run `of_one`.
    """
    folder = tmp_path_factory.mktemp('two')
    resuming.run(resuming.config('no_queue', str(folder / 'of_one'), leave_at=5, **resuming.SHORT))
    return folder, run_processes(2, SCRIPT, folder)


def end(folder: Path) -> Path:
    return Path((folder / 'last_checkpoint').read_text())


def test_two_resumed_processes_equal_uninterrupted(two):
    resuming.assert_the_same_run(end(two[0] / 'whole'), end(two[0] / 'left'))


def test_branch_of_two_processes_equals_its_trunk(two):
    resuming.assert_the_same_run(end(two[0] / 'whole'), end(two[0] / 'branch'))


def test_signal_to_one_process_stops_both(two):
    folder, output = two
    for rank in (0, 1):
        assert f'process {rank} stopped by SIGUSR1 after 3 iterations and saved {folder}/stopped/iter_3.pth' in output
    resuming.assert_the_same_run(end(folder / 'whole'), end(folder / 'stopped'))


def test_other_process_count_sees_each_image_once(two, tmp_path):
    """One process takes 5 steps, then two continue.

    The order of keys in a queue would differ, so the model has no queue. SyncBN makes the weights agree.
    """
    one, both = (load_checkpoint(path) for path in (trained(tmp_path / 'whole', 'no_queue'), end(two[0] / 'of_one')))
    assert 'the number of processes was 1 and is now 2: batches and views stay the same' in two[1]
    assert one['meta']['iter'] == both['meta']['iter']
    for key in ('backbone.conv1.weight', 'teacher.backbone.conv1.weight'):
        torch.testing.assert_close(both['state_dict'][key], one['state_dict'][key], rtol=1e-3, atol=1e-5)


def images_of(world: int, start: int, epoch: int = 3, count: int = 60) -> list[list[tuple[int, int]]]:
    """Return, for each process, the images of an epoch from position `start` on, with their seeds."""
    images = []
    for rank in range(world):
        sampler = ResumableSampler(TrainingImages(range(count)), seed=5)
        sampler.rank, sampler.world_size = rank, world
        sampler.set_epoch(epoch, start)
        images.append(list(sampler))
    return images


@pytest.mark.parametrize('before,after', [(1, 2), (2, 1), (2, 4), (5, 2)])
def test_any_world_size_continues_the_same_order(before, after):
    order = images_of(1, 0)[0]
    position = 20
    seen = [image for images in images_of(before, 0) for image in images[: position // before]]
    rest = [image for images in images_of(after, position) for image in images]
    assert sorted(seen) == sorted(order[:position])
    assert sorted(seen + rest) == sorted(order) and sorted(index for index, _ in order) == list(range(60))


class Counting(Dataset):
    """A data set that records which items are read."""

    def __init__(self) -> None:
        self.read: list[int] = []

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        self.read.append(int(index))
        return int(index)


def test_resumable_sampler_rereads_no_image():
    for sampler, count in ((ResumableSampler(Counting(), seed=1), 12), (SequentialSampler(range(40)), 40)):
        dataset = Counting()
        loader = DataLoader(dataset, batch_size=4, sampler=sampler)
        whole = [batch.tolist() for batch in batches(loader, epoch=2, done=0)]
        dataset.read.clear()
        assert [batch.tolist() for batch in batches(loader, epoch=2, done=7)] == whole[7:]
        assert len(dataset.read) == count and len(loader) == 10
