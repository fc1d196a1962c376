"""A run is measured by its study's tasks; what it has left is described, and what is no longer true of it is said."""

import copy
import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from msgspec.structs import asdict

from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.config import load_config
from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import UNKNOWN, difference, identity_of, is_verified, key_of, model_at, versions
from mmairl.evaluation.protocol import (
    Protocol,
    default_device,
    default_workers,
    evaluate,
    is_protocol,
    protocol_class,
    settings_for,
)
from mmairl.evaluation.recipes import recipe_of
from mmairl.evaluation.sources import package_source
from mmairl.io import read_json, write_json
from mmairl.registry import PROTOCOLS
from mmairl.study.factors import hidden_factors
from mmairl.study.reuse import known_data, last_checkpoint, origin
from mmairl.study.schema import Asked, Measured, Result, Trained
from mmairl.transfer.tasks import TASKS

FEATURES = 'features'  # of the protocols that share them, until all are measured
SIZES = ('type', 'depth', 'stem_channels', 'base_channels')  # what a network has on every data set
CURVES = ('loss', 'instance_accuracy', 'similarity', 'probe_accuracy')
PACKAGES = ('torch', 'torchvision', 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmsegmentation', 'numpy')


def protocol_name(task: str) -> str:
    """Return the protocol of PROTOCOL, PROTOCOL@CONFIG or PROTOCOL#SEED."""
    return re.split('[@#]', task)[0]


def is_local(task: str) -> bool:
    """Return whether a task is a protocol of tools/evaluate.py; the others are tasks of tools/transfer.py.

    Only protocols that train a classifier can repeat it from another seed.
    """
    parts = re.fullmatch(r'(\w+)(@[^#]+)?(#\d+)?', task)
    if not parts or not is_protocol(parts[1]):
        return False
    return not parts[3] or protocol_class(parts[1]).trains


def measures(untrained: str | None, task: str) -> bool:
    """Return whether a task is for a row: null rows have only the protocols that list them."""
    if not untrained:
        return True
    return is_local(task) and untrained in protocol_class(protocol_name(task)).null_rows


def recipe(cfg: Config, task: str) -> Mapping[str, Any]:
    """The config that a task trains by; empty where it trains nothing, or where its platform is not installed."""
    if is_local(task):
        protocol = protocol_name(task)
        return recipe_of(data_of(task) or cfg, protocol) if protocol_class(protocol).trains else {}
    try:
        return _loaded(f'mmairl::{TASKS[task].config.format(depth=50)}.py')
    except UserError:
        return {}


_loaded = cache(load_config)


def data_of(task: str) -> Config | None:
    """The config of configs/evaluation that PROTOCOL@CONFIG names, or None for another task."""
    elsewhere = task.partition('#')[0].partition('@')[2]
    return copy.deepcopy(_loaded(f'mmairl::evaluation/{elsewhere}.py')) if elsewhere else None


def require_known(tasks: Sequence[str]) -> None:
    """Refuse a task that nothing measures."""
    for task in tasks:
        data_of(task)  # is there
        if not is_local(task) and task not in TASKS:
            known = ', '.join(dict.fromkeys([*PROTOCOLS.names(), *TASKS]))
            raise UserError(
                f"there is no task '{task}'; say some of {known}, PROTOCOL@CONFIG of configs/evaluation, or "
                'linear#1 for its classifier from another seed'
            )


def settings_of(task: str, folder: Path, asked: Asked) -> tuple[Config, Protocol]:
    """Return the config and the protocol of a task, with its settings.

    PROTOCOL@CONFIG measures on one of configs/evaluation, TASK#SEED trains its classifier once more from another seed.
    """
    elsewhere = data_of(task)
    task, _, seed = task.partition('#')
    protocol = task.partition('@')[0]
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    if elsewhere:
        network = {key: cfg.model.backbone[key] for key in SIZES if key in cfg.model.backbone}
        width = cfg.model.get('in_channels') or cfg.model.projector.in_channels
        imports = {key: cfg[key] for key in ('custom_imports',) if key in cfg}
        cfg = elsewhere
        cfg.merge_from_dict({'model.backbone': network, 'model.in_channels': width, **imports})
    seed = int(seed) if seed else None
    trials = asked.tuned.get(task, ()) or None
    settings = settings_for(protocol, device=default_device(), workers=default_workers(), seed=seed, trials=trials)
    return cfg, settings


def measure(task: str, folder: Path, asked: Asked, launcher: str) -> Measured:
    """Measure a task, or read its result where there is one of the same identity."""
    cfg, settings = settings_of(task, folder, asked)
    subject = asked.untrained or _weights(last_checkpoint(folder), cfg)
    made = {} if asked.untrained else read_json(folder / 'trained.json', Trained).made
    identity = on_main_process(lambda: identity_of(cfg, settings, subject, made))
    if known := on_main_process(lambda: _stored(folder, task, identity)):
        return known
    done = result_file(folder, task, identity)
    settings = replace(settings, cache=folder / FEATURES, work_dir=done.with_suffix(''), launcher=launcher)
    result = evaluate(cfg, settings.name, subject, settings=settings, asked=made)
    tuned = {key: result.details[key] for key in ('chosen', 'held_out', 'halves') if key in result.details}
    measured = Measured(result.scores, result.identity, result.details.get('right'), tuned, result.left_out)
    if is_main_process():
        write_json(done, measured)
    return measured


def _weights(checkpoint: Path, cfg: Config) -> Backbone:
    return read_backbone(str(checkpoint), network=tensors_of_config(cfg))


def _stored(folder: Path, task: str, identity: Mapping[str, Any]) -> Measured | None:
    """Return the result of this identity, which an earlier version may have stored by another key."""
    stored = (read_json(path, Measured) for path in sorted(folder.glob(f'{task}_*.json')))
    return next((result for result in stored if not difference(result.identity, identity)), None)


def forget(folder: Path, task: str) -> None:
    """Remove what is stored of a task's scores, so that it is measured again."""
    if is_local(task):
        paths = [
            path for path in folder.iterdir() if re.fullmatch(rf'{re.escape(task)}_[0-9a-f]{{16}}(\.json)?', path.name)
        ]
    else:
        places = [place for pattern in ('transfer_*', 'transfer_*/*') for place in folder.glob(pattern)]
        paths = [path for place in places for path in (place / task, *place.glob(f'{task}_trial_*'))]
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def result_file(folder: Path, task: str, identity: Mapping[str, Any]) -> Path:
    return folder / f'{task}_{key_of(identity)}.json'


def result_of(cfg: Config, folder: Path, asked: Asked, measured: Mapping[str, Measured]) -> Result:
    """Return all that the page says of a run; a task's first score is its own, and others stand beside it."""
    weights: dict[str, Any] = {}
    if not asked.untrained:
        checkpoint, trained = last_checkpoint(folder), read_json(folder / 'trained.json', Trained)
        weights = dict(asdict(trained), checkpoint=checkpoint.name, sha256=sha256(checkpoint), file=_file(checkpoint))
        weights['weights'] = model_at(checkpoint).weights
        weights |= dict(curves=curves(folder), hidden={} if asked.given else hidden_factors(cfg))
    first = {task: next(iter(result.scores.items())) for task, result in measured.items()}
    how = {
        key: value for key, value in cfg.get('evaluation', {}).items() if value is not False
    }  # a False says the same as nothing
    return Result(
        **weights,
        scores={task: score for task, (_, score) in first.items()},
        labels={task: f'{name} {task.partition("@")[2]}'.strip() for task, (name, _) in first.items()},
        further={
            f'{task} {name}': score
            for task, (main, _) in first.items()
            for name, score in measured[task].scores.items()
            if name != main
        },
        identities={task: result.identity for task, result in measured.items()},
        left_out={task: result.left_out for task, result in measured.items() if result.left_out},
        tuned={task: result.tuned for task, result in measured.items() if result.tuned},
        git=git_state(),
        versions=versions(PACKAGES),
        hardware=hardware(),
        evaluation=json.dumps(how, sort_keys=True, default=str),
    )


def outdated(folder: Path, result: Result, asked: Asked) -> str:
    """Say what a finished run's scores depend on and is another now; '' where nothing is, or what they depend on is gone.

    Versions of code do not count here: the page says which each run was measured by.
    """
    checkpoint = folder / result.checkpoint
    if differs := difference(result.made, origin(asked, folder)):
        return f'weights: {differs}'
    if not asked.untrained and not checkpoint.is_file():
        return ''
    try:
        if not asked.untrained and _is_replaced(checkpoint, result):
            return 'checkpoint'
        weights = asked.untrained or _weights(checkpoint, load_config(str(folder / 'asked' / 'config.yaml')))
    except UserError as error:
        return f'checkpoint ({UNKNOWN}{error})'
    for task in asked.tasks:
        there, here = result.tuned.get(task, {}).get('trials', []), list(asked.tuned.get(task, ()))
        if task in result.labels and not is_local(task) and there != here:
            return f'{task}: its trials'
    for task in filter(is_local, result.scores):
        cfg, settings = settings_of(task, folder, asked)
        here = identity_of(cfg, settings, weights, result.made, known_data)
        if differs := difference(result.identities.get(task, {}), here, but=['code']):
            return f'{task}: {differs}'
    return ''


def _is_replaced(checkpoint: Path, result: Result) -> bool:
    if result.file == _file(checkpoint):
        return False
    if not result.weights:  # of an earlier version
        return sha256(checkpoint) != result.sha256
    return model_at(checkpoint).weights != result.weights


def unverified(result: Result, asked: Asked) -> list[str]:
    """Return the tasks, and 'training', of which an earlier version recorded no source code."""
    training = ['training'] if asked.sources and result.sources is None else []
    return training + [task for task, identity in result.identities.items() if not is_verified(identity)]


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _file(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def curves(folder: Path) -> dict[str, Any]:
    """Return what was logged along the way; a run without training has nothing."""
    if not list(folder.glob('*/vis_data/scalars.json')):
        return {}
    return {name: curve for name, curve in read_scalars(folder).items() if name in CURVES}


def git_state() -> str:
    """Return the commit of the code and a digest of the package's source, which covers files that git does not track."""
    command = ['git', 'describe', '--always', '--exclude=*', '--dirty= with changes']
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
        commit = done.stdout.strip()
    except OSError:
        commit = ''
    return f'{commit or "not a checkout"}, source {package_source()}'


def hardware() -> str:
    if torch.cuda.is_available():
        return f'{get_world_size()} x {torch.cuda.get_device_name()}'
    return f'CPU ({platform.machine()}), {get_world_size()} process(es) of {torch.get_num_threads()} thread(s)'
