"""Names of tasks: which tool measures a task, which data it uses, and which recipe it trains by.

PROTOCOL measures on the data of the row's config, PROTOCOL@CONFIG on those of `configs/evaluation/CONFIG.py`, and TASK#SEED
trains the classifier of TASK again from another seed. All other names are tasks of `tools/transfer.py`.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from mmengine.config import Config

from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.evaluation.protocol import BY_TRAINING, ON_FEATURES
from mmairl.evaluation.recipes import recipe_of
from mmairl.transfer.tasks import TASKS

_load_once = cache(load_config)


def protocol_of(task: str) -> str:
    """Return the protocol of a task, without its data and its seed."""
    return re.split('[@#]', task)[0]


def is_local(task: str) -> bool:
    """Return True if `tools/evaluate.py` measures the task, False if `tools/transfer.py` does."""
    parts = re.fullmatch(r'(\w+)(@[^#]+)?(#\d+)?', task)
    if not parts:
        return False
    protocol, _, seed = parts.groups()
    return protocol in BY_TRAINING or (protocol in ON_FEATURES and not seed)


def is_measured(untrained: str | None, task: str) -> bool:
    """Return True if a row has the task: a random network has local tasks only, raw pixels those on features only."""
    if not untrained:
        return True
    if untrained == 'random':
        return is_local(task)
    return task.partition('@')[0] in ON_FEATURES


def recipe(cfg: Config, task: str) -> Mapping[str, Any]:
    """Return the config that a task trains by; empty if it trains nothing or its platform is not installed."""
    protocol = protocol_of(task)
    if protocol in BY_TRAINING:
        return recipe_of(data_of(task) or cfg, protocol)
    if is_local(task):
        return {}
    try:
        return _load_once(f'mmairl::{TASKS[task].config.format(depth=50)}.py')
    except UserError:
        return {}


def data_of(task: str) -> Config | None:
    """Return the config of `configs/evaluation` that PROTOCOL@CONFIG names, or None for another task."""
    name = task.partition('#')[0].partition('@')[2]
    return copy.deepcopy(_load_once(f'mmairl::evaluation/{name}.py')) if name else None


def require_known(tasks: Sequence[str]) -> None:
    """Raise if nothing measures one of the tasks."""
    for task in tasks:
        data_of(task)  # raises if the config does not exist
        if not is_local(task) and task not in TASKS:
            known = ', '.join(dict.fromkeys([*ON_FEATURES, *BY_TRAINING, *TASKS]))
            raise UserError(
                f"task: '{task}' is unknown; use {known}, PROTOCOL@CONFIG with a config of configs/evaluation, or "
                'linear#1 for a second classifier seed',
                code='unknown-task',
            )
