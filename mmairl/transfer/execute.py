"""Run the transfer tasks of a checkpoint: write its backbone, run each task in its own folder, and read the scores.

Each task is a run of `mmairl train` or `mmairl evaluate`.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import FUNCTIONS

from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.normrescale import NormRescaled
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import home, load_config, walk
from mmairl.engine.curves import SCALARS, read_scalars
from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.signals import start, stop
from mmairl.transfer.tasks import TASKS, task_config


@dataclass(frozen=True)
class Place:
    """Where tasks run: their folders and the number of their processes.

    Attributes:
        data: The folder that contains `data/`, in which the data sets are.
        work_dir: The folder for all tasks of this checkpoint.
        gpus: Number of processes of a task, one for each GPU.
    """

    data: Path
    work_dir: Path
    gpus: int


def write_start(checkpoint: str, part: str, anchor: str | None, place: Place) -> tuple[Path, int]:
    """Write the backbone of a checkpoint to a file from which tasks start. Return the file and the depth of the ResNet.

    If `anchor` is set, NormRescale rescales the weights to the norms of the weights in the checkpoint `anchor`.

    Raises:
        UserError: 'other-weights' if the tasks in `work_dir` started from other weights.
    """
    backbone = read_backbone(checkpoint, part)
    depth = resnet_of(backbone.weights, checkpoint)['depth']
    origin = {}
    if anchor is not None:
        backbone.weights.update(NormRescaled(checkpoint, anchor, part=part).weights()[0])
        origin['normrescale'] = anchor
    path = place.work_dir.absolute() / 'start.pth'
    if not path.is_file():
        write_backbone(backbone, path, 'mmairl', **origin)
        return path, depth
    stored = read_backbone(path).weights
    if not all(torch.equal(stored[key], value) for key, value in backbone.weights.items()):
        raise UserError(
            f'{place.work_dir}: its tasks started from other weights; use another folder (--work-dir), or remove this folder',
            code='other-weights',
        )
    return path, depth


def run_task(name: str, start: Path, depth: int, place: Place) -> dict[str, float]:
    """Run a task and return its scores. The keys are the columns of the results table.

    The values are percentages, except in the columns that `Task.plain` lists. If the task is finished, only its scores are
    read. If it was interrupted, it is resumed.
    """
    task = TASKS[name]
    config = str(task_config(name, depth))
    folder = place.work_dir.absolute() / name
    if task.protocol:
        file = folder / 'scores.json'
        cache = folder / 'features'
        words = ['evaluate', task.protocol, config, start, '--out', file, '--cache', cache]
        if not file.is_file():
            run([*words, '--cfg-options', f'model.backbone.depth={depth}'], place.data, place.gpus)
        scores = read_json(file)['scores']
    else:
        if not task.measured(last_scores(folder)):
            cfg = load_config(config)
            # A config with synthetic data draws the data first.
            data = FUNCTIONS.build(cfg.drawn) if 'drawn' in cfg else place.data
            words = ['train', config, '--work-dir', folder, '--resume', '--cfg-options']
            run([*words, *options_of(cfg, start)], data, place.gpus)
        # mmdet's CocoMetric reports no scores if the detector finds no object in any image. The scores are then 0.
        nothing_found = {key: 0.0 for key in task.scores.values() if key.startswith('coco/')}
        scores = nothing_found | last_scores(folder)
    return {column: task.times(column) * scores[key] for column, key in task.scores.items()}


def last_scores(folder: Path) -> dict[str, float]:
    """Return the last value of each scalar that a task logged, or {} if the task has not started."""
    if not any(folder.glob(f'*/{SCALARS}')):
        return {}
    return {name: values[-1] for name, (_, values) in read_scalars(folder).items()}


def options_of(cfg: Config, start: Path) -> list[str]:
    """Return the options by which a task starts from a checkpoint, as Python literals for --cfg-options.

    `total_batch_size` is divided among the processes, instead of the batch size per GPU in the config of mmdet or mmseg.
    """
    options: dict[str, Any] = {'train_dataloader.batch_size': None}
    for keys, _ in walk(cfg.model):
        if keys[-2:] == ('init_cfg', 'checkpoint'):
            options['.'.join(map(str, ('model', *keys)))] = str(start)
    if 'drawn' in cfg:
        # The configs for synthetic data work with ResNets of any depth and width.
        network = resnet_of(read_backbone(start).weights)
        width = network['base_channels'] * (1 if network['depth'] < 50 else 4)
        after = 'neck' if 'neck' in cfg.model else 'decode_head'
        for key in ('depth', 'stem_channels', 'base_channels'):
            options[f'model.backbone.{key}'] = network[key]
        options[f'model.{after}.in_channels'] = [width * 2**stage for stage in range(4)]
    return [f'{key}={value!r}' for key, value in options.items()]


def run(words: Sequence[str | Path], folder: Path, processes: int) -> None:
    """Run a command of mmairl in a folder, in one or several processes. Its output is not captured."""
    command = ['-m', 'mmairl', *map(str, words)]
    if processes > 1:
        launcher = ['-m', 'mmairl.engine.launcher', f'--nproc-per-node={processes}']
        command = [*launcher, *command, '--launcher', 'pytorch']
    paths = filter(None, (str(home()), os.environ.get('PYTHONPATH')))
    process = start(
        [sys.executable, *command], env=dict(PYTHONPATH=os.pathsep.join(paths)), cwd=folder
    )
    try:
        code = process.wait()
    finally:
        stop([process])
    if code:
        raise UserError(
            f"the task has failed ('mmairl {words[0]} {words[1]}'); see its messages above, and run the command again to "
            'resume the task',
            code='failed-run',
        )
