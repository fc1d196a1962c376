"""A runner's config for linear evaluation or fine-tuning: a recipe, the network of one config, the data of its evaluation.

Twenty data sets and ten recipes are thirty files and not two hundred.
"""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from mmengine import Config, ConfigDict
from torch.utils.data import Dataset

from mmairl.configs import home
from mmairl.engine.launch import load_config
from mmairl.errors import UserError
from mmairl.registry import DATASETS

RECIPES = dict(linear='linear_sgd_100e', finetune='finetune_20k')
LONG_TAIL = 10  # times the images of the smallest class in the largest: then the tail is scored for itself


def recipe_of(cfg: Config, protocol: str, name: str | None = None) -> Config:
    """The recipe named, or the one that the config names, or the paper's for the optimizer of the pre-training config."""
    if name is None:
        name = cfg.get('recipes', {}).get(protocol)
    if (
        name is None
        and protocol == 'linear'
        and cfg.get('optim_wrapper', {}).get('optimizer', {}).get('type') == 'LARS'
    ):
        name = 'linear_lars_80e'
    return load_config(str(_file(name or RECIPES[protocol], cfg)))


def _file(name: str, cfg: Config) -> Path:
    """A path as it is, or a recipe of ours by its name, looked for from the config upwards and then in the package."""
    if name.endswith('.py'):
        return Path(name)
    above = [folder / '_base_' / 'recipes' for folder in Path(cfg.filename).resolve().parents]
    ours = home() / 'configs/_base_/recipes'
    places = [*above, ours]
    found = next((place / f'{name}.py' for place in places if (place / f'{name}.py').is_file()), None)
    if found is None:
        known = sorted(path.stem for path in ours.glob('*.py'))
        raise UserError(f"there is no recipe '{name}'; say the path of a config or one of {', '.join(known)}")
    return found


def compose(
    cfg: Config, recipe: Config, train: dict, test: dict, start: dict | None, work_dir: str | Path, workers: int = 4
) -> Config:
    """The recipe with the config's network, which begins from `start` (an init_cfg), on the data sets `train` and `test`."""
    made = copy.deepcopy(recipe)
    made.model.merge(_network(cfg, recipe, start))
    labelled = _labelled(DATASETS.build(train), train)
    made.model.classes = len(labelled.classes)
    view = sized(recipe.train_view, DATASETS.build(test))
    loader = dict(num_workers=workers, persistent_workers=workers > 0, pin_memory=torch.cuda.is_available())
    loader['collate_fn'] = dict(type='default_collate')
    made.train_dataloader = dict(
        **loader,
        drop_last=len(labelled) >= made.total_batch_size,
        sampler=dict(type='ResumableSampler', shuffle=True),
        dataset=with_views(train, [view]),
    )
    made.test_dataloader = dict(
        **loader,
        batch_size=cfg.evaluation.get('batch_size', 256),
        sampler=dict(type='ResumableSampler', shuffle=False),
        dataset=test,
    )
    made.test_cfg = dict()
    counts = labelled.labels.bincount() if labelled.labels.ndim == 1 else torch.ones(1)
    long_tail = counts.max() >= LONG_TAIL * counts.min()
    made.test_evaluator = dict(
        type='HeadAccuracy', metric=labelled.metric, train_counts=counts.tolist() if long_tail else None
    )
    made.work_dir = str(work_dir)
    return made


def _network(cfg: Config, recipe: Config, start: dict | None) -> dict:
    """The config's backbone with what the recipe says of it, where a backbone of its kind has such a key."""
    backbone = copy.deepcopy(cfg.model.backbone)
    backbone.pop('init_cfg', None)
    backbone.update({key: value for key, value in recipe.model.get('backbone', {}).items() if key in backbone})
    if start is not None:
        backbone.init_cfg = start
    width = cfg.model.get('in_channels') or cfg.model.get('projector', {}).get('in_channels')
    if width is None:
        raise UserError(f'{cfg.filename} does not say how wide its features are; set model.in_channels')
    preprocessor = {key: cfg.model.data_preprocessor[key] for key in ('type', 'mean', 'std')}
    return ConfigDict(
        backbone=ConfigDict(_delete_=True, **backbone), in_channels=width, data_preprocessor=ConfigDict(preprocessor)
    )


def _labelled(dataset: Dataset, described: dict) -> Dataset:
    """The data set, once its labels are known to be ones that a classifier can learn."""
    labels = dataset.labels
    if labels.ndim == 1 and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(dataset.classes):
        wrong = int(labels.min()) if labels.min() < 0 else int(labels.max())
        raise UserError(
            f'{described["type"]} has the label {wrong} and {len(dataset.classes)} classes; name a labelled data set'
        )
    return dataset


def with_views(described: dict, views: Sequence) -> dict:
    """The description of a data set, or of the one that it wraps, with other views."""
    described = copy.deepcopy(described)
    inner = described
    while 'dataset' in inner:
        inner = inner['dataset']
    inner['views'] = [list(view) for view in views]
    return described


def sized(view: Sequence[dict], dataset: Dataset) -> list[dict]:
    """The view with its crops as large as the images that will be tested."""
    size = dataset[0]['inputs'][0].shape[-1]
    return [dict(step, size=size) if 'Crop' in step['type'] and 'size' not in step else dict(step) for step in view]
