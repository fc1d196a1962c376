"""Compare the neighbors, near-duplicates, outliers and groups of `mmairl.analysis.feature_map` with plain loops and known
answers.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from mmairl.analysis.feature_map import (
    Outstanding,
    distance_limits,
    find_clusters,
    find_outstanding,
    linked_groups,
    nearest_cells,
)

COUNT = 90
COPIES = {7, 50, 70}
OUTLIER = 33
REPEATED = torch.cat([torch.eye(4).repeat(150, 1), torch.ones(1, 4)])


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope='module')
def features() -> torch.Tensor:
    x = normal(3, COUNT, 6).abs()
    x[:, 0] += 3
    x[7] = x[70] * 2
    x[50] = x[70]
    x[OUTLIER] *= -1
    return x


@pytest.fixture(scope='module')
def distances(features) -> np.ndarray:
    """Return the cosine distance of each pair of images. The distance of an image to itself is infinite."""
    unit = normalize(features.double()).numpy()
    distances = np.full((COUNT, COUNT), np.inf)
    for i, j in np.ndindex(COUNT, COUNT):
        if i != j:
            distances[i, j] = 1 - sum(unit[i] * unit[j])
    return distances


@pytest.fixture(scope='module')
def outstanding(features) -> Outstanding:
    distance, _ = nearest_cells(features[:, None], 1)
    return find_outstanding(features, distance[:, 0])


def test_distance_limits_are_fences_of_logarithms(outstanding, distances):
    nearest = distances.min(axis=1)
    logs = np.log(nearest[nearest > 1e-6])
    first, third = np.percentile(logs, [25, 75])
    reach = 1.5 * (third - first)
    assert outstanding.near == pytest.approx(np.exp(first - reach), rel=1e-3)
    assert outstanding.far == pytest.approx(np.exp(third + reach), rel=1e-3)


def test_few_distances_have_no_limits():
    assert distance_limits(torch.tensor([0.0, 0.5])) == (1e-6, float('inf'))


def test_duplicates_are_connected_near_images(outstanding, distances):
    group = np.arange(COUNT)
    for i, j in zip(*np.nonzero(distances <= outstanding.near)):
        group[group == group[j]] = group[i]
    members = [np.flatnonzero(group == number).tolist() for number in range(COUNT)]
    expected = [images for images in members if len(images) > 1]
    assert sorted(images for images, _ in outstanding.duplicates) == sorted(expected)
    assert any({*images} >= COPIES for images in expected)


def test_outliers_are_far_from_their_nearest(outstanding, distances):
    nearest = distances.min(axis=1)
    far = np.flatnonzero(nearest > outstanding.far).tolist()
    outliers = [image for image, _ in outstanding.outliers]
    assert outliers == sorted(far, key=lambda image: -nearest[image])
    assert outliers[0] == OUTLIER


def test_nearest_cells_are_in_other_images():
    x = normal(0, 7, 6, 5)
    unit = normalize(x.double(), dim=2).numpy()
    distance, position = (part.view(7, 6, 3).tolist() for part in nearest_cells(x, 3))
    for image, cell in np.ndindex(7, 6):
        similarity = unit @ unit[image, cell]
        similarity[image] = -np.inf
        best = similarity.argmax(axis=1)
        images = similarity.max(axis=1).argsort()[:-4:-1]
        assert position[image][cell] == (6 * images + best[images]).tolist()
        expected = 1 - similarity.max(axis=1)[images]
        np.testing.assert_allclose(distance[image][cell], expected, atol=1e-6)


def test_copies_are_one_group_of_any_size():
    groups = [rows.tolist() for rows in linked_groups(REPEATED, 0.01)]
    assert sorted(groups) == [[*range(first, 600, 4)] for first in range(4)]


def test_no_image_is_its_own_neighbor():
    _, position = nearest_cells(REPEATED[:, None], 12)
    images = torch.arange(len(REPEATED))[:, None]
    assert not (position == images).any()


def test_groups_have_their_central_images():
    centers = 10 * torch.eye(4, 8).repeat_interleave(30, dim=0)
    # The first images of each group have the smallest deviations, so they are the most central.
    reach = torch.linspace(0.2, 2, 30).repeat(4)
    groups = find_clusters(centers + normal(0, 120, 8) * reach[:, None], seed=0)
    members = sorted(group.members.tolist() for group in groups)
    assert members == [[*range(start, start + 30)] for start in (0, 30, 60, 90)]
    for group in groups:
        assert np.mean(np.array(group.central) % 30) < 10
