"""Compare the measures of extra_measures.py with loops or closed forms, and apply them to networks of known quality."""

import math
from collections.abc import Callable

import pytest
import torch
from analysis.test_measures import cloud

from mmairl.analysis.measures import Sample, measures_of
from mmairl.models.heads import unit
from mmairl.registry import MODELS
from projects.label_free import extra_measures as m

IMAGES, CLASSES, WIDTH = 600, 6, 24
STEPS = (0, 0.3, 0.6, 1)  # values of `part` in `trained`, from a random to a fully trained network


def test_learnability_asks_the_images_before(monkeypatch):
    monkeypatch.setattr(m, 'BLOCK', 7)
    labels = torch.arange(40) % 3
    x = cloud(40, 3) + labels[:, None]
    right = 0
    for i in range(1, 40):
        nearest = min(range(i), key=lambda j: float((x[i] - x[j]).norm()))
        right += int(labels[nearest] == labels[i])
    assert m.learnability(x, labels) == pytest.approx(100 * right / 39)


def test_two_nn_is_a_slope_through_zero(monkeypatch):
    monkeypatch.setattr(m, 'BLOCK', 30)
    x = cloud(100, 4)
    ratios = []
    for i in range(100):
        one, two = sorted(float((x[i] - x[j]).norm()) for j in range(100) if j != i)[:2]
        ratios.append(math.log(two / one))
    smallest = sorted(ratios)[:90]
    lines = [-math.log(1 - (i + 1) / 100) for i in range(90)]
    expected = sum(a * b for a, b in zip(smallest, lines)) / sum(a * a for a in smallest)
    assert m.two_nn(x) == pytest.approx(expected, rel=1e-9)


def test_two_nn_finds_a_planted_dimension():
    basis = torch.linalg.qr(torch.randn(9, 9))[0][:3]
    flat = torch.rand(2000, 3, generator=torch.Generator().manual_seed(0)) @ basis
    assert m.two_nn(flat) == pytest.approx(3, rel=0.1)


def test_two_nn_of_copies_is_zero():
    x = cloud(100, 4)
    assert m.two_nn(torch.ones(50, 4)) == m.two_nn(torch.cat([x, x])) == 0


def test_epps_pulley_is_the_closed_form():
    x = torch.rand(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z = ((x - x.mean()) / x.std(correction=0)).flatten().tolist()
    n = len(z)
    pairs = sum(math.exp(-((a - b) ** 2) / 2) for a in z for b in z) / n**2
    expected = pairs - math.sqrt(2) / n * sum(math.exp(-(a**2) / 4) for a in z) + 1 / math.sqrt(3)
    assert m.epps_pulley(x, slices=3) == pytest.approx(expected, rel=1e-6)
    normal = torch.randn(4000, 8, generator=torch.Generator().manual_seed(0))
    assert m.epps_pulley(normal) < 0.001 < m.epps_pulley(normal * torch.tensor([3.0] + [0.3] * 7))


def test_neighbors_vote_without_the_image_itself(monkeypatch):
    monkeypatch.setattr(m, 'NEIGHBORS', 3)
    x, view, labels = cloud(30, 4), cloud(30, 4) + 0.4 * cloud(30, 4, 1), torch.arange(30) % 2
    right = 0
    for i in range(30):
        similarity = {
            j: float(unit(view[i : i + 1]) @ unit(x[j : j + 1]).T) for j in range(30) if j != i
        }
        votes = [0.0, 0.0]
        for j in sorted(similarity, key=similarity.get)[-3:]:
            votes[labels[j]] += math.exp(similarity[j] / 0.07)
        right += int((votes[1] > votes[0]) == bool(labels[i]))
    assert m.knn_on_clusters(x, view, labels) == pytest.approx(100 * right / 30)


def test_collapsed_features_have_no_clusters():
    x = torch.ones(60, 4)
    labels = m.clusters(x)
    assert math.isnan(m.learnability(x, labels)) and math.isnan(m.knn_on_clusters(x, x, labels))
    assert m.goodness('cluster learnability', math.nan) == -math.inf


def test_clid_is_relative_to_the_other_networks():
    values = dict(a=(80, 3), b=(90, 5))
    networks = {
        name: {'cluster learnability': cl, 'intrinsic dimension': d}
        for name, (cl, d) in values.items()
    }
    assert [numbers['CLID'] for numbers in m.with_clid(networks).values()] == pytest.approx([-2, 2])


def test_every_rewarded_name_is_a_measure():
    assert {name for names in m.REWARDED.values() for name in names} <= m.MEASURES.keys()
    assert MODELS.get('ContrastiveHead').__name__ in m.REWARDED


def test_goodness_is_higher_for_better_values():
    assert m.goodness('alpha-ReQ', 1.2) == m.goodness('alpha-ReQ', 0.8) == pytest.approx(-0.2)
    assert m.goodness('uniformity', -3.0) == 3
    assert m.goodness('RankMe', math.nan) == -math.inf


def draw(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def constructed_networks() -> dict[str, Callable[[int], torch.Tensor]]:
    """Return networks of known quality. Each is a function from the number of a view to the features of all images.

    `trained(0)` is a random network, whose features span three dimensions and differ between the views of an image. The larger
    `part` is, the more the features depend on the class (`kind`) and the identity (`own`) of the image. The features of
    'collapsed' are nearly constant, those of 'one dead' have one constant dimension, and those of 'useless' depend only on the
    identity of the image.
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


def sample_of(network: Callable[[int], torch.Tensor]) -> Sample:
    views = torch.stack([network(view) for view in [*range(3, 11), 1, 2]])
    return Sample(network(0).float(), views.float(), {})


def right_measures(networks: dict[str, dict[str, float]]) -> dict[str, set[str]]:
    """Return, for each comparison of networks, the measures that prefer the better network."""
    right = {
        'random to trained': set(),
        'not the collapsed one': set(),
        'not the useless one': set(),
    }
    for measure in networks['collapsed']:
        goodness = {name: m.goodness(measure, values[measure]) for name, values in networks.items()}
        steps = [goodness[f'trained to {part:g}'] for part in STEPS]
        if steps == sorted(set(steps)):
            right['random to trained'].add(measure)
        if goodness['collapsed'] < steps[-1]:
            right['not the collapsed one'].add(measure)
        if goodness['useless'] < steps[-1]:
            right['not the useless one'].add(measure)
        assert abs(goodness['one dead'] - steps[-1]) <= 0.4 * abs(steps[-1]), (
            f'one dead dimension changes the goodness of {measure} by more than 40 %'
        )
    return right


def test_extra_measures_order_constructed_networks():
    networks = {}
    for name, network in constructed_networks().items():
        sample = sample_of(network)
        networks[name] = {**measures_of(sample), **m.extra_measures_of(sample)}
    best = {'CLID', 'k-NN on clusters'}
    assert right_measures(m.with_clid(networks)) == {
        'random to trained': {*best, 'RankMe', 'intrinsic dimension', 'Epps-Pulley', 'alignment'},
        'not the collapsed one': {
            *best,
            'RankMe',
            'uniformity',
            'cluster learnability',
            'alpha-ReQ',
        },
        'not the useless one': {*best, 'cluster learnability', 'alpha-ReQ'},
    }
