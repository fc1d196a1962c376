"""Measure how long saving a checkpoint delays a training step.

The step waits either for a copy in memory only, or for the copy and for the file.
"""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from mmairl.config import load_config
from mmairl.engine import run as launch
from mmairl.engine.checkpoint import write_snapshot
from mmairl.engine.hooks.saving import ExactCheckpointHook
from mmairl.engine.runner import Runner
from projects.benchmark.timing import Case

NOTE = (
    'The checkpoint of MoCo v2+ is written to the folder for temporary files. If a step waits only for the copy, a thread '
    'writes the file while training continues.'
)


def saving(device: str, quick: bool) -> Iterator[Case]:
    """Compare a step that waits for the copy with one that waits for the copy and the file."""
    with TemporaryDirectory() as folder:
        runner, path = run(Path(folder), quick), Path(folder) / 'measured.pth'
        hook = next(hook for hook in runner.hooks if isinstance(hook, ExactCheckpointHook))

        def copy() -> dict:
            return runner.snapshot(dict(epoch=0, iter=1), True, True)

        def copy_and_write() -> None:
            write_snapshot(copy(), path, hook.note, [])

        copy_and_write()
        name = f'a checkpoint of {path.stat().st_size / 1e6:.0f} MB, saved in the background'
        yield Case(name, 'written within the step', copy, copy_and_write, note=NOTE)


def run(folder: Path, quick: bool) -> Runner:
    """Return a run with the full-size network, optimizer and queue after one step on tiny images."""
    cfg = load_config('mmairl::mocov2plus_r50_200e.py')
    cfg.train_dataloader = dict(
        num_workers=0,
        sampler=dict(type='ResumableSampler', shuffle=True),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='Shapes', split='train', count=8, size=32),
    )
    if quick:
        cfg.model.backbone.update(depth=18, stem_channels=8, base_channels=8)
        cfg.model.projector.in_channels = 64
    cfg.model.data_preprocessor.views = [[dict(type='RandomFlip', p=0.5)]] * 2
    cfg.merge_from_dict(dict(total_batch_size=4, log_level='WARNING', work_dir=str(folder)))
    cfg.train_cfg = dict(by_epoch=False, max_iters=1)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=1)]
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=1, max_keep_ckpts=1)
    return launch.train(cfg)
