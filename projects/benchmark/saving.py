"""How long a step is held up by a checkpoint: for a copy in memory, or for the disk as well.

python -m projects.benchmark.saving [--rounds 5] [--folder D], for MoCo v2+ on ResNet-50 as its config has it, on the CPU.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from mmairl.engine import launch
from mmairl.engine.runner import Runner
from mmairl.errors import stop_processes
from mmairl.hooks.checkpoint import ExactCheckpointHook
from projects.benchmark.timing import timed

CONFIG = 'mmairl::mocov2plus_r50_200e.py'


def small_images(folder: Path) -> Runner:
    """The full-size network, optimizer and queue after one step on tiny images: their checkpoint has its full size."""
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


@launch.one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--folder', help='on the disk to measure; by default where temporary files go')
    args = parser.parse_args()
    copies, sums = [], []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        runner, path = small_images(Path(folder)), Path(folder) / 'measured.pth'
        hook = next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook))
        for _ in range(args.rounds):
            made: list[dict] = []
            copies.append(timed(lambda made=made: made.append(runner.snapshot(dict(epoch=0, iter=1), True, True))))
            sums.append(copies[-1] + timed(lambda made=made: hook._write(made[0], path, [])))
        size = path.stat().st_size
    stop_processes()
    print(f'a checkpoint of {size / 1e6:.0f} MB, medians of {args.rounds}')
    print(f'saved in the background, it holds the step up for {statistics.median(copies):.2f} s')
    print(f'written within the step, it would hold it up for {statistics.median(sums):.2f} s')


if __name__ == '__main__':
    main()
