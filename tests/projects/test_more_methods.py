"""SimSiam, VICReg and DINO: their losses against the printed formulas, and short runs on Shapes that do not collapse."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from losses import assert_same
from torch import Tensor, nn
from torch.utils.data import default_collate

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.engine.health import rankme
from mmairl.models.siamese import project
from mmairl.registry import DATASETS
from projects.more_methods.dino import DINOHead
from projects.more_methods.vicreg import VICRegHead

CONFIGS = Path(__file__).parents[2] / 'projects/more_methods/configs'


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
    centre, q, k = head.centre.clone(), {0: rows(), 1: rows()}, {0: rows(), 1: rows()}
    expected = 0.0
    for view in (0, 1):
        assigned = torch.softmax((k[1 - view] - centre) / 0.04, dim=1)
        predicted = torch.softmax(q[view] / 0.1, dim=1)
        expected = expected - (assigned * predicted.log()).sum() / 6 / 2
    torch.testing.assert_close(head(q, k, None)['loss'], expected)
    mean = torch.cat([k[0], k[1]]).mean(dim=0)
    torch.testing.assert_close(head.centre, 0.9 * centre + 0.1 * mean)
    head(q, {view: one * float('nan') for view, one in k.items()}, None)
    assert head.centre.isfinite().all()


def trained(name: str, work_dir: Path, options: dict) -> tuple[nn.Module, Tensor]:
    """The network after 32 steps, and a batch of unseen images as it is trained on."""
    cfg = load_config(str(CONFIGS / f'{name}_shapes.py'), options)
    cfg.model.backbone.update(stem_channels=8, base_channels=8)
    cfg.model.projector.in_channels = 64
    cfg.train_dataloader.dataset.count, cfg.total_batch_size = 512, 64
    cfg.train_cfg = dict(by_epoch=True, max_epochs=4)
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
    """What a prototype says about its image, in nats: 0 where one wins everywhere, and where all are equally near."""
    head = model.head
    share = F.softmax((project(model.teacher, images) - head.centre) / head.key_temperature, dim=1)
    return (torch.special.entr(share.mean(dim=0)).sum() - torch.special.entr(share).sum(dim=1).mean()).item()


# A method, what it is without the part that keeps it from collapsing, its measure, and what that must be above and below.
CASES = {
    'simsiam': ({'model.target': 'student'}, rank, 6, 3),
    'vicreg': ({'model.head.variance': 0.0, 'model.head.covariance': 0.0}, deviation, 0.1, 0.02),
    'dino': ({'model.head.centre_momentum': 1.0}, information, 0.5, 0.05),
}


@pytest.mark.parametrize('name', ['simsiam', *(pytest.param(n, marks=pytest.mark.slow) for n in ('vicreg', 'dino'))])
@torch.no_grad()
def test_the_method_does_not_collapse_and_without_its_remedy_it_does(tmp_path, name):
    remedy, measure, above, below = CASES[name]
    with torch.enable_grad():
        sound, collapsed = (trained(name, tmp_path / str(len(options)), options) for options in ({}, remedy))
    assert measure(*sound) > above and measure(*collapsed) < below
