"""Recipes of training on top of a backbone: a recipe, the network of one config and the data of its evaluation make a run.

Twenty data sets and ten recipes are thirty files and not two hundred.
"""

import copy
from pathlib import Path

import torch
from mmengine import Config, ConfigDict

from mmairl.config import home, load_config
from mmairl.errors import UserError
from mmairl.evaluation.features import Readable
from mmairl.evaluation.sets import precision_of, with_views
from mmairl.registry import DATASETS

DEFAULT = dict(linear='linear_sgd_100e', finetune='finetune_20k')
NEEDED = ('model', 'train_view', 'total_batch_size', 'optim_wrapper', 'train_cfg')
LONG_TAIL = 10  # times the images of the smallest class in the largest: then the tail is scored for itself


def recipe_of(cfg: Config, protocol: str, name: str | None = None) -> Config:
    """The recipe asked for or the one that the config names; else the paper's for the optimizer of the pre-training."""
    named = cfg.get('recipes', {}).get(protocol) if name is None else None
    lars = cfg.get('optim_wrapper', {}).get('optimizer', {}).get('type') == 'LARS'
    chosen = name or named or ('linear_lars_80e' if protocol == 'linear' and lars else DEFAULT[protocol])
    ours = {path.stem: path for path in (home() / 'configs/_base_/recipes').glob('*.py')}
    if chosen not in ours and not Path(chosen).suffix:
        raise UserError(
            f"there is no recipe '{chosen}'; give one of {', '.join(sorted(ours))}, or the path of a config"
        )
    recipe = load_config(str(ours.get(chosen, chosen)))
    if lacking := [key for key in NEEDED if key not in recipe]:
        raise UserError(
            f'{chosen} is not a recipe, for it lacks {", ".join(lacking)}; give one of {", ".join(sorted(ours))}'
        )
    return recipe


def compose(
    cfg: Config, recipe: Config, train: dict, test: dict, start: dict | None, work_dir: str | Path, workers: int = 4
) -> Config:
    """The recipe with the config's network, which begins from `start` (an init_cfg), on the data sets `train` and `test`."""
    made = copy.deepcopy(recipe)
    made.model.merge(_network(cfg, recipe, start))
    labelled = DATASETS.build(train)
    made.model.classes = len(labelled.classes)
    size = Readable(DATASETS.build(test))[0]['inputs'][0].shape[-1]  # of the images that are tested: crops get it, too
    view = [{'size': size, **step} if 'Crop' in step['type'] else step for step in recipe.train_view]
    on_gpu = torch.cuda.is_available()
    if on_gpu:  # whose convolutions want this layout
        made.setdefault('fast', dict(channels_last=True))
    if (precision := precision_of(cfg)) != 'float32' and recipe.model.get('frozen'):
        made.fast = {**made.get('fast', {}), 'precision': precision}
    loader = dict(num_workers=workers, persistent_workers=workers > 0, pin_memory=on_gpu)
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
        dataset=dict(type='Readable', dataset=test),
    )
    made.test_cfg = dict()
    of_one_class = labelled.labels.ndim == 1
    counts = labelled.labels.bincount(minlength=len(labelled.classes)) if of_one_class else torch.ones(1)
    long_tail, halves = counts.max() >= LONG_TAIL * counts[counts > 0].min(), recipe.get('halves', False)
    shots = counts.tolist() if long_tail else None
    made.test_evaluator = dict(type='HeadAccuracy', metric=labelled.metric, train_counts=shots, halves=halves)
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
