"""Compare CentroidHead, SingularValueTerm and BrownianTerm with float64 loops, and check the learning rates of the configs."""

from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from harness.losses import assert_same, rows, units

from mmairl.config import load_config
from mmairl.models.heads.regression import RegressionHead
from projects.msbreg.msbreg import BrownianTerm, CentroidHead, SingularValueTerm

CONFIGS = Path(__file__).parents[1] / 'configs'
# The base learning rates from Section 1.1 of the supplement: ImageNet (configs with 'r50'), ImageNet-100 and STL-10.
BASE_LR = {'r50': 0.15, 'in100': 0.4, 'stl10': 0.5}


def distances(queries: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """Return the mean of 2 - 2 cos over the rows."""
    return torch.stack(
        [2 - 2 * (q @ c) / (q.norm() * c.norm()) for q, c in zip(queries, centers)]
    ).mean()


@pytest.mark.parametrize('views', [2, 3, 8])
def test_view_is_drawn_to_the_center_of_the_others(views):
    q = rows(views, 6)
    k = rows(views, 6)
    keys = units(k)
    total = 0.0
    for view, queries in units(q).items():
        others = [keys[other] for other in keys if other != view]
        total = total + distances(queries, sum(others))
    loss = CentroidHead()(q, k, None)['loss']
    assert_same(loss, 2 * total / views, list(q.values()))
    if views == 2:
        torch.testing.assert_close(loss, RegressionHead()(q, k, None)['loss'])


def test_means_of_both_networks_can_be_compared():
    q = rows(3, 6)
    k = rows(3, 6)
    expected = 2 * distances(sum(units(q).values()), sum(units(k).values()))
    assert_same(CentroidHead('mean')(q, k, None)['loss'], expected, list(q.values()))


def test_centroid_can_include_the_own_view():
    q = rows(3, 6)
    k = rows(3, 6)
    center = sum(units(k).values())
    expected = 2 * sum(distances(queries, center) for queries in units(q).values()) / 3
    assert_same(CentroidHead('all')(q, k, None)['loss'], expected, list(q.values()))


def test_unknown_centroid_is_an_error():
    with raises_code('unknown-centroid'):
        CentroidHead('median')


def test_singular_value_term_equals_its_definition():
    z = torch.randn(2, 20, 5, dtype=torch.float64, requires_grad=True)
    expected = 0.0
    for view in z:
        standard = (view - view.mean(0)) / view.std(0, correction=0)
        values = torch.linalg.svdvals(standard / 20**0.5)
        expected = expected + ((values**2 - 1) ** 2).sum() / 2
    # SingularValueTerm adds 1e-8 to each variance.
    assert_same(SingularValueTerm()(z), expected, [z], tolerance=1e-6)
    collapsed = torch.ones(1, 6, 4, requires_grad=True)
    loss = SingularValueTerm()(collapsed)
    assert loss == 4
    assert torch.autograd.grad(loss, collapsed)[0].isfinite().all()


def test_a_large_batch_fits_into_half_precision():
    # Without the division by sqrt(N), the sums over 70 000 images overflow float16.
    z = torch.randn(1, 70000, 2)
    with torch.autocast('cpu', dtype=torch.float16):
        rounded = SingularValueTerm()(z)
    torch.testing.assert_close(rounded, SingularValueTerm()(z), atol=1e-2, rtol=0)


@pytest.mark.parametrize('per,distinct', [('image', 6), ('view', 18), ('batch', 1)])
def test_brownian_gradient_is_a_unit_direction(per, distinct):
    q = torch.stack(list(rows(3, 6).values())).detach().requires_grad_()
    term = BrownianTerm(per=per)
    (gradient,) = torch.autograd.grad(term(q), q)
    steps = gradient.reshape(-1, 4) * 18
    torch.testing.assert_close(steps.norm(dim=1), torch.ones(18, dtype=torch.float64))
    assert len(steps.mul(1e9).round().unique(dim=0)) == distinct
    (again,) = torch.autograd.grad(term(q), q)
    assert not torch.equal(again, gradient), 'the direction is the same in two steps'


@pytest.mark.parametrize('path', CONFIGS.glob('msbreg_*.py'), ids=lambda path: path.stem)
def test_the_rate_grows_with_batch_and_views(path):
    cfg = load_config(str(path))
    base = next(rate for part, rate in BASE_LR.items() if f'_{part}_' in path.name)
    views = len(cfg.train_dataloader.dataset.views)
    rate = views * base * cfg.total_batch_size / 256
    assert cfg.optim_wrapper.optimizer.lr == pytest.approx(rate)
    assert cfg.optim_wrapper.optimizer.weight_decay == 1e-5
    assert (cfg.param_scheduler[0].start, cfg.param_scheduler[0].end) == (1e-6, 10)
    assert cfg.auto_scale_lr.base_batch_size == cfg.total_batch_size
