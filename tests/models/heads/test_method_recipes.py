"""The configs of configs/methods follow the released recipes, and short runs collapse only if a method's remedy for
collapse is removed.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import default_collate

from mmairl.config import load_config
from mmairl.engine import run as launch
from mmairl.models.siamese import encode
from mmairl.models.spectrum import rankme, spread
from mmairl.registry import DATASETS

CONFIGS = Path(__file__).parents[3] / 'configs/methods'


# The released code has these values, except for the epochs and the number of small crops of
# 'dino_multicrop_r50_300e'. In order: learning rate per 256 images, weight decay, epochs,
# batch size, epochs of warm-up, final fraction of the learning rate, hidden widths of projector and
# predictor, whether projector and predictor end with a norm, and the number of views for each kind
# of crop (size, smallest and largest scale).
RECIPES = {
    'simsiam_r50_100e': (
        0.05,
        1e-4,
        100,
        512,
        0,
        0,
        (2048, 512),
        (True, False),
        {(224, 0.2, 1.0): 2},
    ),
    'barlow_r50_1000e': (0.2, 1e-6, 1000, 2048, 10, 1e-3, (8192,), (False,), {(224, 0.08, 1.0): 2}),
    'vicreg_r50_1000e': (0.2, 1e-6, 1000, 2048, 10, 1e-3, (8192,), (False,), {(224, 0.08, 1.0): 2}),
    'swav_r50_800e': (
        0.3,
        1e-6,
        800,
        4096,
        10,
        1e-3,
        (2048,),
        (False,),
        {(224, 0.14, 1.0): 2, (96, 0.05, 0.14): 6},
    ),
    'dino_multicrop_r50_300e': (
        0.03,
        1e-4,
        300,
        1024,
        10,
        0,
        (2048,),
        (False,),
        {(224, 0.14, 1.0): 2, (96, 0.05, 0.14): 6},
    ),
    'dino_vit_s16_300e': (
        5e-4,
        0.04,
        300,
        1024,
        10,
        5e-4,
        (2048,),
        (False,),
        {(224, 0.4, 1.0): 2, (96, 0.05, 0.4): 8},
    ),
    'mocov3_r50_300e': (
        0.3,
        1e-6,
        300,
        4096,
        10,
        0,
        (4096, 4096),
        (True, False),
        {(224, 0.2, 1.0): 2},
    ),
    'mocov3_vit_s16_300e': (
        1.5e-4,
        0.1,
        300,
        4096,
        40,
        0,
        (4096, 4096),
        (True, True),
        {(224, 0.08, 1.0): 2},
    ),
    'lejepa_r50_100e': (
        5e-4,
        5e-4,
        100,
        256,
        10,
        1e-3,
        (2048,),
        (False,),
        {(224, 0.3, 1.0): 2, (98, 0.05, 0.3): 6},
    ),
}


@pytest.mark.parametrize('name', RECIPES)
def test_recipe_equals_the_released_one(name):
    cfg = load_config(str(CONFIGS / f'{name}.py'))
    optimizer, (*warm_up, cosine) = cfg.optim_wrapper.optimizer, cfg.param_scheduler[:2]
    necks = [neck for neck in (cfg.model.projector, cfg.model.predictor) if neck]
    crops = [
        (view[0].size, *view[0].scale)
        for view in cfg.train_dataloader.dataset.views
        if view[0].type[-4:] == 'Crop'
    ]
    assert cfg.auto_scale_lr.base_batch_size == cfg.total_batch_size
    assert RECIPES[name] == (
        pytest.approx(optimizer.lr * 256 / cfg.total_batch_size),
        optimizer.weight_decay,
        cfg.train_cfg.max_epochs,
        cfg.total_batch_size,
        sum(step.end for step in warm_up),
        pytest.approx(cosine.get('eta_min_ratio') or cosine.eta_min / optimizer.lr),
        tuple(neck.hidden_channels for neck in necks),
        tuple('last_norm' in neck for neck in necks),
        Counter(crops),
    )


def trained(name: str, work_dir: Path, options: dict, epochs: int = 8) -> tuple[nn.Module, Tensor]:
    """Train with 8 steps per epoch. Return the model, and the first training view of 256 unseen images."""
    cfg = load_config(str(CONFIGS / f'{name}_shapes.py'), options)
    cfg.model.backbone.update(stem_channels=8, base_channels=8)
    cfg.model.projector.in_channels = 64
    cfg.train_dataloader.dataset.count = 512
    cfg.total_batch_size = 64
    # The configs have learning rates for larger batches, with which VICReg and Barlow Twins would
    # diverge. This option scales the learning rate to batches of 64.
    cfg.auto_scale_lr.enable = True
    cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0.0, convert_to_iter_based=True)]
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    cfg.work_dir, cfg.randomness.seed = str(work_dir), 0
    model = launch.train(cfg).model.train()
    data = DATASETS.build(dict(type='Shapes', split='val', count=256, size=48))
    batch = default_collate([data[index] for index in range(256)])
    return model, model.data_preprocessor(batch, training=True)['inputs'][0]


def project(encoder: nn.Module, images: Tensor) -> Tensor:
    return encode(encoder, images, predicted=False).embeddings


def rank(model: nn.Module, images: Tensor) -> float:
    """Return the rank of the centered projections.

    The standard deviations would not show a collapse of SimSiam, because its projector ends with a norm.
    """
    z = project(model, images)
    return rankme(z - z.mean(dim=0))


def deviation(model: nn.Module, images: Tensor) -> float:
    return project(model, images).std(dim=0).mean().item()


def information(model: nn.Module, images: Tensor) -> float:
    """Return the mutual information of images and prototypes, in nats.

    It is 0 if all images have the same distribution over prototypes, for example if one prototype always wins.
    """
    head = model.head
    share = F.softmax(
        (project(model.teacher, images) - head.center.mean) / head.key_temperature, dim=1
    )
    return (
        torch.special.entr(share.mean(dim=0)).sum() - torch.special.entr(share).sum(dim=1).mean()
    ).item()


def winners(model: nn.Module, images: Tensor) -> float:
    """Return how many of SwAV's prototypes are the nearest to at least one image."""
    return len(
        (F.normalize(project(model, images), dim=1) @ model.head.prototypes.weight.T)
        .argmax(dim=1)
        .unique()
    )


def spread_of(model: nn.Module, images: Tensor) -> float:
    return float(spread(project(model, images)))


class Case(NamedTuple):
    """The options that remove a method's remedy for collapse, and a measure that must then fall by more than a factor of
    `factor`.
    """

    without: dict
    measure: Callable[[nn.Module, Tensor], float]
    epochs: int = 8
    factor: float = 2.0


CASES = {
    'simsiam': Case({'model.target': 'student'}, rank),
    'simclr': Case({'model.head.beta': 0.0}, spread_of),
    'vicreg': Case({'model.head.variance': 0.0, 'model.head.covariance': 0.0}, deviation),
    # The rank falls slowly. Even after 24 epochs, the measured factor is only 1.9.
    'barlow': Case({'model.head.weight': 0.0}, rank, 24, 1.3),
    'lejepa': Case({'model.head.weight': 0.0}, deviation),
    'swav': Case({'model.head.iterations': 0}, winners),
    'dino': Case({'model.head.center_momentum': 1.0}, information),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
@torch.no_grad()
def test_method_collapses_only_without_its_remedy(tmp_path, name):
    case = CASES[name]
    with torch.enable_grad():
        sound = trained(name, tmp_path / 'sound', {}, case.epochs)
        collapsed = trained(name, tmp_path / 'collapsed', case.without, case.epochs)
    assert case.measure(*sound) > case.factor * case.measure(*collapsed)
