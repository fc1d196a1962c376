"""More methods: their losses against mmpretrain's or the printed formulas, and short runs on Shapes that do not collapse."""

from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from harness.losses import assert_same
from mmpretrain.models.heads import LatentCrossCorrelationHead, MoCoV3Head
from mmpretrain.models.losses import SwAVLoss
from torch import Tensor, nn
from torch.utils.data import default_collate

from mmairl.config import load_config
from mmairl.engine import run as launch
from mmairl.models.siamese import project
from mmairl.models.spectrum import rankme, spread
from mmairl.registry import DATASETS
from projects.more_methods.barlow import BarlowTwinsHead
from projects.more_methods.dino import DINOHead, PrototypeNeck
from projects.more_methods.lejepa import LeJEPAHead
from projects.more_methods.mocov3 import BatchContrastiveHead
from projects.more_methods.swav import SwAVHead
from projects.more_methods.vicreg import VICRegHead

CONFIGS = Path(__file__).parents[2] / 'projects/more_methods/configs'


# As the releases have them: the rate per 256 images, the decay, epochs, images a step, epochs of warm-up, what is left of the
# rate at the end, the widths of projector and predictor, the last norm of each, and what a view is cropped to.
RECIPES = {
    'simsiam_r50_100e': (0.05, 1e-4, 100, 512, 0, 0, (2048, 512), (True, False), {(224, 0.2, 1.0): 2}),
    'barlow_r50_1000e': (0.2, 1e-6, 1000, 2048, 10, 1e-3, (8192,), (False,), {(224, 0.08, 1.0): 2}),
    'vicreg_r50_1000e': (0.2, 1e-6, 1000, 2048, 10, 1e-3, (8192,), (False,), {(224, 0.08, 1.0): 2}),
    'swav_r50_800e': (0.3, 1e-6, 800, 4096, 10, 1e-3, (2048,), (False,), {(224, 0.14, 1.0): 2, (96, 0.05, 0.14): 6}),
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
    'dino_vit_s16_300e': (5e-4, 0.04, 300, 1024, 10, 5e-4, (2048,), (False,), {(224, 0.4, 1.0): 2, (96, 0.05, 0.4): 8}),
    'mocov3_r50_300e': (0.3, 1e-6, 300, 4096, 10, 0, (4096, 4096), (True, False), {(224, 0.2, 1.0): 2}),
    'mocov3_vit_s16_300e': (1.5e-4, 0.1, 300, 4096, 40, 0, (4096, 4096), (True, True), {(224, 0.08, 1.0): 2}),
    'lejepa_r50_100e': (5e-4, 5e-4, 100, 256, 10, 1e-3, (2048,), (False,), {(224, 0.3, 1.0): 2, (98, 0.05, 0.3): 6}),
}


@pytest.mark.parametrize('name', RECIPES)
def test_a_recipe_is_that_of_its_release(name):
    cfg = load_config(str(CONFIGS / f'{name}.py'))
    optimizer, (*warm_up, cosine) = cfg.optim_wrapper.optimizer, cfg.param_scheduler[:2]
    necks = [neck for neck in (cfg.model.projector, cfg.model.predictor) if neck]
    crops = [
        (view[0].size, *view[0].scale) for view in cfg.train_dataloader.dataset.views if view[0].type[-4:] == 'Crop'
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


def rows(count: int = 6, dim: int = 5) -> Tensor:
    return torch.randn(count, dim, dtype=torch.float64)


def test_vicreg_is_the_papers_sum():
    a, b = rows().requires_grad_(), rows().requires_grad_()
    expected = 25 * sum((x - y) ** 2 for x, y in zip(a.flatten(), b.flatten())) / a.numel()
    for z in (a, b):
        deviation = [(sum((x - column.mean()) ** 2 for x in column) / 5 + 1e-4) ** 0.5 for column in z.T]
        expected = expected + 25 * sum(max(1 - d, 0 * d) for d in deviation) / 5
        centred = z - z.mean(dim=0)
        for i in range(5):
            for j in set(range(5)) - {i}:
                expected = expected + ((centred[:, i] @ centred[:, j]) / 5) ** 2 / 5
    found = VICRegHead()({0: a}, {1: b}, None)['loss']
    assert_same(found, expected, [a, b], 1e-10)


def test_dino_is_the_cross_entropy_with_the_other_view_and_its_centre_the_moving_mean_of_the_keys():
    head = DINOHead(prototypes=5).double()
    head.centre.copy_(rows()[0])
    centre, k = head.centre.clone(), {0: rows(), 1: rows()}
    q = {view: rows().requires_grad_() for view in (0, 1)}
    expected = 0.0
    for view in (0, 1):
        assigned = torch.softmax((k[1 - view] - centre) / 0.04, dim=1)
        predicted = torch.softmax(q[view] / 0.1, dim=1)
        expected = expected - (assigned * predicted.log()).sum() / 6 / 2
    assert_same(head(q, k, None)['loss'], expected, list(q.values()), 1e-10)
    mean = torch.cat([k[0], k[1]]).mean(dim=0)
    torch.testing.assert_close(head.centre, 0.9 * centre + 0.1 * mean)
    head(q, {view: one * float('nan') for view, one in k.items()}, None)
    assert head.centre.isfinite().all()


def test_barlow_twins_is_mmpretrains():
    a, b = rows().requires_grad_(), rows().requires_grad_()
    loss = dict(type='mmpretrain.CrossCorrelationLoss', lambd=0.0051)
    theirs = LatentCrossCorrelationHead(in_channels=5, loss=loss).double()
    ours = BarlowTwinsHead(weight=0.0051)({0: a}, {1: b}, None)['loss']
    assert_same(ours, theirs.loss(a, b), [a, b], 1e-10)


def test_mocov3_is_mmpretrains():
    q, k = rows().requires_grad_(), rows()
    loss = dict(type='mmpretrain.CrossEntropyLoss', loss_weight=2 * 0.2)
    theirs = MoCoV3Head(
        predictor=dict(type='mmpretrain.LinearNeck', in_channels=5, out_channels=5), loss=loss, temperature=0.2
    )
    theirs.predictor = nn.Identity()
    ours = BatchContrastiveHead(temperature=0.2)({0: q}, {1: k}, None)['loss']
    assert_same(ours, theirs.loss(q, k), [q], 1e-10)


def test_swav_is_mmpretrains_with_small_crops():
    theirs = SwAVLoss(feat_dim=5, num_crops=[2, 3], num_prototypes=7).double()
    head = SwAVHead(channels=5, prototypes=7).double()
    head.prototypes.load_state_dict(theirs.prototypes.state_dict())
    z = {view: rows().requires_grad_() for view in range(5)}
    expected = theirs(torch.cat([F.normalize(view, dim=1) for view in z.values()]))
    ours = head(z, {view: z[view].detach() for view in (0, 1)}, None)['loss']
    torch.testing.assert_close(ours, expected, atol=1e-10, rtol=1e-10)
    assert_same(ours, expected, list(z.values()), 1e-10)


def test_lejepa_is_the_papers_integral():
    """By loops over slices and points, with complex numbers, as the paper writes it."""
    head = LeJEPAHead(weight=0.05, slices=4, points=5, reach=3.0).double()
    z = {view: rows(count=8).requires_grad_() for view in range(3)}
    torch.manual_seed(1)
    ours = head(z, {0: z[0], 1: z[1]}, None)['loss']
    torch.manual_seed(1)
    slices = torch.randn(5, 4, dtype=torch.float64)
    statistics = []
    for view in z.values():
        for direction in slices.T:
            line = view @ (direction / direction.norm())
            errors = []
            for t in torch.linspace(-3, 3, 9, dtype=torch.float64):
                apart = torch.exp(1j * t * line).mean() - torch.exp(-t * t / 2)
                errors.append((apart * apart.conj()).real * torch.exp(-t * t / 2))
            statistics.append(8 * 0.75 * (sum(errors) - (errors[0] + errors[-1]) / 2))
    centre = (z[0] + z[1]) / 2
    distance = sum((view - centre).square().mean() for view in z.values()) / 3
    assert_same(ours, 0.95 * distance + 0.05 * sum(statistics) / 12, list(z.values()), 1e-10)


def test_frozen_prototypes_keep_their_place_and_let_the_rest_learn():
    neck = PrototypeNeck(prototypes=4, in_channels=5, hidden_channels=None, out_channels=3)
    head = SwAVHead(channels=5, prototypes=4)
    for part, run in (
        (neck, lambda x: neck(x)),
        (head, lambda x: head({0: x, 1: x + 1}, {0: x.detach()}, None)['loss']),
    ):
        for frozen in (1, 0):
            part.frozen, x = frozen, rows().float().requires_grad_()
            part.zero_grad()
            run(x).square().sum().backward()
            assert (part.prototypes.weight.grad == 0).all() == bool(frozen) and x.grad.abs().sum() > 0


def trained(name: str, work_dir: Path, options: dict) -> tuple[nn.Module, Tensor]:
    """The network after 64 steps, and a batch of unseen images as it is trained on."""
    cfg = load_config(str(CONFIGS / f'{name}_shapes.py'), options)
    cfg.model.backbone.update(stem_channels=8, base_channels=8)
    cfg.model.projector.in_channels = 64
    cfg.train_dataloader.dataset.count, cfg.total_batch_size = 512, 64
    cfg.train_cfg = dict(by_epoch=True, max_epochs=8)
    cfg.param_scheduler = [dict(type='CosineAnnealingLR', eta_min=0.0, convert_to_iter_based=True)]
    cfg.default_hooks.checkpoint.update(interval=100, save_last=False)
    cfg.work_dir, cfg.randomness.seed = str(work_dir), 0
    model = launch.train(cfg).model.train()
    data = DATASETS.build(dict(type='Shapes', split='val', count=256, size=48))
    batch = default_collate([data[index] for index in range(256)])
    return model, model.data_preprocessor(batch, training=True)['inputs'][0]


def rank(model: nn.Module, images: Tensor) -> float:
    """How many directions the projections fill; their deviations are 1 by the last norm, collapsed or not."""
    z = project(model, images)
    return rankme(z - z.mean(dim=0))


def deviation(model: nn.Module, images: Tensor) -> float:
    return project(model, images).std(dim=0).mean().item()


def information(model: nn.Module, images: Tensor) -> float:
    """Return what a prototype says about its image, in nats: 0 where one wins everywhere, and where all are equally near."""
    head = model.head
    share = F.softmax((project(model.teacher, images) - head.centre) / head.key_temperature, dim=1)
    return (torch.special.entr(share.mean(dim=0)).sum() - torch.special.entr(share).sum(dim=1).mean()).item()


def winners(model: nn.Module, images: Tensor) -> float:
    """How many of SwAV's prototypes are the nearest of some image."""
    return len((F.normalize(project(model, images), dim=1) @ model.head.prototypes.weight.T).argmax(dim=1).unique())


def spread_of(model: nn.Module, images: Tensor) -> float:
    return float(spread(project(model, images)))


# A method, what it is without the part that keeps it from collapsing, and the measure that halves at least.
CASES = {
    'simsiam': ({'model.target': 'student'}, rank),
    'simclr': ({'model.head.beta': 0.0}, spread_of),
    'vicreg': ({'model.head.variance': 0.0, 'model.head.covariance': 0.0}, deviation),
    'barlow': ({'model.head.weight': 0.0}, rank),
    'lejepa': ({'model.head.weight': 0.0}, deviation),
    'swav': ({'model.head.iterations': 0}, winners),
    'dino': ({'model.head.centre_momentum': 1.0}, information),
}


@pytest.mark.parametrize('name', [pytest.param(n, marks=[] if n == 'simsiam' else pytest.mark.slow) for n in CASES])
@torch.no_grad()
def test_the_method_does_not_collapse_and_without_its_remedy_it_does(tmp_path, name):
    remedy, measure = CASES[name]
    with torch.enable_grad():
        sound, collapsed = (trained(name, tmp_path / str(len(options)), options) for options in ({}, remedy))
    assert measure(*sound) > 2 * measure(*collapsed)
