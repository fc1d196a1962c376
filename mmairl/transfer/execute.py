"""One checkpoint through the tasks: its backbone is written once, each task runs in its own folder, its scores are read back.

A task is a process of its own, or several: python -m mmairl.transfer.execute FOLDER
"""

if __name__ == '__main__':
    from mmairl.startup import prepare

    prepare()  # before the imports below, which take seconds

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

from mmairl.checkpoints.formats import resnet_of
from mmairl.checkpoints.normrescale import NormRescaled
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config, walk
from mmairl.engine.curves import read_scalars
from mmairl.engine.run import register, train
from mmairl.errors import Diverged, UserError, one_sentence_errors
from mmairl.evaluation.identity import claim, code_identity, config_identity, files_identity, weights_identity
from mmairl.evaluation.protocol import default_device, default_workers, evaluate, settings_for
from mmairl.io import read_json, write_json
from mmairl.signals import start, stop, stop_processes
from mmairl.transfer.tasks import TASKS, config_of


@dataclass(frozen=True)
class Place:
    """The folder that has `data/`, the folder of this checkpoint's runs, and the number of processes of a run."""

    data: Path
    work_dir: Path
    gpus: int


def prepare(checkpoint: str, part: str, anchor: str | None, place: Place) -> tuple[Path, int]:
    """The backbone as a checkpoint of ours, rescaled where an anchor is given, and its depth.

    A folder that holds the runs of other weights is refused before anything is written.
    """
    backbone, origin = read_backbone(checkpoint, part), {}
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
    name: str, start: Path, depth: int, place: Place, options: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """The task's scores in percent by the paper's columns; a finished task is read, an interrupted one is resumed."""
    found = _measured(place.work_dir / name, name, start, depth, place, options or {})
    return {column: TASKS[name].times(column) * found[key] for column, key in TASKS[name].scores.items()}


def tune_task(
    name: str, start: Path, depth: int, place: Place, trials: Sequence[Mapping[str, Any]]
) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return the best of `trials`, options of the task's config, on images that it holds out, and what all scored there."""
    column, key = next(iter(TASKS[name].scores.items()))
    halves: dict[str, list[float]] = {}
    for number, options in enumerate(trials):
        trial = f'trial_{number}'
        found = _measured(place.work_dir / f'{name}_{trial}', name, start, depth, place, options, held_out=True)
        halves[trial] = [TASKS[name].times(column) * half.get(key, 0.0) for half in found['halves']]
    tried = {trial: mean(scores) for trial, scores in halves.items()}
    best = max(tried, key=tried.get)
    kept = dict(chosen=best, held_out=tried, halves=halves, trials=list(trials))
    return trials[list(tried).index(best)], kept


def _measured(
    folder: Path,
    name: str,
    start: Path,
    depth: int,
    place: Place,
    options: Mapping[str, Any],
    held_out: bool = False,
) -> dict[str, Any]:
    """Return what a run of the task scores by its own names, on the test images or on the halves of those held out."""
    task, config = TASKS[name], str(config_of(name, depth))
    cfg = load_config(config, dict(options))
    root = FUNCTIONS.build(cfg.drawn) if 'drawn' in cfg else place.data
    data = sorted(str(file) for path in task.data or ('data',) for file in (root / path).rglob('*') if file.is_file())
    identity = dict(
        weights=weights_identity(read_backbone(start).weights),
        config=config_identity(cfg.to_dict()),
        data=files_identity(data, root),
        code=code_identity(),
    )
    claim(folder, identity)
    done = folder / 'result.json'
    if not done.is_file():
        asked = dict(config=config, options=dict(options), held_out=held_out, protocol=task.protocol, depth=depth)
        write_json(folder / 'task.json', dict(asked, start=str(start.resolve()), data=str(root)))
        _run(folder, place.gpus)
    return read_json(done)


def _run(folder: Path, processes: int) -> None:
    """This module as a command, on each GPU or as that many CPU processes; its output is the user's to see."""
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
        raise UserError(f'the run in {folder} has failed; see its messages above, and start it again to resume it')


def start_from(cfg: Config, checkpoint: str) -> Config:
    """Take every pre-trained part of the config's model from one checkpoint."""
    for init in dicts(cfg.model):
        if init.get('type') == 'mmairl.PretrainedBackbone':
            init['checkpoint'] = str(checkpoint)
    return cfg


def take_network(cfg: Config, network: dict) -> None:
    """Make the config's ResNet as deep and wide as `network`, and what follows it as wide as its stages."""
    cfg.model.backbone.update({key: network[key] for key in ('depth', 'stem_channels', 'base_channels')})
    widths = [network['base_channels'] * 2**stage * (1 if network['depth'] < 50 else 4) for stage in range(4)]
    cfg.model['neck' if 'neck' in cfg.model else 'decode_head'].in_channels = widths


def dicts(node: object) -> Iterator[dict]:
    """Every dictionary in a config."""
    return (value for _, value in walk(node) if isinstance(value, dict))


def _by_protocol(cfg: Config, asked: Mapping[str, Any], args: argparse.Namespace) -> dict[str, float]:
    cfg.model.backbone.depth, cfg.model.in_channels = asked['depth'], 512 if asked['depth'] < 50 else 2048
    settings = settings_for(
        asked['protocol'],
        device=default_device(),
        workers=default_workers(),
        cache=Path('work_dirs/features'),
        work_dir=args.folder / 'result',
        launcher=args.launcher,
    )
    return evaluate(cfg, asked['protocol'], asked['start'], settings=settings).scores


def _by_platform(cfg: Config, asked: Mapping[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Train and test by mmdet or mmseg; with `held_out`, on both halves of such images, where one that diverges has nothing."""
    cfg = start_from(cfg, asked['start'])
    if 'drawn' in cfg:
        take_network(cfg, resnet_of(read_backbone(asked['start']).weights, asked['start']))
    # The share of a process in total_batch_size, and not mmdet's 2 of 8 GPUs.
    cfg.train_dataloader.batch_size = None
    cfg.work_dir, cfg.resume = str(args.folder), True
    if not asked['held_out']:
        train(cfg, args.launcher)
        return _last_scores(args.folder)
    first, second = (copy.deepcopy(cfg) for _ in cfg.held_out)
    for half, changes in zip((first, second), cfg.held_out):
        half.merge_from_dict(changes)
    first.update(test_dataloader=second.val_dataloader, test_evaluator=second.val_evaluator, test_cfg=dict())
    try:
        tested = train(first, args.launcher).test()
    except Diverged:
        return dict(halves=[{}, {}])
    return dict(halves=[_last_scores(args.folder), {name: float(value) for name, value in tested.items()}])


def _last_scores(folder: Path) -> dict[str, float]:
    return {name: values[-1] for name, (_, values) in read_scalars(folder).items()}


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', type=Path, help='of a task, with its task.json')
    parser.add_argument('--launcher', choices=['none', 'pytorch'], default='none')
    args = parser.parse_args()
    register()
    asked = read_json(args.folder / 'task.json')
    cfg = load_config(asked['config'], asked['options'])
    for node in dicts(cfg._cfg_dict):
        for key, value in node.items():
            if isinstance(value, str) and value.startswith('data/'):
                node[key] = str(Path(asked['data']) / value)
    found = _by_protocol(cfg, asked, args) if asked['protocol'] else _by_platform(cfg, asked, args)
    if is_main_process():
        write_json(args.folder / 'result.json', found)
    stop_processes()


if __name__ == '__main__':
    main()
