"""The run into which faults are injected: a small MoCo v2+, started by the same command as a user's run."""

import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

from mmengine.config import Config

from mmairl.config import home, load_config

EPOCH = 10  # iterations per epoch; not a multiple of INTERVAL, so most epochs end between two checkpoints
INTERVAL = 3  # iterations from one checkpoint to the next
KEPT = 2  # maximum number of checkpoints that the run keeps
VIEW = [
    dict(type='RandomResizedCrop', size=24, scale=(0.2, 1.0)),
    dict(type='RandomFlip', p=0.5),
    dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
]


def write_config(path: Path, steps: int, seed: int) -> Path:
    """Write the config of a run of at least `steps` steps.

    The network is a ResNet-18 with an eighth of its width, and one data worker loads the images.
    """
    epochs, batch = math.ceil(steps / EPOCH), 8
    cfg = small_config(batch, seed)
    cfg.train_dataloader = loader(
        EPOCH * batch + 3, 32, persistent_workers=True, views=[VIEW, VIEW]
    )
    cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs)
    schedule = dict(
        type='CosineAnnealingLR', by_epoch=True, begin=0, end=epochs, convert_to_iter_based=True
    )
    cfg.param_scheduler = [schedule]
    cfg.default_hooks.checkpoint.update(by_epoch=False, interval=INTERVAL, max_keep_ckpts=KEPT)
    cfg.default_hooks.logger.interval = 1
    path.parent.mkdir(parents=True, exist_ok=True)
    cfg.dump(path)
    return path


def loader(count: int, size: int, persistent_workers: bool, **more) -> dict:
    """Return the config of a data loader with one worker, for the synthetic images of `Shapes`."""
    return dict(
        num_workers=1,
        persistent_workers=persistent_workers,
        drop_last=True,
        sampler=dict(type='ResumableSampler', shuffle=True),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='Shapes', split='train', count=count, size=size, **more),
    )


def small_config(batch: int, seed: int) -> Config:
    """Return the config of MoCo v2+ with an online probe and a network so small that a step takes milliseconds."""
    cfg: Config = load_config('mmairl::mocov2plus_r50_200e.py')
    cfg.model.backbone.update(depth=18, stem_channels=8, base_channels=8)
    cfg.model.projector.update(in_channels=64, hidden_channels=32, out_channels=16)
    cfg.model.predictor.update(in_channels=16, hidden_channels=32, out_channels=16)
    cfg.model.queue.length = 256
    cfg.model.data_preprocessor.update(mean=(0.5,) * 3, std=(0.25,) * 3)
    cfg.total_batch_size = batch
    cfg.custom_hooks = [dict(type='OnlineProbeHook', classes=12, lr=0.5)]
    cfg.randomness.seed = seed
    return cfg


def start(config: Path, work_dir: Path, output: IO | int) -> subprocess.Popen:
    """Start `tools/train.py CONFIG --work-dir D --resume` in its own process group, so that `end` can also kill the workers."""
    command = [
        sys.executable,
        str(home() / 'tools/train.py'),
        str(config),
        '--work-dir',
        str(work_dir),
        '--resume',
    ]
    environment = {
        **os.environ,
        'PYTHONPATH': str(home()),
        'OMP_NUM_THREADS': '1',
        'PYTHONUNBUFFERED': '1',
    }
    return subprocess.Popen(
        command,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=home(),
    )


def run(config: Path, work_dir: Path) -> int:
    """Train to the end, append the output to the file `work_dir` + '.txt', and return the exit code."""
    work_dir.parent.mkdir(parents=True, exist_ok=True)
    with work_dir.with_suffix('.txt').open('ab') as output:
        process = start(config, work_dir, output)
    try:
        return process.wait()
    finally:
        end(process)


def run_undisturbed(config: Path, work_dir: Path) -> Path:
    """Train without faults, for comparison with disturbed runs, and return the work dir."""
    if run(config, work_dir) != 0:
        raise RuntimeError(f'the undisturbed run fails; see {work_dir.with_suffix(".txt")}')
    return work_dir


def end(process: subprocess.Popen) -> None:
    """Kill the process and its workers if the process is still running."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_checkpoint(work_dir: Path) -> Path:
    return Path((work_dir / 'last_checkpoint').read_text())
