"""Measures in float64 against loops of their definitions or closed forms, and over networks of known quality."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mmairl.analysis import measures as m
from mmairl.models.spectrum import rankme

IMAGES, CLASSES, WIDTH = 600, 6, 24
STEPS = (0, 0.3, 0.6, 1)  # from random to trained


def cloud(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Return points whose directions have different deviations."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * torch.linspace(2, 0.1, width, dtype=torch.float64) + 0.3


def test_moments_equal_spectra_of_all_rows():
    x = cloud(300, 20)
    moments = m.Moments()
    for batch in x.split(77):
        moments.update(batch)
    values = np.linalg.svd(x.numpy(), compute_uv=False)
    share = values / values.sum()
    assert moments.rankme() == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)), rel=1e-9)
    assert moments.rankme() == pytest.approx(rankme(x), rel=1e-9)
    expected = np.linalg.eigvalsh(np.cov(x.numpy().T, bias=True))[::-1]
    np.testing.assert_allclose(moments.eigenvalues().numpy(), expected, rtol=1e-9)


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
    lidar = m.Lidar()
    for view in views:
        lidar.update(view)
    means = [sum(view[i] for view in views) / q for i in range(n)]
    whole = sum(means) / n
    between = sum(torch.outer(mean - whole, mean - whole) for mean in means) / n
    within = sum(torch.outer(view[i] - means[i], view[i] - means[i]) for view in views for i in range(n)) / (n * q)
    values, vectors = np.linalg.eigh((within + delta * torch.eye(d)).numpy())
    root = vectors @ np.diag(values**-0.5) @ vectors.T
    discriminants = np.linalg.eigvalsh(root @ between.numpy() @ root)
    share = discriminants / discriminants.sum()
    assert lidar.value(delta) == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)), rel=1e-8)


def test_goodness_is_higher_for_better_values():
    alpha = m.MEASURES['alpha-ReQ']
    assert alpha.goodness(1.2) == alpha.goodness(0.8) == pytest.approx(-0.2)
    assert m.MEASURES['uniformity'].goodness(-3.0) == 3
    assert m.MEASURES['RankMe'].goodness(math.nan) == -math.inf


class DrawnImages:
    """Images whose features are drawn; the second view of an image is another image."""

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


@pytest.mark.parametrize('count, kept', [(50, 20), (13, 13)])
def test_spectra_use_all_images_and_the_rest_a_few(monkeypatch, count, kept):
    monkeypatch.setattr(m, 'Images', DrawnImages)
    monkeypatch.setattr(m, 'KEPT', 20)
    monkeypatch.setattr(m, 'VIEWED', 16)
    monkeypatch.setattr(m, 'invariance', lambda embed, images, strengths: {'hue': [0.25, 0.75]})
    sample = m.sample_features(torch.nn.Identity(), None, count=count)
    assert torch.equal(sample.features, cloud(count, 6)[:kept])
    assert sample.moments.count == count and len(sample.views[0]) == min(count, 16)
    assert sample.lidar.views == m.VIEWS and sample.kept == {'hue': 0.5}


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


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def constructed_networks() -> dict[str, Callable[[int], torch.Tensor]]:
    """Return networks as functions from a view to its features, of known quality.

    A random network has three directions that the views change; with training they give way to the image's kind and to
    the image itself. Others are collapsed, have one dead dimension, or are rich but useless.
    """
    kind, own = draw(0, CLASSES, WIDTH)[torch.arange(IMAGES) % CLASSES], draw(1, IMAGES, WIDTH)

    def trained(part: float, alive: torch.Tensor | float = 1.0) -> Callable[[int], torch.Tensor]:
        lasting, few = draw(3, IMAGES, 3), draw(2, 3, WIDTH)

        def features(view: int) -> torch.Tensor:
            random = (lasting + draw(10 + view, IMAGES, 3)) @ few
            noise = 0.3 * draw(30 + view, IMAGES, WIDTH)
            return alive * (part * (kind + 0.7 * own) + (1 - part) * random + noise)

        return features

    return {
        **{f'trained to {part:g}': trained(part) for part in STEPS},
        'collapsed': lambda view: 1 + 1e-4 * draw(10 + view, IMAGES, WIDTH),
        'one dead': trained(1, (torch.arange(WIDTH) > 0).double()),
        'useless': lambda view: own + 0.1 * draw(10 + view, IMAGES, WIDTH),
    }


def sample_of(network: Callable[[int], torch.Tensor]) -> m.Sample:
    moments, lidar = m.Moments(), m.Lidar()
    moments.update(network(0))
    for view in range(1, 11):
        lidar.update(network(view))
    return m.Sample(network(0).float(), moments, lidar, (network(1).float(), network(2).float()), {})


def right_measures(networks: dict[str, dict[str, float]], table: dict[str, m.Measure]) -> dict[str, set[str]]:
    """Return which measures order constructed networks as their quality does, by question."""
    right = {'random to trained': set(), 'not the collapsed one': set(), 'not the useless one': set()}
    for measure in networks['collapsed']:
        goodness = {name: table[measure].goodness(values[measure]) for name, values in networks.items()}
        steps = [goodness[f'trained to {part:g}'] for part in STEPS]
        if steps == sorted(set(steps)):
            right['random to trained'].add(measure)
        if goodness['collapsed'] < steps[-1]:
            right['not the collapsed one'].add(measure)
        if goodness['useless'] < steps[-1]:
            right['not the useless one'].add(measure)
        assert abs(goodness['one dead'] - steps[-1]) <= 0.4 * abs(steps[-1]), f'{measure}: one dead dimension'
    return right


def test_measures_order_constructed_networks():
    networks = {name: m.measures_of(sample_of(network)) for name, network in constructed_networks().items()}
    assert right_measures(networks, m.MEASURES) == {
        'random to trained': {'RankMe', 'alignment'},
        'not the collapsed one': {'RankMe', 'uniformity', 'alpha-ReQ'},
        'not the useless one': {'alpha-ReQ'},
    }
