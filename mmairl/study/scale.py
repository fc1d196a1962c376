"""The same study at another size: what a scale changes, it changes in every row alike."""

import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.configs import home, load_config
from mmairl.data_configs import check, scopes_of
from mmairl.errors import UserError
from mmairl.study.spec import Row, read_keys

USUAL_BATCH = 1024  # of the papers' configs, but for BYOL's own, MSBReg's and the supervised ones


@dataclass(frozen=True)
class Scale:
    """Numbers that make a full-size config smaller; what is left out stays as the paper has it."""

    name: str
    text: str
    rate: float  # images a second and device of a MoCo v2+ step
    rate_source: str
    images: int  # in the training set
    merge: dict[str, Any] = field(default_factory=dict)  # into every config
    replace: dict[str, Any] = field(default_factory=dict)  # in every config
    data: dict[str, Any] | None = None  # in place of the images that the config's data set is made of
    views: dict[str, dict] = field(default_factory=dict)  # by transform: keys to set
    views_on_device: bool = False
    widths: dict[str, int] = field(default_factory=dict)  # of projector and predictor: features, hidden, out
    queue: int | None = None
    batch: int | None = None
    epochs: float = 1.0  # times the config's
    warm_up: int | None = None  # epochs, where a config has one
    teacher: float = 1.0  # times 1 - momentum
    lr: dict[str, float] = field(default_factory=dict)  # by optimizer: times the config's
    tasks: tuple[str, ...] = ()  # in place of the study's
    seeds: tuple[int, ...] = ()


def read_scale(name: str) -> Scale:
    """A scale that comes with mmairl, by its name, or one's own, by the path of its YAML."""
    folder = home() / 'configs' / 'studies' / '_scales'
    path = Path(name) if name.endswith('.yaml') else folder / f'{name}.yaml'
    if not path.is_file():
        known = ', '.join(sorted(file.stem for file in folder.glob('*.yaml')))
        raise UserError(f"there is no scale '{name}'; say {known}, or give the path of your own YAML")
    found = read_keys(path, 'the scale', [of.name for of in fields(Scale) if of.name != 'name'])
    if lacking := {'text', 'rate', 'rate_source', 'images'} - found.keys():
        raise UserError(f'the scale {path} lacks {", ".join(sorted(lacking))}; see {folder / "demo.yaml"}')
    lists = {key: tuple(found.get(key, ())) for key in ('tasks', 'seeds')}
    return Scale(name=path.stem, **{**found, **lists})


def resolve(row: Row, scale: Scale) -> Config:
    """The row's config at this scale, as it will run. Options and scales are data: they bring no code beside the config's."""
    path = next((path for path in (home() / 'configs' / row.config, home() / row.config) if path.is_file()), row.config)
    cfg = load_config(str(path), row.options)
    for key, value in copy.deepcopy(scale.replace).items():
        cfg[key] = value
    cfg.merge_from_dict(copy.deepcopy(scale.merge))
    _change_data(cfg, scale)
    _narrow(cfg, scale)
    _shorten(cfg, scale)
    check(values := cfg.to_dict(), f"the row '{row.name}'", scopes_of(values))
    return cfg


def _change_data(cfg: Config, scale: Scale) -> None:
    """Other images, and the same operations on them at another size."""
    images = cfg.train_dataloader.dataset
    while 'dataset' in images:
        images = images.dataset
    views = [[{**step, **scale.views.get(step['type'], {})} for step in view] for view in images.get('views') or ()]
    if scale.data is not None:
        images.clear()
        images.update(copy.deepcopy(scale.data))
    if scale.views_on_device:
        cfg.model.data_preprocessor.views = views
    else:
        images.views = views


def _narrow(cfg: Config, scale: Scale) -> None:
    """The head's widths and the queue's length, where the config has them."""
    if scale.widths and cfg.model.get('in_channels'):  # a classifier's
        cfg.model.in_channels = scale.widths['features']
    if scale.queue and cfg.model.get('queue'):
        cfg.model.queue.length = scale.queue
    for part, enters in (('projector', 'features'), ('predictor', 'out')):
        if scale.widths and cfg.model.get(part):
            cfg.model[part].update(in_channels=scale.widths[enters], out_channels=scale.widths['out'])
            if cfg.model[part].get('hidden_channels'):
                cfg.model[part].hidden_channels = scale.widths['hidden']


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
            schedule.end = warm_up = scale.warm_up or max(1, round(schedule.end * scale.epochs))
        else:
            schedule.begin, schedule.end = schedule.begin and warm_up, short
    checkpoint = cfg.default_hooks.checkpoint
    if checkpoint.max_keep_ckpts == -1:  # the run's checkpoints along the way are measured, too
        checkpoint.interval = max(1, round(checkpoint.interval * scale.epochs))
    else:
        checkpoint.update(interval=max(1, short // 4), max_keep_ckpts=1)
