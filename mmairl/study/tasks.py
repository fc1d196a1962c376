"""Find the protocol, the data and the training recipe that the name of a task stands for.

- The task PROTOCOL, such as `knn`, measures a run on the data in its row's config.
- PROTOCOL@CONFIG measures it on the data in `configs/evaluation/CONFIG.py`.
- All other names, such as `voc07`, are tasks of `tools/transfer.py`.
"""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

from mmengine.config import Config

from mmairl.config import load_config
from mmairl.errors import UserError
from mmairl.evaluation.metrics import higher_is_better
from mmairl.evaluation.protocol import is_protocol, protocol_class
from mmairl.registry import PROTOCOLS
from mmairl.study.study import Row
from mmairl.transfer.tasks import ERRORS, TASKS

_load_once = cache(load_config)


def protocol_of(task: str) -> str:
    """Return the name of the protocol in the name of a task, such as 'linear' for 'linear@cifar10_r50'."""
    return task.partition('@')[0]


def is_local(task: str) -> bool:
    """Return True if the task is measured by `tools/evaluate.py`, and False if it is measured by `tools/transfer.py`."""
    return is_protocol(protocol_of(task))


def is_measured(row: Row, task: str) -> bool:
    """Return True if the task can measure a row. Only some protocols support untrained rows."""
    if not row.untrained:
        return True
    return is_local(task) and row.untrained in protocol_class(protocol_of(task)).null_rows


def config_of(task: str, cfg: Config) -> Config:
    """Return the config that measures a run: its own config, or the config in the task's name with the run's network."""
    name = task.partition('@')[2]
    if not name:
        return cfg
    data = copy.deepcopy(_load_once(f'mmairl::evaluation/{name}.py'))
    model = cfg.model
    width = model.get('in_channels') or (model.get('projector') or {}).get('in_channels')
    data.model.pop('in_channels', None)
    if width:
        data.model.in_channels = width
    backbone = {key: value for key, value in model.backbone.items() if key != 'init_cfg'}
    same_type = backbone['type'] == data.model.backbone.type
    data.model.backbone = {**data.model.backbone, **backbone} if same_type else backbone
    if 'custom_imports' in cfg:
        data.custom_imports = cfg.custom_imports
    return data


def metric_of(key: str, label: str) -> dict[str, Any]:
    """Return the description of a score in study.json: its key, label, unit and direction.

    The key of a score is the name of its task, followed by the name of the score unless it is the task's main score.
    """
    task = key.partition(' ')[0]
    unit = '' if key in ERRORS else '%'
    if is_local(task):
        unit = protocol_class(protocol_of(task)).unit
    lower = not (higher_is_better(key) and higher_is_better(label))
    return dict(key=key, label=label, unit=unit, lower_is_better=lower)


def require_known(tasks: Sequence[str]) -> None:
    """Raise an error if one of the tasks is unknown."""
    for task in tasks:
        if is_local(task) and (name := task.partition('@')[2]):
            _load_once(f'mmairl::evaluation/{name}.py')
        elif not is_local(task) and task not in TASKS:
            known = ', '.join(dict.fromkeys([*PROTOCOLS.names(), *TASKS]))
            raise UserError(
                f"tasks: unknown task ('{task}'); use {known}, or PROTOCOL@CONFIG with a config of configs/evaluation",
                code='unknown-task',
            )
