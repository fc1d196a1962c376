"""Train very many tiny steps, and check whether memory, files, threads or workers grow.

>>> long_run(20_000, seed=0, folder=Path('/tmp/long'))['KiB gained per 1000 steps']  # doctest: +SKIP
"""

import multiprocessing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor, nn

from mmairl.engine import run
from mmairl.registry import HOOKS, MODELS
from projects.faults.small_run import VIEW, loader, small_config

FAULTS = ('memory grows', 'files grow', 'threads grow', 'workers grow', 'left-over files')
SAMPLES = 20
# The first samples are ignored, because caches, pools and the log's history fill up at the start.
WARM_UP = 4
BATCH = 16  # the smallest batch for which HealthHook computes the rank of embeddings
# Allowed growth. A leaked scalar tensor takes half a KiB, so a leak of one tensor per step would add 500 KiB in 1000 steps.
# Legitimate growth is bounded: the curves of HealthHook, with a value every 50 steps, add about 30 KiB in 1000 steps until each
# has 2000 values.
KIB_PER_1000_STEPS = 128
# Additional growth that is allowed in a run of any length, because the allocator keeps memory for reuse.
KIB_OF_THE_ALLOCATOR = 2048


def long_run(count: int, seed: int, folder: Path) -> dict[str, int | float]:
    """Train `count` steps of a few ms in this process, and return how its resources changed.

    The run has all default hooks, an online probe, a queue, a data worker and checkpoints.
    """
    runner = run.train(config(count, seed, folder))
    samples = next(hook for hook in runner.hooks if isinstance(hook, SampleHook)).samples
    return judge(samples, len(list(folder.glob('.*.tmp'))))


def config(count: int, seed: int, folder: Path) -> Config:
    cfg = small_config(BATCH, seed)
    cfg.model.backbone = dict(type='TwoLayers', channels=8)
    cfg.model.projector.in_channels = cfg.model.predictor.out_channels = 16
    # Workers that do not persist are started again in every epoch, so a leak of workers would show.
    cfg.train_dataloader = loader(100 * BATCH, 16, persistent_workers=False)
    cfg.model.data_preprocessor.views = [
        [dict(step, size=12) if 'size' in step else step for step in VIEW[:2]]
    ] * 2
    cfg.train_cfg = dict(by_epoch=False, max_iters=count)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', by_epoch=False, begin=0, end=count)]
    cfg.default_hooks.checkpoint.update(
        by_epoch=False, interval=max(1, count // 100), max_keep_ckpts=2
    )
    cfg.custom_hooks.append(dict(type='SampleHook', interval=max(1, count // SAMPLES)))
    cfg.log_level = 'WARNING'
    cfg.work_dir = str(folder)
    return cfg


@MODELS.register_module()
class TwoLayers(nn.Module):
    """A tiny backbone with batch norm, so that most of a step's time is spent outside the network."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layers = [(3, channels), (channels, 2 * channels)]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(*sizes, 3, stride=2, bias=False), nn.BatchNorm2d(sizes[1]), nn.ReLU()
                )
                for sizes in layers
            )
        )

    def forward(self, images: Tensor) -> tuple[Tensor]:
        return (self.layers(images),)


@dataclass
class Sample:
    """Resources of the process after a step."""

    step: int
    kib: int
    files: int
    threads: int
    workers: int


@HOOKS.register_module()
class SampleHook(Hook):
    """Measure the process every `interval` steps."""

    priority = 'LOWEST'

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.samples: list[Sample] = []

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        if self.every_n_train_iters(runner, self.interval):
            self.samples.append(sample(runner.iter + 1))


def sample(step: int) -> Sample:
    """Return resident memory, open files, threads and data workers, as Linux counts them."""
    status = dict(line.split(':', 1) for line in Path('/proc/self/status').read_text().splitlines())
    files, workers = list(Path('/proc/self/fd').iterdir()), multiprocessing.active_children()
    return Sample(
        step, int(status['VmRSS'].split()[0]), len(files), int(status['Threads']), len(workers)
    )


def judge(samples: list[Sample], left_over: int) -> dict[str, int | float]:
    """Return the growth of memory per 1000 steps after the first WARM_UP samples, and which counts grew.

    A count grew if its minimum in the second half of the later samples exceeds its maximum in the first half.
    """
    later_samples = samples[WARM_UP:]
    early, late = later_samples[: len(later_samples) // 2], later_samples[len(later_samples) // 2 :]
    thousands = (later_samples[-1].step - later_samples[0].step) / 1000
    slope = float(
        np.polyfit(
            [point.step / 1000 for point in later_samples],
            [point.kib for point in later_samples],
            1,
        )[0]
    )
    limit = KIB_PER_1000_STEPS + KIB_OF_THE_ALLOCATOR / thousands
    counts = {
        'steps': samples[-1].step,
        'MiB at first': samples[0].kib // 1024,
        'MiB at the end': samples[-1].kib // 1024,
        'KiB gained per 1000 steps': round(slope, 1),
        'KiB that 1000 steps may gain': round(limit, 1),
        'open files': max(point.files for point in later_samples),
        'threads': max(point.threads for point in later_samples),
        'data workers': max(point.workers for point in later_samples),
        'memory grows': int(slope > limit),
    }
    for name in ('files', 'threads', 'workers'):
        # A batch that a worker is sending raises a count in some samples. A leak raises the count in all later samples.
        early_counts, late_counts = (
            [getattr(point, name) for point in part] for part in (early, late)
        )
        counts[f'{name} grow'] = int(min(late_counts) > max(early_counts))
    return {**counts, 'left-over files': left_over}
