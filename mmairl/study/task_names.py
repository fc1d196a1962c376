"""Resolve the names of tasks to tools, protocols, data and recipes.

PROTOCOL measures on the data of the row's config, PROTOCOL@CONFIG on those of `configs/evaluation/CONFIG.py`, and TASK#SEED
trains the classifier of TASK from another seed. All other names are tasks of `tools/transfer.py`.
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
    """Return the protocol in the name of a task."""
    return re.split('[@#]', task)[0]


def is_local(task: str) -> bool:
    """Return True if `tools/evaluate.py` measures the task, False if `tools/transfer.py` does.

    Only protocols that train a classifier accept a seed.
    """
    parts = re.fullmatch(r'(\w+)(@[^#]+)?(#\d+)?', task)
    if not parts:
        return False
    protocol, _, seed = parts.groups()
    return is_protocol(protocol) and (not seed or protocol_class(protocol).trains)


def unit_of(task: str) -> str:
    """Return the unit of a task's scores."""
    return protocol_class(protocol_of(task)).unit if is_local(task) else '%'


def trains_classifier(task: str) -> bool:
    """Return True if the task trains a classifier, by a recipe and from a seed."""
    return is_local(task) and protocol_class(protocol_of(task)).trains


def is_on_features(task: str) -> bool:
    """Return True if the task trains nothing and shares its features with other tasks."""
    return is_local(task) and not protocol_class(protocol_of(task)).trains


def is_measured(untrained: str | None, task: str) -> bool:
    """Return True if a row is measured by the task. Untrained rows have only the protocols that support them."""
    if not untrained:
        return True
    return is_local(task) and untrained in protocol_class(protocol_of(task)).null_rows


def features_of(cfg: Config) -> int:
    """Return the width of the features of a config's backbone."""
    return cfg.model.get('in_channels') or cfg.model.projector.in_channels


def recipe(cfg: Config, task: str) -> Mapping[str, Any]:
    """Return the config by which a task trains; empty if it trains nothing or its platform is not installed."""
    if trains_classifier(task):
        return recipe_of(data_of(task) or cfg, protocol_of(task))
    if is_local(task):
        return {}
    try:
        return _load_once(f'mmairl::{TASKS[task].config.format(depth=50)}.py')
    except UserError:
        return {}


def data_of(task: str) -> Config | None:
    """Return the config of `configs/evaluation` in PROTOCOL@CONFIG, or None if the task names no config."""
    name = task.partition('#')[0].partition('@')[2]
    return copy.deepcopy(_load_once(f'mmairl::evaluation/{name}.py')) if name else None


def require_known(tasks: Sequence[str]) -> None:
    """Raise if one of the tasks is unknown."""
    for task in tasks:
        data_of(task)  # raises an error if the config does not exist
        if not is_local(task) and task not in TASKS:
            known = ', '.join(dict.fromkeys([*PROTOCOLS.names(), *TASKS]))
            raise UserError(
                f"task: unknown ('{task}'); use {known}, PROTOCOL@CONFIG with a config of configs/evaluation, or linear#1 for "
                'a second classifier seed',
                code='unknown-task',
            )
