"""The same study at another size: what a scale changes, it changes in every row alike."""

import copy
from pathlib import Path
from typing import Any

from mmengine.config import Config
from msgspec.structs import replace

from mmairl.config import home, load_config
from mmairl.data.view_sets import expand_named_views
from mmairl.engine.checks import BUILT, check_parts
from mmairl.errors import UserError
from mmairl.evaluation.sets import innermost
from mmairl.io import Declared, read_yaml
from mmairl.study.spec import Row, Seeds, Untrained

USUAL_BATCH = 1024  # of the papers' configs, but for BYOL's own, MSBReg's and the supervised ones


class Widths(Declared, frozen=True):
    """The widths of the backbone's features, and of the hidden and the last layers of projector and predictor."""

    features: int
    hidden: int
    out: int


class Scale(Declared, frozen=True):
    """Numbers that make a full-size config smaller; what is left out stays as the paper has it."""

    text: str
    rate: float  # images a second and device of a step of `rate_of`
    rate_source: str
    images: int  # in the training set
    rate_of: str = 'mocov2plus_r50_200e.py'
    merge: dict[str, Any] = {}  # into every config
    parts: dict[str, dict[str, Any]] = {}  # of the network, by type: keys to set
    replace: dict[str, Any] = {}  # in every config
    without: tuple[str, ...] = ()  # keys of a config that none keeps
    data: dict[str, Any] | None = (
        None  # in place of the images that the config's data set is made of
    )
    views: dict[str, dict[str, Any]] = {}  # by transform: keys to set
    views_on_device: bool = False
    widths: Widths | None = None
    queue: int | None = None
    batch: int | None = None
    epochs: float = 1.0  # times the config's
    warm_up: int | None = None  # epochs, where a config has one
    teacher: float = 1.0  # times 1 - momentum
    lr: dict[str, float] = {}  # by optimizer: times the config's
    tasks: tuple[str, ...] = ()  # in place of the study's
    seeds: Seeds | None = None
    floor: tuple[Untrained, ...] = ()  # null rows of each study
    name: str = ''  # default: the file's


def read_scale(name: str) -> Scale:
    """A scale that comes with mmairl, by its name, or one's own, by the path of its YAML."""
    folder = home() / 'configs' / 'studies' / '_scales'
    path = Path(name) if name.endswith('.yaml') else folder / f'{name}.yaml'
    if not path.is_file():
        known = ', '.join(sorted(file.stem for file in folder.glob('*.yaml')))
        raise UserError(
            f"there is no scale '{name}'; say {known}, or give the path of your own YAML"
        )
    scale = read_yaml(path, Scale)
    return replace(scale, name=scale.name or path.stem)


def resolve(row: Row, scale: Scale) -> Config:
    """Return the row's config at this scale, as it will run."""
    path = next(
        (path for path in (home() / 'configs' / row.config, home() / row.config) if path.is_file()),
        row.config,
    )
    try:
        cfg = load_config(str(path), row.options)
        if row.options:
            check_parts(cfg, BUILT)
    except UserError as error:
        raise UserError(f"the row '{row.name}': {error}") from error
    if (
        row.weights and 'train_dataloader' not in cfg
    ):  # of the evaluation alone: its network and its data are these
        return cfg
    own = cfg.model.backbone.get('base_channels', 64)
    for key, value in copy.deepcopy(scale.replace).items():
        cfg[key] = value
    cfg.merge_from_dict(copy.deepcopy(scale.merge))
    for key in scale.without:
        cfg.pop(key, None)
    for part in cfg.model.values():
        if isinstance(part, dict):
            part.update(copy.deepcopy(scale.parts.get(part.get('type'), {})))
    _change_data(cfg, scale)
    _narrow(cfg, scale, wider=own // 64 if own == cfg.model.backbone.get('base_channels') else 1)
    _shorten(cfg, scale)
    return cfg


def _change_data(cfg: Config, scale: Scale) -> None:
    """Other images, and the same operations on them at another size."""
    images = innermost(cfg.train_dataloader.dataset)
    given = expand_named_views(images.get('views')) or ()
    sizes = [step['size'] for view in given for step in view if 'size' in step]

    def changed(step: dict) -> dict:
        change = scale.views.get(step['type'], {})
        if (size := step.get('size')) and size < max(
            sizes
        ):  # a small crop beside large ones stays as much smaller
            return {**step, 'size': round(size * change.get('size', max(sizes)) / max(sizes))}
        return {**step, **change}

    views = [[changed(step) for step in view] for view in given]
    if scale.data is not None:
        images.clear()
        images.update(copy.deepcopy(scale.data))
    if scale.views_on_device:
        cfg.model.data_preprocessor.views = views
    else:
        images.views = views


def _narrow(cfg: Config, scale: Scale, wider: int) -> None:
    """Set the widths and the queue's length, where the config has them; a backbone can have `wider` features.

    A projection as wide as its hidden layer stays so, and a predictor's narrow middle stays as much narrower.
    """
    if scale.queue and cfg.model.get('queue'):
        cfg.model.queue.length = scale.queue
    if not (widths := scale.widths):
        return
    if cfg.model.get('in_channels'):  # a classifier's
        cfg.model.in_channels = widths.features
    enters = widths.features * wider
    for name in ('projector', 'predictor'):
        if part := cfg.model.get(name):
            hidden, out = part.get('hidden_channels'), part.out_channels
            if name == 'projector':
                leaves = widths.hidden if hidden and out >= hidden else widths.out
            part.update(in_channels=enters, out_channels=leaves)
            if hidden:
                part.hidden_channels = leaves * hidden // out if hidden < out else widths.hidden
            enters = leaves
    if cfg.model.get('head', {}).get('channels'):
        cfg.model.head.channels = enters


def _shorten(cfg: Config, scale: Scale) -> None:
    """Fewer epochs, and what belongs to that: the warm-up, the rates, the teacher's memory, the checkpoints."""
    optimizer, momentum = cfg.optim_wrapper.optimizer, cfg.default_hooks.get('momentum')
    if scale.batch:  # a rate belongs to a batch, and the scale's factors to the usual one
        optimizer.lr *= USUAL_BATCH / cfg.total_batch_size
        cfg.total_batch_size = scale.batch
    optimizer.lr *= scale.lr.get(optimizer.type, 1.0)
    if momentum:
        momentum.base = round(1 - (1 - momentum.base) * scale.teacher, 10)
    if scale.epochs == 1:
        return
    # The same warm-up and cosine over fewer epochs; what is counted in iterations keeps its share of them.
    unit = 'max_epochs' if 'max_epochs' in cfg.train_cfg else 'max_iters'
    whole = cfg.train_cfg[unit]
    short = cfg.train_cfg[unit] = max(1, round(whole * scale.epochs))
    warm_up = 0
    for schedule in cfg.param_scheduler:
        if schedule.type in ('WarmUpLR', 'LinearLR'):
            epochs = scale.warm_up if schedule.get('by_epoch', True) else None
            schedule.end = warm_up = epochs or max(1, round(schedule.end * scale.epochs))
        else:
            schedule.begin, schedule.end = warm_up if schedule.get('begin') else 0, short
    checkpoint = cfg.default_hooks.checkpoint
    if checkpoint.max_keep_ckpts == -1:  # the run's checkpoints along the way are measured, too
        checkpoint.interval = max(1, round(checkpoint.interval * scale.epochs))
    else:
        checkpoint.update(interval=max(1, short // 4), max_keep_ckpts=1)
