"""Run the transfer tasks of a checkpoint: write its backbone, run each task in its own folder, and read the scores.

The processes of a task run the command `python -m mmairl.transfer.execute FOLDER`.
"""

if __name__ == '__main__':
    from mmairl.signals import prepare

    prepare()  # this makes signals end the process during the imports below, which take seconds

import argparse
import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from mmengine.config import Config
from mmengine.dist import is_main_process
from mmengine.registry import FUNCTIONS

from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.normrescale import NormRescaled
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config, walk
from mmairl.engine.curves import read_scalars
from mmairl.engine.run import register, train
from mmairl.errors import Diverged, UserError, one_sentence_errors
from mmairl.evaluation.identity import (
    claim,
    code_identity,
    config_identity,
    files_identity,
    weights_identity,
)
from mmairl.evaluation.protocol import default_device, default_workers, evaluate, settings_for
from mmairl.io import read_json, write_json
from mmairl.signals import start, stop, stop_processes
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


def write_start(
    checkpoint: str,
    part: str,
    anchor: str | None,
    place: Place,
) -> tuple[Path, int]:
    """Write the backbone of a checkpoint to a file from which tasks start. Return the file and the depth of the ResNet.

    If `anchor` is set, NormRescale rescales the weights to the norms of the weights in the checkpoint `anchor`.

    Raises:
        UserError: If `work_dir` contains tasks of other weights. Nothing is written in this case.
    """
    backbone = read_backbone(checkpoint, part)
    origin = {}
    depth = resnet_of(backbone.weights, checkpoint)['depth']
    if anchor is not None:
        backbone.weights.update(NormRescaled(checkpoint, anchor, part=part).weights()[0])
        origin['normrescale'] = anchor
    start = place.work_dir / 'start.pth'
    claim(place.work_dir, dict(weights=weights_identity(backbone.weights)), results=(start.name,))
    if not start.is_file():
        write_backbone(backbone, start, 'mmairl', **origin)
    return start, depth


def run_task(
    name: str,
    start: Path,
    depth: int,
    place: Place,
    options: Mapping[str, Any] | None = None,
) -> dict[str, float]:
    """Run a task and return its scores. The keys are the columns of the results table.

    The values are percentages, except in the columns that `Task.plain` lists. If the task is finished, only its scores are
    read. If it was interrupted, it is resumed.
    """
    task = TASKS[name]
    scores = _measured(place.work_dir / name, name, start, depth, place, options or {})
    # mmdet's CocoMetric reports no scores if the detector finds no object in any image. The scores are then 0.
    nothing_found = {key: 0.0 for key in task.scores.values() if key.startswith('coco/')}
    scores = nothing_found | scores
    return {column: task.times(column) * scores[key] for column, key in task.scores.items()}


def tune_task(
    name: str,
    start: Path,
    depth: int,
    place: Place,
    trials: Sequence[Mapping[str, Any]],
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Run a task with several sets of options (trials). Return the options with the highest score, and a record of all trials.

    The options of a trial change the config of the task. The trials are compared by the task's first score, averaged over
    the two halves of the held-out images.
    """
    task = TASKS[name]
    column, key = next(iter(task.scores.items()))
    halves: dict[str, list[float]] = {}
    for number, options in enumerate(trials):
        trial = f'trial_{number}'
        folder = place.work_dir / f'{name}_{trial}'
        measured = _measured(folder, name, start, depth, place, options, held_out=True)
        halves[trial] = [task.times(column) * half.get(key, 0.0) for half in measured['halves']]
    tried = {trial: mean(scores) for trial, scores in halves.items()}
    best = max(tried, key=tried.get)
    record = dict(chosen=best, held_out=tried, halves=halves, trials=list(trials))
    return trials[list(tried).index(best)], record


def _measured(
    folder: Path,
    name: str,
    start: Path,
    depth: int,
    place: Place,
    options: Mapping[str, Any],
    held_out: bool = False,
) -> dict[str, Any]:
    """Run a task unless its result exists, and return its scores, named as in mmdet, mmseg or the protocol.

    The scores are measured on the test images or, if `held_out` is true, on each half of the held-out images.
    """
    task = TASKS[name]
    config = str(task_config(name, depth))
    cfg = load_config(config, dict(options))
    root = FUNCTIONS.build(cfg.drawn) if 'drawn' in cfg else place.data
    files = (file for path in task.data or ('data',) for file in (root / path).rglob('*'))
    data = sorted(str(file) for file in files if file.is_file())
    identity = dict(
        weights=weights_identity(read_backbone(start).weights),
        config=config_identity(cfg.to_dict()),
        data=files_identity(data, root),
        code=code_identity(),
    )
    claim(folder, identity)
    done = folder / 'result.json'
    if not done.is_file():
        request = dict(
            config=config,
            options=dict(options),
            held_out=held_out,
            protocol=task.protocol,
            depth=depth,
            start=str(start.resolve()),
            data=str(root),
        )
        write_json(folder / 'task.json', request)
        _run(folder, place.gpus)
    return read_json(done)


def _run(folder: Path, processes: int) -> None:
    """Run this module as a command, in one or several processes. The output of the command is not captured."""
    command = ['-m', 'mmairl.transfer.execute', str(folder)]
    if processes > 1:
        torchrun = ['-m', 'mmairl.engine.launcher', f'--nproc_per_node={processes}']
        command = [*torchrun, *command, '--launcher', 'pytorch']
    process = start([sys.executable, *command])
    try:
        code = process.wait()
    finally:
        stop([process])
    if code:
        raise UserError(
            f'{folder}: the task has failed; see its messages above, and run the command again to resume the task',
            code='failed-run',
        )


def start_from(cfg: Config, checkpoint: str) -> Config:
    """Set the checkpoint from which the pre-trained parts of the config's model start."""
    for init in dicts(cfg.model):
        if init.get('type') == 'mmairl.PretrainedBackbone':
            init['checkpoint'] = str(checkpoint)
    return cfg


def take_network(cfg: Config, network: dict) -> None:
    """Give the config's ResNet the size of `network`, and adapt the input channels of the module after the ResNet."""
    size = {key: network[key] for key in ('depth', 'stem_channels', 'base_channels')}
    cfg.model.backbone.update(size)
    first = network['base_channels'] * (1 if network['depth'] < 50 else 4)
    after = 'neck' if 'neck' in cfg.model else 'decode_head'
    cfg.model[after].in_channels = [first * 2**stage for stage in range(4)]


def dicts(node: object) -> Iterator[dict]:
    """Yield every dictionary in a config."""
    return (value for _, value in walk(node) if isinstance(value, dict))


def _by_protocol(
    cfg: Config, request: Mapping[str, Any], folder: Path, launcher: str
) -> dict[str, float]:
    depth = request['depth']
    cfg.model.backbone.depth = depth
    cfg.model.in_channels = 512 if depth < 50 else 2048
    settings = settings_for(
        request['protocol'],
        cfg,
        device=default_device(),
        workers=default_workers(),
        cache=Path('work_dirs/features'),
        work_dir=folder / 'result',
        launcher=launcher,
    )
    return evaluate(cfg, request['protocol'], request['start'], settings=settings).scores


def _by_platform(
    cfg: Config, request: Mapping[str, Any], folder: Path, launcher: str
) -> dict[str, Any]:
    """Train and test with mmdet or mmseg, and return the scores.

    If the request sets `held_out`, test on each half of the held-out images instead of the test images. If the training
    diverges in this case, the scores are empty.
    """
    cfg = start_from(cfg, request['start'])
    if 'drawn' in cfg:
        take_network(cfg, resnet_of(read_backbone(request['start']).weights, request['start']))
    # Without this line, the batch size per GPU in the config of mmdet or mmseg would apply, for any number of GPUs. Instead,
    # total_batch_size is divided among the processes.
    cfg.train_dataloader.batch_size = None
    cfg.work_dir = str(folder)
    cfg.resume = True
    if not request['held_out']:
        train(cfg, launcher)
        return _last_scores(folder)
    first, second = (copy.deepcopy(cfg) for _ in cfg.held_out)
    for half, changes in zip((first, second), cfg.held_out):
        half.merge_from_dict(changes)
    first.update(
        test_dataloader=second.val_dataloader, test_evaluator=second.val_evaluator, test_cfg=dict()
    )
    try:
        tested = train(first, launcher).test()
    except Diverged:
        return dict(halves=[{}, {}])
    on_second = {name: float(value) for name, value in tested.items()}
    return dict(halves=[_last_scores(folder), on_second])


def _last_scores(folder: Path) -> dict[str, float]:
    return {name: values[-1] for name, (_, values) in read_scalars(folder).items()}


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        'folder', type=Path, help='run the task that task.json in this folder describes'
    )
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch'],
        default='none',
        help='join the processes of this launcher (default: none)',
    )
    args = parser.parse_args()
    register()
    request = read_json(args.folder / 'task.json')
    cfg = load_config(request['config'], request['options'])
    for node in dicts(cfg._cfg_dict):
        for key, value in node.items():
            if isinstance(value, str) and value.startswith('data/'):
                node[key] = str(Path(request['data']) / value)
    run = _by_protocol if request['protocol'] else _by_platform
    scores = run(cfg, request, args.folder, args.launcher)
    if is_main_process():
        write_json(args.folder / 'result.json', scores)
    stop_processes()


if __name__ == '__main__':
    main()
