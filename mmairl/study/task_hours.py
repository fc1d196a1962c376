"""The hours of the tasks that follow pre-training, before they begin."""

import json
from collections.abc import Sequence

from mmengine.config import Config

from mmairl.evaluation.protocol import ON_FEATURES
from mmairl.evaluation.sets import innermost
from mmairl.study.measure import data_of, is_local, recipe
from mmairl.study.plan import MEASURED, counted_flops, flops_per_image
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row

BATCH = 64  # to count with; virtual replicas of batch norm want some images each


def task_hours(cfg: Config, tasks: Sequence[str], scale: Scale) -> dict[str, float | None]:
    """Return the hours of each task on one device, from the FLOPs of its images and the scale's rate.

    Protocols on the features of one data set share them. None where only the data themselves tell how many images they are.
    """
    rate = (flops_per_image(resolve(Row('', MEASURED), scale)) or 0) * scale.rate
    hours, extracted = {}, set()
    for task in tasks:
        protocol, _, elsewhere = task.partition('#')[0].partition('@')
        spent = _task_flops(cfg, task, scale) if is_local(task) and rate else None
        hours[task] = spent and spent / rate / 3600
        if protocol in ON_FEATURES:
            hours[task] = 0.0 if elsewhere in extracted else hours[task]
            extracted.add(elsewhere)
    return hours


def _task_flops(cfg: Config, task: str, scale: Scale) -> float | None:
    data, trains = data_of(task) or cfg, recipe(cfg, task)
    labelled, own = innermost(data.evaluation.train), innermost(cfg.train_dataloader.dataset)
    images = labelled.get('count') or (scale.images if labelled.get('root') == own.get('root') else None)
    if trains and 'max_iters' in trains.train_cfg:
        images = trains.train_cfg.max_iters * trains.total_batch_size
    elif trains:
        images = images and images * trains.train_cfg.max_epochs
    if images and trains.get('trials'):
        images *= len(trains.trials) + 1  # each of them, and the best of them for the test
    network = dict(
        type='Classifier',
        backbone=cfg.model.backbone.to_dict(),
        in_channels=cfg.model.get('in_channels') or cfg.model.projector.in_channels,
        classes=1000,
        frozen=not trains or trains.model.get('frozen', False),
    )
    tested = innermost(data.evaluation.test)
    size = [step['size'] for step in [tested, *tested.get('views', [[]])[0]] if 'size' in step][-1]
    return images and images * counted_flops(json.dumps(network), (size,), BATCH)
