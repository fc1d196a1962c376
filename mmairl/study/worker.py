"""One run of a study: train (or go on), measure, and leave a result. python -m mmairl.study.worker FOLDER"""

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from torch.utils.data import Dataset, Subset

from mmairl.analysis.normrescale import normrescale
from mmairl.configs import load_config
from mmairl.engine.distributed import start_processes
from mmairl.engine.launch import register, train
from mmairl.engine.scalars import read_scalars
from mmairl.errors import REQUEUE, UserError, one_sentence_errors, stop_processes
from mmairl.evaluation.backbone import load_backbone, refresh_statistics
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import data_identity, difference, key_of, versions
from mmairl.evaluation.protocol import (
    BY_TRAINING,
    ON_FEATURES,
    Settings,
    default_device,
    evaluate,
    extraction,
    identity_of,
)
from mmairl.files import write_json
from mmairl.registry import DATASETS
from mmairl.study.factors import hidden_factors
from mmairl.study.start import RecordStart
from mmairl.weights.read import Backbone, read_backbone
from mmairl.weights.write import write_backbone

STATISTICS = 200  # batches that batch norm's statistics are measured on, as many as PreciseBN takes
FEATURES = 'features'  # of the protocols that share them, until all are measured
SIZES = ('type', 'depth', 'stem_channels', 'base_channels')  # what a network has on every data set
CURVES = ('loss', 'instance_accuracy', 'similarity', 'probe_accuracy')
PATIENCE = 60  # seconds that the next start of a run waits for one that is stopping, and saving
KNOWN_DATA: dict[str, dict[str, Any]] = {}
PACKAGES = ('torch', 'torchvision', 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmsegmentation', 'numpy')


@one_sentence_errors
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('folder', type=Path, help='as tools/study.py lays it out: asked.json and asked/config.yaml')
    parser.add_argument('--launcher', choices=['none', 'pytorch', 'slurm'], default='none')
    parser.add_argument(
        '--transfer', type=int, metavar='GPUS', help='the tasks of tools/transfer.py, each by so many GPUs'
    )
    args = parser.parse_args()
    warnings.filterwarnings('ignore')
    register()
    try:
        # One lock for each rank, so that two starts of one run meet whatever launched them.
        with FileLock(args.folder / f'.lock_{rank_told()}', timeout=PATIENCE):
            if args.transfer is None:
                run(args.folder, args.launcher)
            else:
                transfer(args.folder, args.transfer)
    except Timeout:  # such as a job that was requeued while a node that cannot be reached still runs it
        print(f'error: another process is working on {args.folder}; start this again later', file=sys.stderr)
        sys.exit(REQUEUE)
    stop_processes()


def rank_told() -> str:
    """This process's number as its launcher says it, before there is a group."""
    return os.environ.get('RANK', os.environ.get('SLURM_PROCID', '0'))


def run(folder: Path, launcher: str = 'none') -> None:
    """Train what is not trained, measure what is not measured."""
    asked = json.loads((folder / 'asked.json').read_text())
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    cfg.work_dir, cfg.randomness.seed, cfg.resume = str(folder), asked['seed'], True
    trained = folder / 'trained.json'
    if not trained.is_file() and {'rescaled', 'along'} & set(asked):
        if launcher == 'none' or rank_told() == '0':  # the others wait for it where the processes meet
            if 'rescaled' in asked:
                rescale(cfg, folder, **asked['rescaled'])
            else:
                earlier(folder, **asked['along'])
    elif not trained.is_file():
        record_start = dict(type=RecordStart.__name__, path=str(folder / 'start.json'))
        cfg.custom_hooks = [*cfg.get('custom_hooks', []), record_start]
        runner = train(cfg, launcher)
        seconds = next(hook.seconds for hook in runner.hooks if isinstance(hook, RecordStart))
        record = dict(
            seconds=seconds,
            device_seconds=seconds * get_world_size(),
            steps=runner.max_iters // runner.optim_wrapper._accumulative_counts,
            images_seen=runner.max_iters * runner.train_dataloader.batch_size * get_world_size(),
        )
        if is_main_process():
            write_json(trained, {**record, 'start': json.loads((folder / 'start.json').read_text())})
    start_processes(launcher)
    checkpoint = last_checkpoint(folder)
    local = [task for task in asked['tasks'] if is_local(task)]
    measured = {task: measure(task, folder, checkpoint, launcher) for task in local}
    if is_main_process():
        write_json(
            folder / 'result.json', {**json.loads(trained.read_text()), **describe(cfg, folder, checkpoint, measured)}
        )
        shutil.rmtree(folder / FEATURES, ignore_errors=True)


def outdated(folder: Path, result: Mapping[str, Any]) -> str:
    """What a finished run's scores depend on and is another now; '' where nothing is, or what they depend on is gone.

    Versions of code do not count here: the page says which each run was measured by.
    """
    checkpoint = folder / result['checkpoint']
    if not checkpoint.is_file():
        return ''
    if result.get('file') != _file(checkpoint) and sha256(checkpoint) != result['sha256']:
        return 'checkpoint'
    for task in filter(is_local, result['scores']):
        there = result.get('identities', {}).get(task, {})
        try:
            here = identity_of(*settings_of(task, folder, checkpoint), data=known_data)
        except (UserError, OSError):  # such as data that are not on this machine
            continue
        if differs := difference({**there, 'code': ''}, {**here, 'code': ''}):
            return f'{task}: {differs}'
    return ''


def known_data(described: Mapping[str, Any], dataset: Dataset) -> dict[str, Any]:
    """The identity of a data set, which is looked at once in a process: the runs of a study share theirs."""
    key = json.dumps(described, default=str)
    if key not in KNOWN_DATA:
        KNOWN_DATA[key] = data_identity(described, dataset)
    return KNOWN_DATA[key]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _file(path: Path) -> list[int]:
    return [path.stat().st_size, path.stat().st_mtime_ns]


def rescale(cfg: Config, folder: Path, of: str, anchor: str | None = None, constant: float | None = None) -> None:
    """The weights of another run, NormRescaled by a third's or by a constant; nothing is trained.

    Its batch statistics are measured anew, for the old ones belong to the activations before and k-NN would be at chance.
    """
    start = time.perf_counter()
    for needed in filter(None, (of, anchor)):
        require_finished(folder, needed)
    backbone = read_backbone(str(last_checkpoint(Path(of))))
    by = None if anchor is None else read_backbone(str(last_checkpoint(Path(anchor)))).weights
    backbone.weights.update(normrescale(backbone.weights, by, constant)[0])
    network = load_backbone(cfg, backbone)
    how = extraction(cfg, default_device())
    data = DATASETS.build(cfg.evaluation.train)
    some = Subset(data, range(0, len(data), max(1, len(data) // (STATISTICS * how.batch_size))))
    refresh_statistics(network.to(how.device), (images for images, *_ in how.images(some, 'batch statistics')))
    backbone.weights.update(network.cpu().state_dict())
    seconds = time.perf_counter() - start
    keep(backbone, folder / 'rescaled.pth', Path(of), dict(seconds=seconds, device_seconds=seconds * get_world_size()))


def require_finished(folder: Path, source: str) -> None:
    """Half-trained weights, or those of a part of the half, would pass for the run's."""
    if not (Path(source) / 'result.json').is_file():
        raise UserError(f'{folder} is made from the run in {source}, which is not finished; finish that run first')


def earlier(folder: Path, of: str, part: str) -> None:
    """The weights that another run saved after a `part` of it, such as 50/300 of its epochs; nothing is trained."""
    require_finished(folder, of)
    last = last_checkpoint(Path(of))
    saved = last.with_name(re.sub(r'\d+', lambda end: str(round(int(end[0]) * Fraction(part))), last.name))
    if not saved.is_file():
        raise UserError(
            f'{last.parent} kept no {saved.name}; its config wants max_keep_ckpts=-1 and an interval for it'
        )
    trained = json.loads((last.parent / 'trained.json').read_text())
    seen = {key: round(trained[key] * Fraction(part)) for key in ('steps', 'images_seen')}
    keep(read_backbone(str(saved)), folder / 'taken.pth', Path(of), dict(seen, seconds=0.0, device_seconds=0.0))


def keep(backbone: Backbone, path: Path, source: Path, spent: dict[str, float]) -> None:
    """Leave weights that were made of another run's as a run leaves its own; what is not `spent` here is as of the source."""
    write_backbone(backbone, path, 'mmairl')
    (path.parent / 'last_checkpoint').write_text(path.name)
    write_json(path.with_name('trained.json'), {**json.loads((source / 'trained.json').read_text()), **spent})


def transfer(folder: Path, gpus: int) -> None:
    """The run's tasks on mmdet and mmseg, added to its result; each is resumed and kept in a folder of its own."""
    from mmairl.transfer.run import Place, prepare, run_task  # needs the platforms

    asked = json.loads((folder / 'asked.json').read_text())
    result = json.loads((folder / 'result.json').read_text())
    place = Place(Path('.').absolute(), folder / f'transfer_{result["sha256"][:16]}', gpus)
    start, depth = prepare(str(folder / result['checkpoint']), 'student', None, place)
    for task in asked['tasks']:
        if not is_local(task) and task not in result['labels']:
            scores = run_task(task, start, depth, place)
            result['scores'].update(scores)
            result['labels'].update({task: task, **{name: name for name in scores}})
            write_json(folder / 'result.json', result)


def last_checkpoint(folder: Path) -> Path:
    return folder / Path((folder / 'last_checkpoint').read_text().strip()).name


def settings_of(task: str, folder: Path, checkpoint: Path) -> tuple[Config, str, Backbone, Settings]:
    """What `identity_of` and `evaluate` take for a task.

    PROTOCOL@CONFIG measures on one of configs/evaluation, TASK#SEED trains its classifier once more from another seed.
    """
    task, _, seed = task.partition('#')
    protocol, _, elsewhere = task.partition('@')
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    if elsewhere:
        network = {key: cfg.model.backbone[key] for key in SIZES if key in cfg.model.backbone}
        width = cfg.model.get('in_channels') or cfg.model.projector.in_channels
        cfg = load_config(f'mmairl::evaluation/{elsewhere}.py')
        cfg.merge_from_dict({'model.backbone': network, 'model.in_channels': width})
    sweep = cfg.get('evaluation', {}).get('sweep', False)
    settings = Settings(ks=[20], device=default_device(), sweep=sweep, seed=int(seed) if seed else None)
    return cfg, protocol, read_backbone(str(checkpoint)), settings


def measure(task: str, folder: Path, checkpoint: Path, launcher: str) -> dict[str, Any]:
    """The task's scores by name, and their identity; a result of the same identity is read."""
    cfg, protocol, found, settings = settings_of(task, folder, checkpoint)
    identity = on_main_process(lambda: identity_of(cfg, protocol, found, settings))
    done = result_file(folder, task, identity)
    own = done.with_suffix('')
    if done.is_file():
        return json.loads(done.read_text())
    settings = replace(settings, cache=folder / FEATURES, work_dir=own, launcher=launcher)
    result = evaluate(cfg, protocol, checkpoint, settings=settings)
    record = dict(scores=result.scores, identity=result.identity, right=result.details.get('right'))
    if is_main_process():
        write_json(done, record)
    return record


def result_file(folder: Path, task: str, identity: Mapping[str, Any]) -> Path:
    return folder / f'{task}_{key_of(identity)}.json'


def describe(cfg: Config, folder: Path, checkpoint: Path, measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """All that the page says of a run."""
    first = {task: next(iter(found['scores'].items())) for task, found in measured.items()}
    return dict(
        scores={task: score for task, (_, score) in first.items()},
        labels={task: f'{name} {task.partition("@")[2]}'.strip() for task, (name, _) in first.items()},
        further={
            f'{task} {name}': score
            for task, (main, _) in first.items()
            for name, score in measured[task]['scores'].items()
            if name != main
        },
        identities={task: found['identity'] for task, found in measured.items()},
        checkpoint=checkpoint.name,
        sha256=sha256(checkpoint),
        file=_file(checkpoint),
        git=git_state(),
        versions=versions(PACKAGES),
        hardware=hardware(),
        evaluation=json.dumps(cfg.get('evaluation', {}).to_dict(), sort_keys=True, default=str),
        curves=curves(folder),
        hidden=hidden_factors(cfg),
    )


def curves(folder: Path) -> dict[str, Any]:
    """What was logged along the way; a run without training has none."""
    if not list(folder.glob('*/vis_data/scalars.json')):
        return {}
    return {name: curve for name, curve in read_scalars(folder).items() if name in CURVES}


def git_state() -> str:
    """The commit of the code and whether it was changed since, where it is a checkout and git is installed."""
    command = ['git', 'describe', '--always', '--exclude=*', '--dirty= with changes']
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return 'not a checkout'
    return done.stdout.strip() or 'not a checkout'


def hardware() -> str:
    if torch.cuda.is_available():
        return f'{get_world_size()} x {torch.cuda.get_device_name()}'
    return f'CPU ({platform.machine()}), {get_world_size()} process(es) of {torch.get_num_threads()} thread(s)'


def is_local(task: str) -> bool:
    """Whether a task is a protocol of tools/evaluate.py; the others are tools/transfer.py's."""
    found = re.fullmatch(r'(\w+)(@[^#]+)?(#\d+)?', task)
    return bool(found) and (found[1] in BY_TRAINING or (found[1] in ON_FEATURES and not found[3]))


if __name__ == '__main__':
    main()
