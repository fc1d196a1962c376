"""Scales: sets of changes that make the full-size configs of a study smaller, in the same way for all rows."""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import home, override
from mmairl.engine.hooks.schedules import freeze_prototypes
from mmairl.errors import UserError
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
    frozen: float | None = None
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
        known = ', '.join(sorted(file.stem for file in folder.glob('*.yaml')))
        raise UserError(
            f"--scale: unknown scale ('{name}'); use {known}, or the path of a YAML file",
            code='unknown-scale',
        )
    scale = read_yaml(path, Scale)
    return replace(scale, name=scale.name or path.stem)


def resolve(row: Row, scale: Scale, load: Callable[[Path], Config]) -> Config:
    """Load the row's config, and apply the row's options and the scale's changes to it.

    The scale does not change a config that has no training, or that sets `fixed_size`. `load` may return the same config for
    several rows.
    """
    candidates = (home() / 'configs' / row.config, home() / row.config)
    path = next((path for path in candidates if path.is_file()), row.config)
    try:
        cfg = copy.deepcopy(load(path))
        override(cfg, row.options, path)
    except UserError as error:
        raise UserError(f"row '{row.name}': {error}", code=error.code) from error
    if 'train_dataloader' not in cfg or cfg.get('fixed_size'):
        return cfg
    if scale.widths and cfg.model.backbone.get('base_channels', FULL_WIDTH) < FULL_WIDTH:
        raise UserError(
            f"row '{row.name}': the scale {scale.name} makes full-size configs smaller, and this config is already small; use "
            'a full-size config, or set `fixed_size = True` in the config to train it as it is',
            code='already-small',
        )
    length = scale.epochs * _iterations(cfg, scale)
    cfg.merge_from_dict(copy.deepcopy(scale.merge))
    for part in cfg.model.values():
        if isinstance(part, dict):
            part.update(copy.deepcopy(scale.parts.get(part.get('type'), {})))
    change_data(cfg, scale)
    narrow(cfg, scale)
    change_rates(cfg, scale)
    if length != 1:
        shorten(cfg, length, scale.warm_up)
    return cfg


def _iterations(cfg: Config, scale: Scale) -> float:
    """Return the iterations per epoch at this scale divided by those on ImageNet; 1 if the config counts epochs."""
    if 'max_iters' not in cfg.train_cfg or not scale.images:
        return 1.0
    total = cfg.get('total_batch_size') or DEFAULT_BATCH
    return total * scale.images / (scale.batch or total) / IMAGENET


def change_data(cfg: Config, scale: Scale) -> None:
    """Replace the training data set if the scale has a data set of its own, and change the transforms of the views."""
    dataset = innermost(cfg.train_dataloader.dataset)
    views = dataset.get('views')
    if views:
        largest = max((step.get('size', 0) for view in views for step in view), default=0)
        views = [_changed_view(view, scale, largest) for view in views]
    if scale.data is not None:
        dataset.clear()
        dataset.update(copy.deepcopy(scale.data))
    if views and scale.views_on_device:
        cfg.model.data_preprocessor.views = views
    elif views:
        dataset.views = views


def _changed_view(view: Sequence[dict], scale: Scale, largest: int) -> list[dict[str, Any]]:
    is_gray = scale.data and scale.data.get('gray')
    steps = []
    for step in view:
        change = scale.views.get(step['type'], {})
        size = step.get('size', largest)
        if size < largest:  # The size of small crops relative to large crops stays the same.
            change = {'size': round(size * change.get('size', largest) / largest)}
        # The transform that turns images gray has no effect if all images are gray already.
        if not (is_gray and step['type'] == 'RandomGrayscale'):
            steps.append({**step, **change})
    return steps


def narrow(cfg: Config, scale: Scale) -> None:
    """Set the length of the queue and the widths of the model's layers.

    A projector's output gets the scale's hidden width if it is at least as wide as the projector's hidden layer. Otherwise,
    it gets the scale's output width. A hidden layer gets the scale's hidden width. If it is narrower than the output, as in
    a predictor with a bottleneck, the ratio of the two widths stays the same instead.
    """
    model, widths = cfg.model, scale.widths
    if scale.queue and model.get('queue'):
        model.queue.length = scale.queue
    if not widths:
        return
    # The features of a network that is wider than ResNet-50 stay wider if the scale keeps the network.
    in_channels = widths.features * max(1, model.backbone.get('base_channels', 0) // FULL_WIDTH)
    if model.get('in_channels'):  # Only classifiers have `in_channels`.
        model.in_channels = in_channels
    out_channels = widths.out
    for name in ('projector', 'predictor'):
        part = model.get(name)
        if not part:
            continue
        hidden = part.get('hidden_channels')
        if name == 'projector' and hidden and part.out_channels >= hidden:
            out_channels = widths.hidden
        if hidden:
            bottleneck = out_channels * hidden // part.out_channels
            part.hidden_channels = bottleneck if hidden < part.out_channels else widths.hidden
        part.update(in_channels=in_channels, out_channels=out_channels)
        in_channels = out_channels
    if model.get('patch_projector'):
        model.patch_projector.update(copy.deepcopy(model.projector))
    if (model.get('head') or {}).get('channels'):
        model.head.channels = in_channels


def change_rates(cfg: Config, scale: Scale) -> None:
    """Set the batch size, the learning rate, the teacher's momentum, and the time for which prototypes are frozen."""
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
    if scale.frozen is not None:
        freeze_prototypes(cfg.get('custom_hooks') or [], scale.frozen)


def shorten(cfg: Config, factor: float, warm_up_epochs: int | None) -> None:
    """Multiply the length of training, of its schedules and of its checkpoint interval by a factor.

    Args:
        cfg: The config, which is changed in place.
        factor: The factor.
        warm_up_epochs: The new length of a warm-up in epochs; None to multiply it, too.
    """
    unit = 'max_epochs' if 'max_epochs' in cfg.train_cfg else 'max_iters'
    full = cfg.train_cfg[unit]
    cfg.train_cfg[unit] = length = scaled(full, factor)
    warm_up = 0
    for schedule in cfg.get('param_scheduler') or ():
        if schedule.type in ('WarmUpLR', 'LinearLR'):
            epochs = schedule.get('by_epoch', True) and warm_up_epochs
            schedule.end = warm_up = epochs or scaled(schedule.end, factor)
            continue
        schedule.begin = warm_up if schedule.get('begin') else 0
        schedule.end = length
        if 'milestones' in schedule:
            schedule.milestones = [scaled(at, factor) for at in schedule.milestones]
        if 'T_max' in schedule:
            schedule.T_max = scaled(schedule.T_max, factor)
    checkpoint = cfg.default_hooks.checkpoint
    # Rows with `from: {at}` use the checkpoints of a config that keeps them all.
    if checkpoint.get('max_keep_ckpts', -1) == -1:
        interval = checkpoint.interval
        checkpoint.interval = scaled(interval, factor)
        # A rounded interval would miss some of them.
        if checkpoint.get('by_epoch', True) and checkpoint.interval * full != interval * length:
            checkpoint.interval = 1
    else:
        checkpoint.update(interval=max(1, length // 4), max_keep_ckpts=1)


def scaled(length: int, factor: float) -> int:
    return max(1, round(length * factor))
