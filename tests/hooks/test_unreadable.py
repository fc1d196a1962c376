"""Unreadable images of a whole run: counted over workers and processes, and listed at its end."""

from pathlib import Path

from PIL import Image

# What a run of two processes with two data workers each does to its images.
SCRIPT = """
import copy, sys
from types import SimpleNamespace
import torch.distributed as dist
from torch.utils.data import DataLoader
from mmairl.data.folders import UnlabelledFolder
from mmairl.data.sampler import ResumableSampler
from mmairl.data.training import TrainingImages
from mmairl.errors import UserError
from mmairl.hooks.bad_images import UnreadableHook

dist.init_process_group('gloo')
for folder in sys.argv[1:]:
    data = copy.deepcopy(TrainingImages(UnlabelledFolder(folder)))
    sampler = ResumableSampler(data, seed=0)
    loader = DataLoader(data, batch_size=5, sampler=sampler, num_workers=2)
    batches = iter(loader)
    runner = SimpleNamespace(train_dataloader=loader, iter=0, logger=SimpleNamespace(warning=print))
    hook = UnreadableHook(interval=2)
    try:
        for runner.iter, batch in enumerate(batches):
            hook.after_train_iter(runner, runner.iter, batch)
        hook.after_train(runner)
    except UserError as error:
        print(f'rank {dist.get_rank()}: {error}', flush=True)
    batches._shutdown_workers()  # the garbage collector would wait 5 s for each
dist.destroy_process_group()
"""


def folder(root: Path, broken: list[int], count: int = 40) -> Path:
    root.mkdir()
    for number in range(count):
        Image.new('RGB', (4, 4)).save(root / f'{number:02}.png')
    for number in broken:
        (root / f'{number:02}.png').write_bytes(b'')
    return root


def test_what_any_worker_of_any_process_meets_is_in_one_list_and_under_one_limit(tmp_path, run_processes):
    few = folder(tmp_path / 'few', [1, 2, 7, 31])
    many = folder(tmp_path / 'many', list(range(0, 28, 2)))  # each process alone meets seven or so of the ten allowed
    (tmp_path / 'two.py').write_text(SCRIPT)
    said = run_processes(2, tmp_path / 'two.py', few, many)
    lines = ''.join(f'\n  {few}/{number:02}.png (is empty)' for number in (1, 2, 7, 31))
    assert said.count(f'4 unreadable images were skipped; mend or remove them:{lines}\n') == 1
    for rank in (0, 1):
        assert f'rank {rank}: ' in said and 'training images cannot be read, more than the 10 that are allowed' in said
