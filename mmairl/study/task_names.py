"""Find the tool, the protocol, the data and the training recipe that the name of a task stands for.

- The task PROTOCOL, such as `knn`, measures a run on the data in its row's config.
- PROTOCOL@CONFIG measures it on the data in `configs/evaluation/CONFIG.py`.
- TASK#SEED is the same as TASK, but trains the task's classifier from another seed.
- All other names, such as `voc07`, are tasks of `tools/transfer.py`.

A row of a study is one configuration, usually trained with several seeds.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mmengine.config import Config

from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.evaluation.protocol import is_protocol, protocol_class
from mmairl.evaluation.recipes import recipe_of
from mmairl.registry import PROTOCOLS
from mmairl.transfer.tasks import TASKS

_load_once = cache(load_config)


def protocol_of(task: str) -> str:
    """Return the name of the protocol in the name of a task, such as 'linear' for 'linear#1'."""
    return re.split('[@#]', task)[0]


def is_local(task: str) -> bool:
    """Return True if the task is measured by `tools/evaluate.py`, and False if it is measured by `tools/transfer.py`.

    A name with a seed is valid only if the protocol trains a classifier.
    """
    parts = re.fullmatch(r'(\w+)(@[^#]+)?(#\d+)?', task)
    if not parts:
        return False
    protocol, _, seed = parts.groups()
    return is_protocol(protocol) and (not seed or protocol_class(protocol).trains)


def unit_of(task: str) -> str:
    """Return the unit of a task's scores, such as '%'."""
    return protocol_class(protocol_of(task)).unit if is_local(task) else '%'


def trains_classifier(task: str) -> bool:
    """Return True if the task trains a classifier. Such a task has a training recipe and a seed."""
    return is_local(task) and protocol_class(protocol_of(task)).trains


def is_on_features(task: str) -> bool:
    """Return True if the task measures extracted features without training a classifier, as k-NN does."""
    return is_local(task) and not protocol_class(protocol_of(task)).trains


def is_measured(untrained: str | None, task: str) -> bool:
    """Return True if the task can measure a row. Untrained rows can be measured only by protocols that support them.

    Args:
        untrained: The value of the row's key `untrained`; None if the row does not have this key.
        task: The task.
    """
    if not untrained:
        return True
    return is_local(task) and untrained in protocol_class(protocol_of(task)).null_rows


def features_of(cfg: Config) -> int:
    """Return the number of features that a config's backbone computes for an image."""
    return cfg.model.get('in_channels') or cfg.model.projector.in_channels


def recipe(cfg: Config, task: str) -> Mapping[str, Any]:
    """Return the config of a task's training.

    It is empty if the task trains nothing, or if mmdet or mmseg is required and not installed.
    """
    if trains_classifier(task):
        return recipe_of(data_of(task) or cfg, protocol_of(task))
    if is_local(task):
        return {}
    try:
        return _load_once(f'mmairl::{TASKS[task].config.format(depth=50)}.py')
    except UserError:
        return {}


def data_of(task: str) -> Config | None:
    """Return the config of `configs/evaluation` that a task's name contains after the @, or None if it contains none."""
    name = task.partition('#')[0].partition('@')[2]
    return copy.deepcopy(_load_once(f'mmairl::evaluation/{name}.py')) if name else None


def require_known(tasks: Sequence[str]) -> None:
    """Raise an error if one of the tasks is unknown."""
    for task in tasks:
        data_of(task)  # This call raises an error if the config in the task's name does not exist.
        if not is_local(task) and task not in TASKS:
            known = ', '.join(dict.fromkeys([*PROTOCOLS.names(), *TASKS]))
            raise UserError(
                f"task: the task is unknown ('{task}'); use {known}, PROTOCOL@CONFIG with a config of configs/evaluation, or "
                'linear#1 for a second classifier seed',
                code='unknown-task',
            )
