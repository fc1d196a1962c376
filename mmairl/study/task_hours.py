"""The hours of the tasks that follow pre-training, before they begin."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from mmengine.config import Config

from mmairl.evaluation.protocol import settings_for
from mmairl.evaluation.sets import innermost
from mmairl.study.cost import counted_work, work_per_image
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row, Study
from mmairl.study.task_names import data_of, is_local, is_on_features, protocol_of, recipe

BATCH = 64  # to count with; virtual replicas of batch norm want some images each


def hours_of_tasks(
    study: Study,
    configs: Mapping[str, Config],
    tasks: Sequence[str],
    scale: Scale,
    runs: Mapping[str, int],
) -> tuple[dict[str, float], set[str]]:
    """Return the hours of each task over all rows, of which so many `runs` are measured, and the tasks that cannot be told."""
    trials, hours, unknown = (
        {task: tune.trials for task, tune in study.tune.items()},
        Counter(),
        set(),
    )
    for row in study.rows:
        if row.untrained == 'pixels':
            continue
        for task, each in task_hours(configs[row.name], tasks, scale, trials).items():
            hours[task] += (each or 0) * runs[row.name]
            unknown |= {task} if each is None else set()
    return {task: spent for task, spent in hours.items() if task not in unknown}, unknown


def task_hours(
    cfg: Config, tasks: Sequence[str], scale: Scale, trials: Mapping[str, int] | None = None
) -> dict[str, float | None]:
    """Return the hours of each task on one device, from the work on its images and the scale's rate.

    Protocols on the features of one data set share them. None where only the data themselves tell how many images they are.
    A task that is tuned has so many `trials` in place of its recipe's.
    """
    usual = work_per_image(resolve(Row('', scale.rate_of), scale))
    rate = usual.time * scale.rate if usual else 0
    hours, extracted = {}, set()
    for task in tasks:
        elsewhere = task.partition('#')[0].partition('@')[2]
        spent = (
            _task_work(cfg, task, scale, (trials or {}).get(task))
            if is_local(task) and rate
            else None
        )
        hours[task] = spent and spent / rate / 3600
        if is_on_features(task):
            hours[task] = 0.0 if elsewhere in extracted else hours[task]
            extracted.add(elsewhere)
    return hours


def _task_work(cfg: Config, task: str, scale: Scale, trials: int | None) -> float | None:
    data = data_of(task) or cfg
    trains = recipe(cfg, task)
    protocol = settings_for(protocol_of(task), data)
    size = protocol.input_size(data)
    images = protocol.images_seen(data, _images(cfg, data.evaluation.train, scale), trials)
    if not images or not size:
        return None
    network = dict(
        type='Classifier',
        backbone=cfg.model.backbone.to_dict(),
        in_channels=cfg.model.get('in_channels') or cfg.model.projector.in_channels,
        classes=1000,
        frozen=not trains or trains.model.get('frozen', False),
    )
    return images * counted_work(json.dumps(network), (size,), BATCH).time


def _images(cfg: Config, labelled: Mapping, scale: Scale) -> int | None:
    """Return how many labelled images there are, where the config or the scale says it; a part of a set does not."""
    root = innermost(cfg.get('train_dataloader', {}).get('dataset', {})).get('root')
    if 'dataset' in labelled:
        return None
    return labelled.get('count') or (
        scale.images if root and labelled.get('root') == root else None
    )
