"""Each measure in float64 against a loop of its definition or its closed form, and over networks whose quality is known."""

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mmairl.analysis import measures as m
from mmairl.models.heads import unit
from mmairl.models.spectrum import rankme


def cloud(count: int, width: int, seed: int = 0) -> torch.Tensor:
    """Points whose directions have different deviations."""
    x = torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * torch.linspace(2, 0.1, width, dtype=torch.float64) + 0.3


def test_spectra_come_of_batches():
    x, scatter = cloud(300, 20), m.Scatter()
    for batch in x.split(77):
        scatter.update(batch)
    values = np.linalg.svd(x.numpy(), compute_uv=False)
    share = values / values.sum()
    assert scatter.rankme() == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)), rel=1e-9)
    assert scatter.rankme() == pytest.approx(rankme(x), rel=1e-9)
    wanted = np.linalg.eigvalsh(np.cov(x.numpy().T, bias=True))[::-1]
    np.testing.assert_allclose(scatter.eigenvalues().numpy(), wanted, rtol=1e-9)


def test_alpha_is_the_slope_of_the_logarithms():
    eigenvalues = torch.arange(1, 61, dtype=torch.float64) ** -1.7
    assert m.decay(eigenvalues) == pytest.approx(1.7, rel=1e-12)
    eigenvalues = torch.linspace(3, 0.2, 40, dtype=torch.float64)
    slope, _ = np.polyfit(np.log(np.arange(5, 41)), np.log(eigenvalues[4:].numpy()), 1)
    assert m.decay(eigenvalues) == pytest.approx(-slope, rel=1e-9)
    assert m.decay(torch.tensor([1.0] * 7 + [0.0] * 20)) == math.inf


def test_lidar_is_the_rank_of_what_tells_images_apart():
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
    found = np.linalg.eigvalsh(root @ between.numpy() @ root)
    share = found / found.sum()
    assert lidar.value(delta) == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)), rel=1e-8)


def test_learnability_asks_the_images_before(monkeypatch):
    monkeypatch.setattr(m, 'BLOCK', 7)
    x, labels = cloud(40, 3), torch.arange(40) % 3
    x += labels[:, None]
    right = 0
    for i in range(1, 40):
        nearest = min(range(i), key=lambda j: float((x[i] - x[j]).norm()))
        right += int(labels[nearest] == labels[i])
    assert m.learnability(x, labels) == pytest.approx(100 * right / 39)


def test_two_nn_is_the_slope_through_zero_and_finds_a_planted_dimension(monkeypatch):
    monkeypatch.setattr(m, 'BLOCK', 30)
    x = cloud(100, 4)
    ratios = []
    for i in range(100):
        one, two = sorted(float((x[i] - x[j]).norm()) for j in range(100) if j != i)[:2]
        ratios.append(math.log(two / one))
    kept = sorted(ratios)[:90]
    lines = [-math.log(1 - (i + 1) / 100) for i in range(90)]
    wanted = sum(a * b for a, b in zip(kept, lines)) / sum(a * a for a in kept)
    assert m.two_nn(x) == pytest.approx(wanted, rel=1e-9)
    flat = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0)) @ torch.linalg.qr(torch.randn(9, 9))[0][:3]
    assert m.two_nn(flat) == pytest.approx(3, rel=0.1)
    assert m.two_nn(torch.ones(50, 4)) == 0
    assert m.two_nn(torch.cat([x, x])) == 0  # every image twice


def test_gaussianity_is_the_closed_form_of_epps_and_pulley():
    x = torch.rand(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = ((x - x.mean()) / x.std(correction=0)).flatten().tolist()
    n = len(z)
    pairs = sum(math.exp(-((a - b) ** 2) / 2) for a in z for b in z) / n**2
    wanted = pairs - math.sqrt(2) / n * sum(math.exp(-(a**2) / 4) for a in z) + 1 / math.sqrt(3)
    assert m.epps_pulley(x, slices=3) == pytest.approx(wanted, rel=1e-6)
    normal = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    assert m.epps_pulley(normal) < 0.001 < m.epps_pulley(normal * torch.tensor([3.0] + [0.3] * 7))


def test_neighbours_vote_for_the_cluster_without_the_image_itself(monkeypatch):
    monkeypatch.setattr(m, 'NEIGHBOURS', 3)
    x, view, labels = cloud(30, 4), cloud(30, 4) + 0.4 * cloud(30, 4, 1), torch.arange(30) % 2
    right = 0
    for i in range(30):
        alike = {j: float(unit(view[i : i + 1]) @ unit(x[j : j + 1]).T) for j in range(30) if j != i}
        votes = [0.0, 0.0]
        for j in sorted(alike, key=alike.get)[-3:]:
            votes[labels[j]] += math.exp(alike[j] / 0.07)
        right += int((votes[1] > votes[0]) == bool(labels[i]))
    assert m.knn_on_clusters(x, view, labels) == pytest.approx(100 * right / 30)


def test_after_a_whole_collapse_there_are_no_clusters_to_be_right_about():
    x = torch.ones(60, 4)
    labels = m.clusters(x)
    assert math.isnan(m.learnability(x, labels)) and math.isnan(m.knn_on_clusters(x, x, labels))
    assert m.two_nn(x) == 0 and m.MEASURES['cluster learnability'].goodness(math.nan) == -math.inf


def test_goodness_and_clid_are_relative():
    assert m.MEASURES['alpha-ReQ'].goodness(1.2) == m.MEASURES['alpha-ReQ'].goodness(0.8) == pytest.approx(-0.2)
    assert m.MEASURES['uniformity'].goodness(-3.0) == 3 and m.MEASURES['RankMe'].goodness(math.nan) == -math.inf
    networks = {
        name: {'cluster learnability': cl, 'intrinsic dimension': d} for name, cl, d in (('a', 80, 3), ('b', 90, 5))
    }
    assert [values['CLID'] for values in m.with_clid(networks).values()] == pytest.approx([-2, 2])


@pytest.mark.parametrize('count, kept', [(50, 20), (13, 13)])
def test_spectra_take_all_images_and_the_rest_only_some_that_are_kept(monkeypatch, count, kept):
    class Images:
        def __init__(self, cfg, number, part):
            self.rows = cloud(number, 6)

        def raw(self):
            return self.rows.split(8)

        def views(self):
            return zip(self.rows.split(8), self.rows.flip(0).split(8))

        def embed(self, network, batch):
            return network(batch)

    seen = {}
    monkeypatch.setattr(m, 'Images', Images)
    monkeypatch.setattr(m, 'KEPT', 20)
    monkeypatch.setattr(m, 'VIEWED', 16)
    monkeypatch.setattr(m, 'invariance', lambda embed, images, strengths: {})
    monkeypatch.setattr(
        m,
        'of_features',
        lambda x, scatter, lidar, first, second: seen.update(x=x, count=scatter.count, views=first) or {},
    )
    m.measures(torch.nn.Identity(), None, count=count)
    assert torch.equal(seen['x'], cloud(count, 6)[:kept])
    assert (seen['count'], len(seen['views'])) == (count, min(count, 16))


def test_the_loss_is_that_of_the_last_tenth_up_to_the_step(tmp_path):
    (tmp_path / 'a/vis_data').mkdir(parents=True)
    lines = [json.dumps(dict(step=step, loss=100.0 - step)) for step in range(1, 101)]
    (tmp_path / 'a/vis_data/scalars.json').write_text('\n'.join(lines))
    assert m.training_loss(tmp_path) == pytest.approx(np.mean(range(10)))
    assert m.training_loss(tmp_path, until=50) == pytest.approx(np.mean(range(50, 55)))
    assert math.isnan(m.training_loss(tmp_path / 'a'))


IMAGES, CLASSES, WIDTH = 600, 6, 24


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def constructed_networks() -> dict[str, Callable[[int], torch.Tensor]]:
    """Networks by the features that they have of a view: random to trained, collapsed, one dimension dead, rich but useless.

    A random one has three directions that the views change; training gives way to the image's kind and to the image itself.
    """
    kind, own = draw(0, CLASSES, WIDTH)[torch.arange(IMAGES) % CLASSES], draw(1, IMAGES, WIDTH)

    def trained(part: float, alive: torch.Tensor | float = 1.0) -> Callable[[int], torch.Tensor]:
        lasting, few = draw(3, IMAGES, 3), draw(2, 3, WIDTH)
        return lambda view: (
            alive
            * (
                part * (kind + 0.7 * own)
                + (1 - part) * (lasting + draw(10 + view, IMAGES, 3)) @ few
                + 0.3 * draw(30 + view, IMAGES, WIDTH)
            )
        )

    return {
        **{f'trained to {part:g}': trained(part) for part in (0, 0.3, 0.6, 1)},
        'collapsed': lambda view: 1 + 1e-4 * draw(10 + view, IMAGES, WIDTH),
        'one dead': trained(1, (torch.arange(WIDTH) > 0).double()),
        'useless': lambda view: own + 0.1 * draw(10 + view, IMAGES, WIDTH),
    }


def test_over_constructed_networks_what_each_measure_gets_right_is_as_the_docs_say():
    measured = {}
    for name, network in constructed_networks().items():
        scatter, lidar = m.Scatter(), m.Lidar()
        scatter.update(network(0))
        for view in range(1, 11):
            lidar.update(network(view))
        measured[name] = m.of_features(network(0).float(), scatter, lidar, network(1).float(), network(2).float())
    right = {'random to trained': set(), 'not the collapsed one': set(), 'not the useless one': set()}
    networks = m.with_clid(measured)
    for measure in networks['collapsed']:
        goodness = {name: m.MEASURES[measure].goodness(values[measure]) for name, values in networks.items()}
        steps = [goodness[f'trained to {part:g}'] for part in (0, 0.3, 0.6, 1)]
        right['random to trained'] |= {measure} if steps == sorted(set(steps)) else set()
        right['not the collapsed one'] |= {measure} if goodness['collapsed'] < steps[-1] else set()
        right['not the useless one'] |= {measure} if goodness['useless'] < steps[-1] else set()
        assert abs(goodness['one dead'] - steps[-1]) <= 0.4 * abs(steps[-1]), measure  # nearly as good, to each
    trusted = {'CLID', 'k-NN on clusters'}
    assert right == {
        'random to trained': {*trusted, 'RankMe', 'intrinsic dimension', 'Epps-Pulley', 'alignment'},
        'not the collapsed one': {*trusted, 'RankMe', 'uniformity', 'cluster learnability', 'alpha-ReQ'},
        'not the useless one': {*trusted, 'cluster learnability', 'alpha-ReQ'},
    }
