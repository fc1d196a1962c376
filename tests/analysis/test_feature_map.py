"""Neighbors, near-duplicates, outliers and groups against plain loops."""

import numpy as np
import pytest
import torch

from mmairl.analysis.feature_map import distance_limits, find_clusters, find_outstanding, linked_groups, nearest_cells


@pytest.fixture
def drawn() -> tuple[torch.Tensor, np.ndarray]:
    """Return features with two copies of row 70 and an outlier (row 33), and their cosine distances by a loop."""
    x = torch.randn(90, 6, generator=torch.Generator().manual_seed(3)).abs() + torch.tensor([3.0, 0, 0, 0, 0, 0])
    x[7] = x[70] * 2
    x[50] = x[70]
    x[33] = -x[33]
    unit = (x.double() / x.double().norm(dim=1, keepdim=True)).numpy()
    distance = np.array([[1 - sum(a * b for a, b in zip(one, two)) for two in unit] for one in unit])
    return x, distance


def least_of(distance: np.ndarray) -> list[float]:
    return [min(np.delete(row, number)) for number, row in enumerate(distance)]


def test_distance_limits_are_fences_of_logarithms(drawn):
    x, distance = drawn
    logs = sorted(np.log([value for value in least_of(distance) if value > 1e-6]))
    first, third = np.percentile(logs, [25, 75])
    outstanding = find_outstanding(x, nearest_cells(x[:, None], 1)[0][:, 0])
    assert outstanding.near == pytest.approx(np.exp(first - 1.5 * (third - first)), rel=1e-3)
    assert outstanding.far == pytest.approx(np.exp(third + 1.5 * (third - first)), rel=1e-3)


def test_few_distances_have_no_limits():
    assert distance_limits(torch.tensor([0.0, 0.5])) == (1e-6, float('inf'))


def test_duplicates_are_connected_near_images(drawn):
    x, distance = drawn
    outstanding = find_outstanding(x, nearest_cells(x[:, None], 1)[0][:, 0])
    group = np.arange(90)
    for one, two in zip(*np.nonzero(np.triu(distance <= outstanding.near, k=1))):
        group[group == group[two]] = group[one]
    expected = [np.flatnonzero(group == number).tolist() for number in range(90) if (group == number).sum() > 1]
    assert sorted(images for images, _ in outstanding.duplicates) == sorted(expected)
    assert any({7, 50, 70} <= {*images} for images, _ in outstanding.duplicates)


def test_outliers_are_far_from_their_nearest(drawn):
    x, distance = drawn
    outstanding = find_outstanding(x, nearest_cells(x[:, None], 1)[0][:, 0])
    least = least_of(distance)
    far = [image for image in range(90) if least[image] > outstanding.far]
    assert [image for image, _ in outstanding.outliers] == sorted(far, key=lambda image: -least[image])
    assert outstanding.outliers[0][0] == 33


def test_nearest_cells_are_in_other_images():
    x = torch.randn(7, 6, 5, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(x.double(), dim=2).numpy()
    distance, position = (part.view(7, 6, 3).tolist() for part in nearest_cells(x, 3))
    for i, c in np.ndindex(7, 6):
        best = [max((unit[i, c] @ unit[j, d], 6 * j + d) for d in range(6)) for j in range(7) if j != i]
        expected = sorted(best, reverse=True)[:3]
        assert position[i][c] == [place for _, place in expected]
        assert np.allclose(distance[i][c], [1 - value for value, _ in expected], atol=1e-6)


def test_copies_are_one_group_of_any_size():
    x = torch.cat([torch.eye(4).repeat(150, 1), torch.ones(1, 4)])
    groups = linked_groups(x, 0.01)
    assert sorted(rows.tolist() for rows in groups) == [[*range(first, 600, 4)] for first in range(4)]


def test_no_image_is_its_own_neighbor():
    x = torch.cat([torch.eye(4).repeat(150, 1), torch.ones(1, 4)])
    assert not (nearest_cells(x[:, None], 12)[1] == torch.arange(601)[:, None]).any()


def test_groups_have_their_central_images():
    generator = torch.Generator().manual_seed(0)
    middles = 10 * torch.eye(4, 8).repeat_interleave(30, 0)
    x = middles + torch.randn(120, 8, generator=generator) * torch.linspace(0.2, 2, 30).repeat(4)[:, None]
    groups = find_clusters(x, 0)
    assert sorted(group.members.tolist() for group in groups) == [[*range(30 * n, 30 * n + 30)] for n in range(4)]
    assert all(np.mean([image % 30 for image in group.central]) < 10 for group in groups)
