"""Combine a training recipe with the network and data of a config into the config of a run.

A recipe states how to train, but not with which network or data. Therefore, twenty data sets and ten recipes need thirty
files instead of two hundred.
"""

import copy
from functools import cache
from pathlib import Path

import torch
from mmengine import Config, ConfigDict
from torch import Tensor

from mmairl.config import home, load_config
from mmairl.errors import UserError
from mmairl.evaluation.features import Readable
from mmairl.evaluation.metrics import HeadAccuracy
from mmairl.evaluation.sets import precision_of, with_views
from mmairl.registry import DATASETS, PROTOCOLS

REQUIRED = ('model', 'train_view', 'total_batch_size', 'optim_wrapper', 'train_cfg')
# Scores by class size are added if the largest class has at least this many times as many images as the smallest class.
LONG_TAIL = 10

_read_shipped = cache(load_config)


def recipe_of(cfg: Config, protocol: str, name: str | None = None) -> Config:
    """Return the recipe `name` or, without a name, the recipe that the config chooses for the protocol.

    If the config chooses none, return the protocol's default, which depends on whether LARS was used for pre-training.
    """
    chosen = name or cfg.get('recipes', {}).get(protocol)
    if chosen is None:
        kind = PROTOCOLS.get(protocol)
        by_lars = cfg.get('optim_wrapper', {}).get('optimizer', {}).get('type') == 'LARS'
        chosen = kind.lars_recipe_name if by_lars and kind.lars_recipe_name else kind.recipe_name
    folder = home() / 'configs/_base_/recipes'
    shipped = {path.stem: path for path in folder.glob('*.py')}
    names = ', '.join(sorted(shipped))
    if chosen not in shipped and not Path(chosen).suffix:
        raise UserError(
            f"{protocol}: unknown recipe ('{chosen}'); expected one of {names}, or the path of a config",
            code='unknown-recipe',
        )
    path = shipped.get(chosen)
    recipe = copy.deepcopy(_read_shipped(str(path))) if path else load_config(chosen)
    lacking = [key for key in REQUIRED if key not in recipe]
    if lacking:
        raise UserError(
            f"{protocol}: the recipe lacks {', '.join(lacking)} ('{chosen}'); use one of {names}",
            code='no-recipe',
        )
    return recipe


def compose(
    cfg: Config,
    recipe: Config,
    train: dict,
    test: dict,
    start: dict | None,
    work_dir: str | Path,
    workers: int = 4,
) -> Config:
    """Return the config of a run, which combines a recipe with the network of `cfg` and with data sets.

    Args:
        cfg: The config that defines the backbone.
        recipe: The recipe for the training.
        train: Config of the training images.
        test: Config of the test images.
        start: The `init_cfg` that loads the weights of the backbone. If it is None, the backbone is initialized at random.
        work_dir: Folder for the run.
        workers: Number of processes that load images.
    """
    composed = copy.deepcopy(recipe)
    composed.model.merge(_network(cfg, recipe, start))
    images = DATASETS.build(train)
    composed.model.classes = len(images.classes)
    # Training crops have the size of the test images, unless the recipe sets their size.
    size = Readable(DATASETS.build(test))[0]['inputs'][0].shape[-1]
    view = []
    for step in recipe.train_view:
        view.append({'size': size, **step} if 'Crop' in step['type'] else step)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        composed.setdefault('fast', dict(channels_last=True))
    precision = precision_of(cfg)
    if precision != 'float32' and recipe.model.get('frozen'):
        composed.fast = {**composed.get('fast', {}), 'precision': precision}
    loader = dict(
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=on_gpu,
        collate_fn=dict(type='default_collate'),
    )
    composed.train_dataloader = dict(
        **loader,
        drop_last=len(images) >= composed.total_batch_size,
        sampler=dict(type='ResumableSampler', shuffle=True),
        dataset=with_views(train, [view]),
    )
    test_loader = dict(
        **loader,
        batch_size=cfg.evaluation.get('batch_size', 256),
        sampler=dict(type='ResumableSampler', shuffle=False),
    )
    composed.test_dataloader = dict(test_loader, dataset=dict(type='Readable', dataset=test))
    composed.test_cfg = dict()
    composed.test_evaluator = dict(
        # The class is imported instead of named by a string, so that the digest of the protocol's source code covers its
        # module.
        type=HeadAccuracy.__name__,
        metric=images.metric,
        train_counts=_long_tail(images.labels, len(images.classes)),
        halves=recipe.get('halves', False),
    )
    composed.work_dir = str(work_dir)
    return composed


def _long_tail(labels: Tensor, classes: int) -> list[int] | None:
    """Return the number of training images of each class, or None if the class sizes are similar.

    Class sizes are similar if the largest is less than LONG_TAIL times the smallest. Empty classes are ignored. If images
    can have several classes, None is returned.
    """
    if labels.ndim != 1:
        return None
    counts = labels.bincount(minlength=classes)
    smallest = counts[counts > 0].min()
    return counts.tolist() if counts.max() >= LONG_TAIL * smallest else None


def _network(cfg: Config, recipe: Config, start: dict | None) -> dict:
    """Return the model settings that a run takes from the config: backbone, feature width and normalization.

    If the recipe sets a key that the config's backbone also has, the recipe's value is used.
    """
    backbone = copy.deepcopy(cfg.model.backbone)
    backbone.pop('init_cfg', None)
    overrides = recipe.model.get('backbone', {})
    backbone.update({key: value for key, value in overrides.items() if key in backbone})
    if start is not None:
        backbone.init_cfg = start
    width = cfg.model.get('in_channels') or cfg.model.get('projector', {}).get('in_channels')
    if width is None:
        raise UserError(
            f"model.in_channels: {cfg.filename} does not state the width of the backbone's features; "
            'set model.in_channels',
            code='unknown-width',
        )
    preprocessor = {key: cfg.model.data_preprocessor[key] for key in ('type', 'mean', 'std')}
    return ConfigDict(
        backbone=ConfigDict(_delete_=True, **backbone),
        in_channels=width,
        data_preprocessor=ConfigDict(preprocessor),
    )
