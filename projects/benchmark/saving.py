"""How long a step is held up by a checkpoint: for a copy in memory, or for the disk as well.

python -m projects.benchmark.saving [--rounds 5] [--folder D], for MoCo v2+ on ResNet-50 as its config has it, on the CPU.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mmairl.engine import launch
from mmairl.engine.runner import Runner
from mmairl.errors import stop_processes
from mmairl.hooks.checkpoint import ExactCheckpointHook

CONFIG = 'mmairl::mocov2plus_r50_200e.py'


def small_images(folder: Path) -> Runner:
    """The full-size network, optimizer and queue behind one step on tiny images: what they save is as large as ever."""
    cfg = launch.load_config(CONFIG)
    cfg.train_dataloader = dict(
        num_workers=0,
        sampler=dict(type='ResumableSampler', shuffle=True),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='Shapes', split='train', count=8, size=32),
    )
    cfg.model.data_preprocessor.views = [[dict(type='RandomFlip', p=0.5)]] * 2
    cfg.merge_from_dict(dict(total_batch_size=4, log_level='WARNING', work_dir=str(folder)))
    cfg.train_cfg = dict(by_epoch=False, max_iters=1)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=1)]
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=1, max_keep_ckpts=1)
    return launch.train(cfg)


def measure(rounds: int, folder: Path) -> dict[str, float]:
    """Medians of `rounds`, in seconds, and the size of the file in bytes; copy and write are timed in turn."""
    runner = small_images(folder)
    hook = next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook))
    copies, writes, path = [], [], folder / 'measured.pth'
    for _ in range(rounds):
        took, checkpoint = timed(lambda: runner.snapshot(dict(epoch=0, iter=1), True, True))
        copies.append(took)
        writes.append(timed(lambda made=checkpoint: hook._write(made, path, []))[0])
    both = [copy + write for copy, write in zip(copies, writes)]
    return dict(copy=statistics.median(copies), copy_and_write=statistics.median(both), size=path.stat().st_size)


def timed(act: Callable[[], Any]) -> tuple[float, Any]:
    before = time.perf_counter()
    found = act()
    return time.perf_counter() - before, found


@launch.one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--folder', help='on the disk to measure; by default where temporary files go')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        found = measure(args.rounds, Path(folder))
    stop_processes()
    table = Table('a checkpoint of', f'{found["size"] / 1e6:.0f} MB')
    table.add_row('saved in the background holds the step up for', f'{found["copy"]:.2f} s')
    table.add_row('written within the step would hold it up for', f'{found["copy_and_write"]:.2f} s')
    Console().print(table)


if __name__ == '__main__':
    main()
