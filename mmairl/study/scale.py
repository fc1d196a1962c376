"""Scales: sets of changes that make the full-size configs of a study smaller, in the same way for all rows."""

import copy
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import home, load_config, override
from mmairl.errors import UserError, closest
from mmairl.evaluation.sets import innermost
from mmairl.io import Declared, read_yaml
from mmairl.study.study import Row, Seed, Untrained

# The batch size of most full-size configs. The factors in a scale's `lr` assume it.
DEFAULT_BATCH = 1024
FULL_WIDTH = 64  # the base channels of a full-size ResNet
# The number of training images in ImageNet. Configs that state the length of training in iterations assume this number.
IMAGENET = 1_281_167


class Widths(Declared, frozen=True):
    """The width of the backbone's features, and the widths of the layers in projector and predictor."""

    features: int
    hidden: int
    out: int


class Scale(Declared, frozen=True):
    """The changes that make a full-size config smaller. `docs/reference/study_yaml.md` explains the keys."""

    text: str = ''
    images: int = 0  # the number of training images, if the scale has images of its own
    merge: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    data: dict[str, Any] | None = None
    views: dict[str, dict[str, Any]] = {}
    views_on_device: bool = False
    widths: Widths | None = None
    queue: int | None = None
    batch: int | None = None
    epochs: float = 1.0
    warm_up: int | None = None
    teacher: float = 1.0
    lr: dict[str, float] = {}
    tasks: tuple[str, ...] = ('linear',)
    seeds: tuple[Seed, ...] = ()  # Studies with fewer seeds use these seeds instead of their own.
    untrained: tuple[Untrained, ...] = (
        'random',
    )  # the untrained rows that the scale adds to every study
    name: str = ''


def read_scale(name: str) -> Scale:
    """Return a built-in scale by its name, or the scale in a YAML file.

    Example:
        >>> read_scale('demo').images
        12000
    """
    folder = home() / 'configs' / 'studies' / '_scales'
    path = Path(name) if name.endswith('.yaml') else folder / f'{name}.yaml'
    if not path.is_file():
        known = sorted(file.stem for file in folder.glob('*.yaml'))
        raise UserError(
            f"--scale: unknown scale ('{name}'); use {', '.join(known)}, or the path of a YAML file{closest(name, known)}",
            code='unknown-scale',
        )
    scale = read_yaml(path, Scale)
    return replace(scale, name=scale.name or path.stem)


def resolve(row: Row, scale: Scale) -> Config:
    """Load the row's config and apply the scale's changes to it.

    The scale does not change a config that has no training, or that sets `fixed_size`.
    """
    cfg = load_row(row)
    if 'train_dataloader' not in cfg or cfg.get('fixed_size'):
        return cfg
    backbone = cfg.model.backbone
    width = backbone.get('base_channels', FULL_WIDTH)
    if width < FULL_WIDTH and scale.widths:
        raise UserError(
            f"row '{row.name}': the scale {scale.name} makes full-size configs smaller, and this config is already small "
            f"(base_channels is '{width}'); use a full-size config, or set `fixed_size = True` in the config to train it as "
            'it is',
            code='already-small',
        )
    iterations = _iterations(cfg, scale)
    cfg.merge_from_dict(copy.deepcopy(scale.merge))
    for part in cfg.model.values():
        if isinstance(part, dict):
            part.update(copy.deepcopy(scale.parts.get(part.get('type'), {})))
    change_data(cfg, scale)
    keeps_width = width == cfg.model.backbone.get('base_channels')
    narrow(cfg, scale, multiple=width // FULL_WIDTH if keeps_width else 1)
    change_rates(cfg, scale)
    shorten(cfg, scale, iterations)
    return cfg


def _iterations(cfg: Config, scale: Scale) -> float:
    """Return the iterations per epoch at this scale divided by those on ImageNet; 1 if the config counts epochs."""
    if 'max_iters' not in cfg.train_cfg or not scale.images:
        return 1.0
    total = cfg.get('total_batch_size') or DEFAULT_BATCH
    return total * scale.images / (scale.batch or total) / IMAGENET


def load_row(row: Row) -> Config:
    """Load the row's config and apply the row's options to it."""
    candidates = (home() / 'configs' / row.config, home() / row.config)
    path = next((path for path in candidates if path.is_file()), row.config)
    try:
        cfg = copy.deepcopy(read_once(str(path)))
        if row.options:
            override(cfg, row.options, str(path))
    except UserError as error:
        raise UserError(f"row '{row.name}': {error}", code=error.code) from error
    return cfg


@cache
def read_once(path: str) -> Config:
    """Load a config only once for all rows that use it; callers must copy it before they change it.

    `fairness.prepare` clears the cache, so that each new plan reads the files again.
    """
    return load_config(path)


def change_data(cfg: Config, scale: Scale) -> None:
    """Replace the training data set if the scale has a data set of its own, and change the transforms of the views."""
    dataset = innermost(cfg.train_dataloader.dataset)
    own_views = dataset.get('views') or ()
    sizes = [step['size'] for view in own_views for step in view if 'size' in step]
    views = []
    for view in own_views:
        steps = [_changed_step(step, scale, max(sizes, default=0)) for step in view]
        # The transform that turns images gray has no effect if all images are gray already.
        if scale.data and scale.data.get('gray'):
            steps = [step for step in steps if step['type'] != 'RandomGrayscale']
        views.append(steps)
    if scale.data is not None:
        dataset.clear()
        dataset.update(copy.deepcopy(scale.data))
    if not views:
        return
    if scale.views_on_device:
        cfg.model.data_preprocessor.views = views
    else:
        dataset.views = views


def _changed_step(step: dict[str, Any], scale: Scale, largest: int) -> dict[str, Any]:
    change = scale.views.get(step['type'], {})
    size = step.get('size', largest)
    if size < largest:  # The size of small crops relative to large crops stays the same.
        return {**step, 'size': round(size * change.get('size', largest) / largest)}
    return {**step, **change}


def narrow(cfg: Config, scale: Scale, multiple: int) -> None:
    """Set the length of the queue and the widths of the model's layers.

    A projector's output gets the scale's hidden width if it is at least as wide as the projector's hidden layer. Otherwise,
    it gets the scale's output width. A hidden layer gets the scale's hidden width. If it is narrower than the output, as in
    a predictor with a bottleneck, the ratio of the two widths stays the same instead.

    Args:
        cfg: The config, which is changed in place.
        scale: The scale.
        multiple: How many times wider the backbone's features are than the scale's `widths` assume.
    """
    if scale.queue and cfg.model.get('queue'):
        cfg.model.queue.length = scale.queue
    widths = scale.widths
    if not widths:
        return
    in_channels = widths.features * multiple
    if cfg.model.get('in_channels'):  # Only classifiers have `in_channels`.
        cfg.model.in_channels = in_channels
    out_channels = widths.out
    for name in ('projector', 'predictor'):
        part = cfg.model.get(name)
        if not part:
            continue
        hidden = part.get('hidden_channels')
        if name == 'projector' and hidden and part.out_channels >= hidden:
            out_channels = widths.hidden
        if hidden and hidden < part.out_channels:
            part.hidden_channels = out_channels * hidden // part.out_channels
        elif hidden:
            part.hidden_channels = widths.hidden
        part.update(in_channels=in_channels, out_channels=out_channels)
        in_channels = out_channels
    if cfg.model.get('patch_projector'):
        cfg.model.patch_projector.update(copy.deepcopy(cfg.model.projector))
    head = cfg.model.get('head') or {}
    if head.get('channels'):
        head.channels = in_channels


def change_rates(cfg: Config, scale: Scale) -> None:
    """Set the scale's batch size, adapt the learning rate to it, and change the teacher's momentum."""
    optimizer = cfg.optim_wrapper.optimizer
    if scale.batch:
        optimizer.lr *= DEFAULT_BATCH / (cfg.get('total_batch_size') or DEFAULT_BATCH)
        cfg.total_batch_size = scale.batch
    # LARS without its trust ratio is the same as SGD, so its learning rate needs the scale's factor for SGD.
    rule = optimizer.type if optimizer.get('trust', True) else 'SGD'
    optimizer.lr *= scale.lr.get(rule, 1.0)
    momentum = cfg.get('default_hooks', {}).get('momentum')
    if momentum and 'base' in momentum:
        momentum.base = round(1 - (1 - momentum.base) * scale.teacher, 10)


def shorten(cfg: Config, scale: Scale, iterations: float) -> None:
    """Shorten training, its warm-up, its schedules and its checkpoint interval.

    Args:
        cfg: The config, which is changed in place.
        scale: The scale.
        iterations: See `_iterations`.
    """
    factor = scale.epochs * iterations
    if factor == 1:
        return
    unit = 'max_epochs' if 'max_epochs' in cfg.train_cfg else 'max_iters'
    length = max(1, round(cfg.train_cfg[unit] * factor))
    cfg.train_cfg[unit] = length
    warm_up = 0
    for schedule in cfg.get('param_scheduler') or ():
        if schedule.type in ('WarmUpLR', 'LinearLR'):
            epochs = schedule.get('by_epoch', True) and scale.warm_up
            warm_up = epochs or max(1, round(schedule.end * factor))
            schedule.end = warm_up
        else:
            schedule.begin = warm_up if schedule.get('begin') else 0
            schedule.end = length
            if 'milestones' in schedule:
                schedule.milestones = [max(1, round(at * factor)) for at in schedule.milestones]
            if 'T_max' in schedule:
                schedule.T_max = max(1, round(schedule.T_max * factor))
    checkpoint = cfg.default_hooks.checkpoint
    # A config that keeps all its checkpoints keeps their number, because rows with `from: {at}` use these checkpoints.
    if checkpoint.get('max_keep_ckpts', -1) == -1:
        checkpoint.interval = max(1, round(checkpoint.interval * factor))
    else:
        checkpoint.update(interval=max(1, length // 4), max_keep_ckpts=1)


def description(scale: Scale, configs: Iterable[Config]) -> str:
    """Return what a study trains on: the networks and the data that its configs name, and the scale's own text."""
    names = [(_network_name(cfg.model.backbone), _data_name(cfg)) for cfg in configs]
    networks, data = (', '.join(dict.fromkeys(column)) for column in zip(*names))
    return f'{networks} on {scale.text or data}'


def _network_name(backbone: dict) -> str:
    name, _, stem = backbone['type'].rpartition('.')[2].partition('_')
    width = backbone.get('base_channels', FULL_WIDTH)
    if 'depth' in backbone:
        name += f'-{backbone["depth"]}'
    if width != FULL_WIDTH:
        name += f' of base width {width}'
    return f'{name} ({stem} stem)' if stem else name


def _data_name(cfg: Config) -> str:
    loader = cfg.get('train_dataloader')
    tested = cfg.get('evaluation', {}).get('test', {'type': 'unknown data'})
    dataset = innermost(loader.dataset) if loader else tested
    place = dataset.get('root') or dataset.get('data_root') or dataset.get('count', '')
    return f'{dataset["type"]} {place}'.strip()
