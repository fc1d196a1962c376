"""Compare each measure of features with its closed form or with an independent computation."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from mmairl.analysis.geometry import alignment, invariance, spectrum, uniformity
from mmairl.models.spectrum import rankme, spread


def sphere(count: int, width: int) -> torch.Tensor:
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(x)


@pytest.mark.parametrize('sign, distance', [(5, 0), (-1, 4)])
def test_alignment_is_a_squared_distance(sign, distance):
    x = torch.tensor([[2.0, 0.0], [0.0, 3.0]])
    assert alignment(x, sign * x) == pytest.approx(distance)
    assert alignment(x, sign * x.flip(0)) == pytest.approx(2)


def test_uniformity_is_the_mean_over_different_pairs(monkeypatch):
    x = sphere(30, 5)
    potentials = []
    for a, b in permutations(x.double(), 2):
        potentials.append(math.exp(-2 * (a - b).square().sum()))
    monkeypatch.setattr('mmairl.analysis.geometry.BLOCK', 7)
    assert uniformity(x) == pytest.approx(math.log(np.mean(potentials)), rel=1e-5)


def test_uniformity_of_collapsed_features_is_zero():
    assert uniformity(torch.ones(10, 4)) == pytest.approx(0)


def test_rankme_counts_the_dimensions_in_use():
    basis, _ = torch.linalg.qr(torch.randn(64, 10))
    rotation, _ = torch.linalg.qr(torch.randn(10, 10))
    assert rankme(basis @ rotation) == pytest.approx(10, rel=1e-4)
    assert rankme(torch.ones(50, 8)) == pytest.approx(1, abs=1e-3)


def test_rankme_is_the_entropy_of_singular_values():
    x = torch.randn(200, 30)
    values = np.linalg.svd(x.double().numpy(), compute_uv=False)
    share = values / values.sum()
    assert rankme(x) == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)


def test_spread_is_one_on_the_sphere():
    assert spread(sphere(4000, 32)) == pytest.approx(1, abs=0.02)
    assert spread(torch.ones(10, 8)) == pytest.approx(0, abs=1e-6)


def test_spectrum_is_that_of_the_covariance():
    x = sphere(300, 12)
    eigenvalues = np.linalg.eigvalsh(np.cov(x.double().numpy().T))[::-1]
    np.testing.assert_allclose(spectrum(x), eigenvalues / eigenvalues.sum(), rtol=1e-6)


def test_collapsed_network_has_no_invariance():
    images = torch.rand(12, 3, 16, 16)
    similarities = invariance(lambda batch: torch.full((len(batch), 64), 0.3), images)
    assert all(map(math.isnan, similarities.values()))


def test_invariance_is_one_for_an_invisible_change():
    images = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    # These features are the means of rows of pixels, which a horizontal flip does not change.
    similarities = invariance(lambda x: x.mean(dim=3).flatten(1), images)
    assert similarities.pop('flip') == pytest.approx(1, abs=1e-6)
    assert max(similarities.values()) < 0.999
    assert similarities['rotation'] < 0.5
