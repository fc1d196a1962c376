"""Estimate, before a study starts, how many hours the tasks after pre-training will take.

A row of a study is one configuration, usually trained with several seeds. A search tunes a row by trials, which are runs
with different options. A task, such as k-NN classification, measures a pre-trained model. A scale is a set of changes that
make all configs of a study smaller.
"""

import math
from collections.abc import Mapping, Sequence

from mmengine.config import Config

from mmairl.config import home
from mmairl.evaluation.identity import versions
from mmairl.evaluation.protocol import settings_for
from mmairl.evaluation.sets import innermost
from mmairl.evaluation.sources import outside_sources
from mmairl.study.cost import counted_work, reference_work, remembered
from mmairl.study.factors import Configs
from mmairl.study.scale import Scale
from mmairl.study.spec import Study
from mmairl.study.task_names import (
    data_of,
    features_of,
    is_local,
    is_measured,
    is_on_features,
    protocol_of,
    recipe,
)

# FLOPs are counted for a training step with this batch size. It is not 1, because batch norm may be split into virtual
# replicas, each of which needs several images.
BATCH = 64
CLASSES = 1000


def hours_of_tasks(
    study: Study,
    configs: Configs,
    tasks: Sequence[str],
    scale: Scale,
    runs: Mapping[str, int],
) -> tuple[dict[str, float], set[str]]:
    """Return the hours of each task for all runs of the study, and the tasks whose hours are unknown.

    Args:
        study: The study.
        configs: The config of each row.
        tasks: The tasks.
        scale: The scale.
        runs: For each row, the number of runs that the tasks measure.
    """
    trials = {task: tune.trials for task, tune in study.tune.items()}
    hours = dict.fromkeys(tasks, 0.0)
    for row in study.rows:
        if row.untrained == 'pixels':
            continue
        measured = [task for task in tasks if is_measured(row.untrained, task)]
        for task, of_run in task_hours(configs[row.name], measured, scale, trials).items():
            hours[task] += math.nan if of_run is None else of_run * runs[row.name]
    known = {task: spent for task, spent in hours.items() if not math.isnan(spent)}
    return known, hours.keys() - known.keys()


def task_hours(
    cfg: Config, tasks: Sequence[str], scale: Scale, trials: Mapping[str, int] = {}
) -> dict[str, float | None]:
    """Return the hours that each task takes for one run on one device, or None if they are unknown.

    The hours of a protocol are computed from the number of images that pass through the network and from the scale's
    `rate`, the images per second of a reference config. The hours of a transfer task are computed from its number of steps
    and the scale's `step_seconds`. If several protocols use features of the same data set, the features are extracted only
    once, so all but the first of these protocols count as zero hours.

    Args:
        cfg: The config of a row.
        tasks: The tasks.
        scale: The scale.
        trials: For each task that the study tunes, the number of trials. It replaces the number in the task's recipe.
    """
    hours: dict[str, float | None] = {}
    extracted = set()
    for task in tasks:
        if not is_local(task):
            of_training = transfer_hours(cfg, task, scale)
            hours[task] = of_training and of_training * (1 + trials.get(task, 0))
            continue
        hours[task] = protocol_hours(cfg, task, scale, trials.get(task))
        if is_on_features(task):
            data = task.partition('#')[0].partition('@')[2]
            if data in extracted:
                hours[task] = 0.0
            extracted.add(data)
    return hours


def transfer_hours(cfg: Config, task: str, scale: Scale) -> float | None:
    seconds = scale.step_seconds.get(task)
    if not seconds:
        return None
    # The number of steps is stored in the cache, because reading a task's config imports mmdet or mmseg. This import would
    # take longer than everything else that a study's plan requires.
    files = sorted((home() / 'configs' / 'transfer').rglob('*.py'))
    subject = dict(
        steps_of=task,
        configs=[path.read_text() for path in files],
        platforms=versions(['mmdet', 'mmsegmentation']),
    )
    steps = remembered(subject, lambda: recipe(cfg, task).get('train_cfg', {}).get('max_iters'))
    return steps and steps * seconds / 3600


def protocol_hours(cfg: Config, task: str, scale: Scale, trials: int | None) -> float | None:
    data = data_of(task) or cfg
    trains = recipe(cfg, task)
    protocol = settings_for(protocol_of(task), data)
    size = protocol.input_size(data)
    images = protocol.images_seen(data, _labeled_images(cfg, data, scale), trials)
    reference = reference_work(scale)
    if not images or not size or not reference:
        return None
    network = dict(
        type='Classifier',
        backbone=cfg.model.backbone.to_dict(),
        in_channels=features_of(cfg),
        classes=CLASSES,
        frozen=not trains or trains.model.get('frozen', False),
    )
    work = counted_work(network, [size], BATCH, outside_sources(cfg))
    return work and images * work.time / (reference.time * scale.rate) / 3600


def _labeled_images(cfg: Config, data: Config, scale: Scale) -> int | None:
    """Return the number of labeled training images if the config or the scale states it, else None.

    If the labeled images are only a part of a data set, their number is unknown.
    """
    labeled = data.evaluation.train
    if 'dataset' in labeled:
        return None
    root = innermost(cfg.get('train_dataloader', {}).get('dataset', {})).get('root')
    is_training_set = root and labeled.get('root') == root
    return labeled.get('count') or (scale.images if is_training_set else None)
