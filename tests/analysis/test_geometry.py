"""Each figure against its closed form or an independent loop."""

import math

import numpy as np
import pytest
import torch

from mmairl.analysis.geometry import alignment, invariance, spectrum, uniformity
from mmairl.models.spectrum import rankme, spread


def sphere(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(torch.randn(count, width, generator=torch.Generator().manual_seed(seed)))


def test_alignment_is_the_squared_distance_of_directions():
    x = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    assert alignment(x, x * 5) == 0
    assert alignment(x, x.flip(0)) == pytest.approx(2)
    assert alignment(x, -x) == pytest.approx(4)


def test_uniformity_is_the_mean_over_different_pairs(monkeypatch):
    x = sphere(30, 5).double()
    total = [math.exp(-2 * float((a - b).square().sum())) for i, a in enumerate(x) for j, b in enumerate(x) if i != j]
    monkeypatch.setattr('mmairl.analysis.geometry.BLOCK', 7)
    assert uniformity(x.float()) == pytest.approx(math.log(sum(total) / len(total)), rel=1e-5)
    assert uniformity(torch.ones(10, 4)) == pytest.approx(0)


def test_rankme_counts_the_dimensions_in_use():
    basis = torch.linalg.qr(torch.randn(64, 64))[0]
    assert rankme(basis[:, :10] @ torch.linalg.qr(torch.randn(10, 10))[0]) == pytest.approx(10, rel=1e-4)
    x = torch.randn(200, 30)
    values = np.linalg.svd(x.double().numpy(), compute_uv=False)
    share = values / values.sum()
    assert rankme(x) == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)
    assert rankme(torch.ones(50, 8)) == pytest.approx(1, abs=1e-3)


def test_spread_is_one_on_the_sphere_and_zero_when_collapsed():
    assert spread(sphere(4000, 32)) == pytest.approx(1, abs=0.02)
    assert spread(torch.ones(10, 8)) == pytest.approx(0, abs=1e-6)


def test_the_spectrum_is_that_of_the_covariance():
    x = sphere(300, 12)
    wanted = np.linalg.eigvalsh(np.cov(x.double().numpy().T))[::-1]
    np.testing.assert_allclose(spectrum(x).numpy(), wanted / wanted.sum(), rtol=1e-6)


def test_a_network_for_which_all_images_are_one_has_no_invariance():
    images = torch.rand(12, 3, 16, 16)
    kept = invariance(lambda batch: torch.full((len(batch), 64), 0.3), images)
    assert all(math.isnan(value) for values in kept.values() for value in values)


def test_a_network_that_cannot_see_a_change_is_invariant_to_it_and_to_no_other():
    images = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    kept = invariance(lambda x: x.mean(dim=3).flatten(1), images)  # columns are averaged away, so is a flip
    assert kept['flip'][-1] == pytest.approx(1, abs=1e-6)
    assert all(values[0] == pytest.approx(1, abs=1e-6) for values in kept.values())
    assert all(values[-1] < 0.999 for name, values in kept.items() if name != 'flip') and kept['rotation'][-1] < 0.5
