"""Compare measures in float64 with loops over their definitions, or with closed forms."""

import json
import math

import numpy as np
import pytest
import torch

from mmairl.analysis import measures as m


def cloud(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return random points whose standard deviation decreases from dimension to dimension."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * torch.linspace(2, 0.1, width, dtype=torch.float64) + 0.3


def test_alpha_req_is_the_slope_of_logarithms():
    eigenvalues = torch.arange(1, 61, dtype=torch.float64) ** -1.7
    assert m.alpha_req(eigenvalues) == pytest.approx(1.7, rel=1e-12)
    eigenvalues = torch.linspace(3, 0.2, 40, dtype=torch.float64)
    slope, _ = np.polyfit(np.log(np.arange(5, 41)), np.log(eigenvalues[4:].numpy()), 1)
    assert m.alpha_req(eigenvalues) == pytest.approx(-slope, rel=1e-9)
    assert m.alpha_req(torch.tensor([1.0] * 7 + [0.0] * 20)) == math.inf


def test_lidar_is_the_rank_of_discriminants():
    n, q, d, delta = 12, 5, 6, 1e-4
    views = [cloud(n, d) + 0.2 * cloud(n, d, seed + 1) for seed in range(q)]
    means = [sum(view[i] for view in views) / q for i in range(n)]
    whole = sum(means) / n
    between = sum(torch.outer(mean - whole, mean - whole) for mean in means) / n
    deviations = [view[i] - means[i] for view in views for i in range(n)]
    within = sum(torch.outer(row, row) for row in deviations) / (n * q)
    values, vectors = np.linalg.eigh((within + delta * torch.eye(d)).numpy())
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    discriminants = np.linalg.eigvalsh(root @ between.numpy() @ root)
    share = discriminants / discriminants.sum()
    expected = math.exp(-sum(p * math.log(p) for p in share))
    assert m.lidar(torch.stack(views), delta) == pytest.approx(expected, rel=1e-8)


class DrawnImages:
    """Replace `Images`, the images of an analysis, with random features.

    The second view of each image has the features of another image.
    """

    def __init__(self, cfg, number, part):
        self.rows = cloud(number, 6)

    def raw(self):
        return self.rows.split(8)

    def first(self, count):
        return self.rows[:count]

    def views(self):
        return zip(self.rows.split(8), self.rows.flip(0).split(8))

    def embed(self, network, batch):
        return network(batch)


def test_spectra_use_all_images_and_views_a_few(monkeypatch):
    monkeypatch.setattr(m, 'Images', DrawnImages)
    monkeypatch.setattr(m, 'VIEWED', 16)
    monkeypatch.setattr(m, 'invariance', lambda embed, images, strengths: {'hue': [0.25, 0.75]})
    sample = m.sample_features(torch.nn.Identity(), None, count=50)
    assert torch.equal(sample.features, cloud(50, 6))
    assert sample.views.shape == (m.VIEWS, 16, 6)
    assert sample.kept == {'hue': 0.5}


@pytest.mark.parametrize('limit', [10, 1000])
def test_uniformity_uses_a_limited_number_of_images(monkeypatch, limit):
    monkeypatch.setattr(m, 'KEPT', limit)
    x = cloud(60, 20)
    values = m.measures_of(m.Sample(x, torch.stack([x, x]), {}))
    assert values['uniformity'] == m.uniformity(x[:limit])
    assert values['alignment'] == pytest.approx(0)


def test_non_finite_features_have_no_measures(monkeypatch):
    monkeypatch.setattr(m, 'Images', DrawnImages)
    values = m.measure_network(lambda x: x / 0, None, count=20)
    assert values.keys() == m.MEASURES.keys() and all(map(math.isnan, values.values()))


def test_training_loss_is_of_the_last_tenth(tmp_path):
    (tmp_path / 'a/vis_data').mkdir(parents=True)
    lines = [json.dumps(dict(step=step, loss=100.0 - step)) for step in range(1, 101)]
    (tmp_path / 'a/vis_data/scalars.json').write_text('\n'.join(lines))
    assert m.training_loss(tmp_path) == pytest.approx(np.mean(range(10)))
    assert m.training_loss(tmp_path, until=50) == pytest.approx(np.mean(range(50, 55)))
    assert math.isnan(m.training_loss(tmp_path / 'a'))
