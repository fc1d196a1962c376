"""Combine a training recipe with the network and data of a config into the config of a run.

A recipe states how to train, but not with which network or data. Therefore, twenty data sets and ten
recipes need thirty files instead of two hundred.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from mmengine import Config, ConfigDict
from torch import Tensor

from mmairl.checkpoints.read import Backbone
from mmairl.config import home, load_config
from mmairl.data.preprocess import normalize
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Readable
from mmairl.evaluation.sets import with_views
from mmairl.models.backbones import features
from mmairl.registry import DATASETS, OPTIMIZERS, PROTOCOLS

REQUIRED = ('model', 'train_view', 'total_batch_size', 'optim_wrapper', 'train_cfg')


def recipe_of(
    cfg: Config, protocol: str, name: str | None = None, subject: Backbone | str = ''
) -> Config:
    """Return the recipe `name` or, without a name, the recipe of the config or the protocol.

    The default recipe of a protocol depends on whether LARS trained the network, as the config or
    the checkpoint states.
    """
    chosen = name or cfg.get('recipes', {}).get(protocol)
    if chosen is None:
        kind = PROTOCOLS.get(protocol)
        lars = kind.lars_recipe_name
        chosen = lars if lars and trained_by_lars(cfg, subject) else kind.recipe_name
    folder = home() / 'configs/_base_/recipes'
    shipped = {path.stem: str(path) for path in folder.glob('*.py')}
    if chosen not in shipped and not Path(chosen).suffix:
        raise UserError(
            f"{protocol}: unknown recipe ('{chosen}'); use one of {', '.join(sorted(shipped))}, or "
            'the path of a config',
            code='unknown-recipe',
        )
    recipe = load_config(shipped.get(chosen, chosen))
    if lacking := [key for key in REQUIRED if key not in recipe]:
        raise UserError(
            f"{protocol}: the recipe lacks {', '.join(lacking)} ('{chosen}'); set them",
            code='no-recipe',
        )
    return recipe


def trained_by_lars(cfg: Config, subject: Backbone | str = '') -> bool:
    """Return whether the optimizer of a config, or of the run that wrote a checkpoint, is LARS."""
    kind = cfg.get('optim_wrapper', {}).get('optimizer', {}).get('type')
    if kind is None and isinstance(subject, Backbone):
        kind = subject.settings.get('optim_wrapper.optimizer.type')
    kind = OPTIMIZERS.get(kind) if isinstance(kind, str) else kind
    return kind is not None and issubclass(kind, OPTIMIZERS.get('LARS'))


def compose(
    cfg: Config,
    recipe: Config,
    train: dict,
    test: dict,
    start: dict | None,
    work_dir: str | Path,
    workers: int = 4,
) -> Config:
    """Return the config of a run, which combines a recipe with a network and with data sets.

    Args:
        cfg: The config that defines the backbone.
        recipe: The recipe for the training.
        train: Config of the training images.
        test: Config of the test images.
        start: The `init_cfg` that loads the weights of the backbone, or None for random weights.
        work_dir: Folder for the run.
        workers: Number of processes that load images.
    """
    composed = copy.deepcopy(recipe)
    images = DATASETS.build(train)
    image = Readable(DATASETS.build(test))[0]['inputs'][0]
    composed.model.merge(_network(cfg, recipe, start, image))
    composed.model.classes = len(images.classes)
    # Training crops have the size of the test images, unless the recipe sets their size.
    crop = dict(size=image.shape[-1])
    view = [crop | step if 'Crop' in step['type'] else step for step in recipe.train_view]
    loader = dict(
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        collate_fn=dict(type='default_collate'),
    )
    composed.train_dataloader = dict(
        **loader,
        drop_last=len(images) >= composed.total_batch_size,
        sampler=dict(type='ResumableSampler', shuffle=True),
        dataset=with_views(train, [view]),
    )
    composed.test_dataloader = dict(
        **loader,
        batch_size=cfg.evaluation.get('batch_size', 256),
        sampler=dict(type='ResumableSampler', shuffle=False),
        dataset=dict(type='Readable', dataset=test),
    )
    composed.test_cfg = dict()
    composed.test_evaluator = dict(type='HeadAccuracy', metric=images.metric)
    composed.work_dir = str(work_dir)
    return composed


def _network(cfg: Config, recipe: Config, start: dict | None, image: Tensor) -> dict[str, Any]:
    """Return the model settings that a run takes from the config.

    They are the backbone, the width of its features on an image, and the normalization. If the
    recipe sets a key that the config's backbone also has, the recipe's value is used.
    """
    normal = cfg.model.data_preprocessor
    with torch.no_grad():
        found = features(load_backbone(cfg), normalize(image[None], normal.mean, normal.std))
    backbone = copy.deepcopy(cfg.model.backbone)
    backbone.pop('init_cfg', None)
    overrides = recipe.model.get('backbone', {})
    for key in overrides.keys() & backbone.keys():
        backbone[key] = copy.deepcopy(overrides[key])
    if start is not None:
        backbone.init_cfg = start
    return ConfigDict(
        backbone=ConfigDict(_delete_=True, **backbone),
        in_channels=found.pooled.shape[1],
        data_preprocessor=dict(type='ViewPreprocessor', mean=normal.mean, std=normal.std),
    )
