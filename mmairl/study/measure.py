"""Measure a run by the tasks of its study, and record the code, settings and machine that produced the scores.

A task, such as k-NN classification, is an evaluation of the pre-trained model.
"""

import hashlib
import json
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_world_size, is_main_process
from msgspec.structs import asdict

from mmairl.checkpoints.read import Backbone, read_backbone
from mmairl.config import load_config
from mmairl.engine.curves import read_scalars
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.features import on_main_process
from mmairl.evaluation.identity import difference, identity_of, versions
from mmairl.evaluation.overlap import file_stat
from mmairl.evaluation.protocol import (
    Protocol,
    default_device,
    default_workers,
    evaluate,
    settings_for,
)
from mmairl.evaluation.sources import package_source
from mmairl.io import read_json, write_json
from mmairl.study.factors import hidden_factors
from mmairl.study.model_identity import model_at
from mmairl.study.schema import Asked, Measured, RunResult, Trained, last_checkpoint, result_file
from mmairl.study.task_names import data_of, features_of, is_local, protocol_of

FEATURES = 'features'  # the folder of extracted features, which the tasks of a run share
# The keys of a backbone's config whose values do not depend on the data set.
NETWORK_KEYS = ('type', 'depth', 'stem_channels', 'base_channels')
CURVES = ('loss', 'instance_accuracy', 'similarity', 'probe_accuracy')
PACKAGES = (
    'torch', 'torchvision', 'mmengine', 'mmcv', 'mmpretrain', 'mmdet', 'mmsegmentation', 'numpy',
)  # fmt: skip


def measure(task: str, folder: Path, asked: Asked, launcher: str) -> Measured:
    """Measure a run by a task, or return the stored result if it is still valid.

    A stored result is valid if its identity, which describes everything that the scores depend on, has not changed.
    """
    cfg, settings = task_settings(task, folder, asked)
    subject: Backbone | str = asked.untrained or ''
    made = {}
    if not asked.untrained:
        subject = read_backbone(str(last_checkpoint(folder)), network=tensors_of_config(cfg))
        made = read_json(folder / 'trained.json', Trained).made
    identity = on_main_process(lambda: identity_of(cfg, settings, subject, made))
    if stored := on_main_process(lambda: _stored(folder, task, identity)):
        return stored
    path = result_file(folder, task, identity)
    settings = replace(
        settings, cache=folder / FEATURES, work_dir=path.with_suffix(''), launcher=launcher
    )
    result = evaluate(cfg, settings.name, subject, settings=settings, asked=made)
    details = result.details
    measured = Measured(
        scores=result.scores,
        identity=result.identity,
        right=details.get('right'),
        tuned={key: details[key] for key in ('chosen', 'held_out', 'halves') if key in details},
        left_out=result.left_out,
    )
    if is_main_process():
        write_json(path, measured)
    return measured


def task_settings(task: str, folder: Path, asked: Asked) -> tuple[Config, Protocol]:
    """Return the config with which a task measures a run, and the task's protocol with its settings.

    If the name of the task includes a config of `configs/evaluation`, this config is used, with the run's network in it.
    """
    cfg = load_config(str(folder / 'asked' / 'config.yaml'))
    seed = task.partition('#')[2]
    if task_cfg := data_of(task):
        backbone = cfg.model.backbone
        network = {
            'model.backbone': {key: backbone[key] for key in NETWORK_KEYS if key in backbone},
            'model.in_channels': features_of(cfg),
        }
        if 'custom_imports' in cfg:
            network['custom_imports'] = cfg.custom_imports
        cfg = task_cfg
        cfg.merge_from_dict(network)
    settings = settings_for(
        protocol_of(task),
        cfg,
        device=default_device(),
        workers=default_workers(),
        seed=int(seed) if seed else None,
        trials=asked.tuned.get(task) or None,
    )
    return cfg, settings


def _stored(folder: Path, task: str, identity: Mapping[str, Any]) -> Measured | None:
    """Return the stored result that has the given identity, or None.

    The identities inside the files are compared, because earlier versions gave the files other names.
    """
    stored = (read_json(path, Measured) for path in sorted(folder.glob(f'{task}_*.json')))
    return next((result for result in stored if not difference(result.identity, identity)), None)


def forget(folder: Path, task: str) -> None:
    """Remove the stored scores of a task, so that it is measured again."""
    if is_local(task):
        name = re.compile(rf'{re.escape(task)}_[0-9a-f]{{16}}(\.json)?')
        paths = [path for path in folder.iterdir() if name.fullmatch(path.name)]
    else:
        places = [*folder.glob('transfer_*'), *folder.glob('transfer_*/*')]
        paths = [place / task for place in places]
        for place in places:
            paths += place.glob(f'{task}_trial_*')
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def result_of(
    cfg: Config, folder: Path, asked: Asked, measured: Mapping[str, Measured]
) -> RunResult:
    """Return the content of result.json, which the study page uses to describe the run.

    The first score of a task is its main score.
    """
    trained = {} if asked.untrained else describe_training(cfg, folder, asked)
    settings = cfg.get('evaluation', {}).items()
    # The fairness check compares these settings as text. A setting that is False is left out, because it has the same
    # effect as a missing setting.
    evaluation = {key: value for key, value in settings if value is not False}
    result = RunResult(
        **trained,
        git=git_state(),
        versions=versions(PACKAGES),
        hardware=hardware(),
        evaluation=json.dumps(evaluation, sort_keys=True, default=str),
    )
    for task, of_task in measured.items():
        (main, score), *others = of_task.scores.items()
        result.scores[task] = score
        result.labels[task] = f'{main} {task.partition("@")[2]}'.strip()
        result.further |= {f'{task} {name}': other for name, other in others}
        result.identities[task] = of_task.identity
        if of_task.left_out:
            result.left_out[task] = of_task.left_out
        if of_task.tuned:
            result.tuned[task] = of_task.tuned
    return result


def describe_training(cfg: Config, folder: Path, asked: Asked) -> dict[str, Any]:
    """Return the fields of result.json that describe the run's training and its checkpoint."""
    checkpoint = last_checkpoint(folder)
    return dict(
        asdict(read_json(folder / 'trained.json', Trained)),
        checkpoint=checkpoint.name,
        sha256=sha256(checkpoint),
        file=file_stat(checkpoint),
        weights=model_at(checkpoint).weights,
        curves=curves(folder),
        hidden={} if asked.external else hidden_factors(cfg),
    )


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def curves(folder: Path) -> dict[str, Any]:
    """Return the logged curves of a run. There are none if the run did not train."""
    if not list(folder.glob('*/vis_data/scalars.json')):
        return {}
    return {name: curve for name, curve in read_scalars(folder).items() if name in CURVES}


def git_state() -> str:
    """Return a text with the commit of the checkout and a digest of the package's source, including untracked files."""
    command = ['git', 'describe', '--always', '--exclude=*', '--dirty= with changes']
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        commit = done.stdout.strip()
    except OSError:  # This error means that git is not installed.
        commit = ''
    return f'{commit or "not a checkout"}, source {package_source()}'


def hardware() -> str:
    if torch.cuda.is_available():
        return f'{get_world_size()} x {torch.cuda.get_device_name()}'
    return f'CPU ({platform.machine()}), {get_world_size()} process(es) of {torch.get_num_threads()} thread(s)'
