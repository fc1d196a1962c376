"""Small runs that tests interrupt and resume, with data workers and real views."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from mmengine.config import Config
from mmengine.dist import get_rank
from mmengine.hooks import Hook

from harness import toy
from harness.compare import differing as differing  # Tests import this name from here
from mmairl.engine import run as launch
from mmairl.engine.distributed import start_processes
from mmairl.registry import HOOKS
from mmairl.signals import Stopped, stop_processes

VIEW = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
]
# Runs draw random numbers in data workers, in the preprocessor, and in ShuffleBN. A resumed run
# must draw the same numbers.
CASES = {
    'workers': dict(name='mocov2plus_r50_200e.py', workers=2),
    'no_queue': dict(name='byol_r50_200e.py', workers=1),
    'shuffle_bn': dict(name='mocov2_r50_200e.py', workers=0, replicas=4),
    'lars_accumulated': dict(name='byol_lars_r50_200e.py', workers=0, accumulate=2),
    'views_of_the_batch': dict(name='mocov2plus_lars_r50_200e.py', workers=0, in_batch=True),
}


class LeftInTheMiddle(Exception):
    """`LeaveAt` raises this error to stop a run in the middle."""


@HOOKS.register_module(force=True)
class LeaveAt(Hook):
    """Stop the run after this iteration, as an error would."""

    priority = 'LOWEST'

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None) -> None:
        if runner.iter + 1 == self.iteration:
            raise LeftInTheMiddle


@HOOKS.register_module(force=True)
class SignalAt(Hook):
    """Before this iteration, send a signal twice to this process and its data workers, as a scheduler may do."""

    def __init__(self, iteration: int, number: int, rank: int = 0) -> None:
        self.iteration = iteration
        self.number = number
        self.rank = rank

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 == self.iteration and get_rank() == self.rank:
            processes = [*(child.pid for child in multiprocessing.active_children()), os.getpid()]
            for _ in range(2):
                subprocess.run(['kill', f'-{int(self.number)}', *map(str, processes)], check=True)


@HOOKS.register_module(force=True)
class Spoil(Hook):
    """Put a NaN into the batches of some iterations, in one of the processes."""

    def __init__(self, iterations: list[int], rank: int = 0) -> None:
        self.iterations = iterations
        self.rank = rank

    def before_train_iter(self, runner, batch_idx, data_batch=None) -> None:
        if runner.iter + 1 in self.iterations and get_rank() == self.rank:
            data_batch['inputs'][0][0, 0, 0, 0] = float('nan')


SHORT = dict(epochs=2, steps=4, every=3)


def config(
    case: str,
    work_dir: str,
    *,
    leave_at: int | None = None,
    resume: bool = False,
    batch: int = 8,
    epochs: int = 3,
    steps: int = 5,
    every: int = 4,
) -> Config:
    """Return a config with short epochs and a checkpoint every few iterations, usually in the middle of an epoch."""
    settings = {'workers': 0, 'accumulate': 1, 'in_batch': False, 'replicas': None, **CASES[case]}
    steps *= settings['accumulate']
    cfg = toy.config(settings['name'], work_dir, batch=batch * settings['accumulate'])
    cfg.model.backbone.update(stem_channels=8, base_channels=8)
    cfg.model.projector.in_channels = 64
    if settings['replicas']:
        cfg.model.backbone.norm_cfg.replicas = settings['replicas']
    views = None if settings['in_batch'] else [VIEW, VIEW]
    cfg.model.data_preprocessor = dict(
        type='ViewPreprocessor',
        mean=(0.5,) * 3,
        std=(0.25,) * 3,
        views=[VIEW, VIEW] if settings['in_batch'] else None,
    )
    cfg.train_dataloader = dict(
        drop_last=True,
        collate_fn=dict(type='default_collate'),
        num_workers=settings['workers'],
        persistent_workers=settings['workers'] > 0,
        sampler=dict(type='ResumableSampler', shuffle=True),
        dataset=dict(type='Shapes', split='train', count=steps * batch + 3, size=32, views=views),
    )
    cfg.optim_wrapper.accumulative_counts = settings['accumulate']
    cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs)
    cfg.param_scheduler = [
        dict(
            type='CosineAnnealingLR', by_epoch=True, begin=0, end=epochs, convert_to_iter_based=True
        )
    ]
    cfg.default_hooks.checkpoint = dict(
        type='ExactCheckpointHook', by_epoch=False, interval=every, max_keep_ckpts=9
    )
    cfg.default_hooks.logger.interval = 1
    cfg.custom_hooks = []
    if leave_at is not None:
        cfg.custom_hooks.append(dict(type='LeaveAt', iteration=leave_at))
    cfg.resume = resume
    return cfg


def run(cfg: Config, launcher: str = 'none') -> Path:
    """Train until the end or the interruption. Return the last checkpoint."""
    try:
        launch.train(cfg, launcher)
    except LeftInTheMiddle:
        toy.end_workers()
    return Path((Path(cfg.work_dir) / 'last_checkpoint').read_text())


def main() -> None:
    """Train in the two processes of test_resume.py.

    One run is uninterrupted, one is interrupted and resumed, one continues a run of a single process, and one is stopped by a
    signal to one of the two processes and resumed.
    """
    folder = sys.argv[1]
    launch.register()
    start_processes('pytorch')

    def two(case: str, name: str, resume: bool = False, every: int = 2, **options) -> None:
        shape = dict(SHORT, every=every)
        run(config(case, f'{folder}/{name}', resume=resume, **shape, **options), 'pytorch')

    two('workers', 'whole')
    two('workers', 'left', leave_at=3)
    two('workers', 'left', resume=True)
    two('no_queue', 'of_one', resume=True, every=SHORT['every'])
    stopped = config('workers', f'{folder}/stopped', **dict(SHORT, every=2))
    stopped.custom_hooks.append(dict(type='SignalAt', iteration=2, number=signal.SIGUSR1, rank=1))
    try:
        launch.train(stopped, 'pytorch')
    except Stopped as said:
        print(f'process {get_rank()} {said}', flush=True)
    two('workers', 'stopped', resume=True)
    stop_processes()


if __name__ == '__main__':
    main()
