"""The analysis behind the map of images."""

import numpy as np
import torch
from harness.errors import raises_code
from sklearn.metrics import adjusted_rand_score

from mmairl.analysis.feature_map import NEAR, distance_limits, linked, map_features, nearest_image


def clusters(spread: float = 0.1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.eye(8)[:4].repeat(15, 1) + spread * torch.randn(60, 8, generator=generator)


def test_copies_outliers_and_groups_are_found():
    x = clusters()
    x[40] = 3 * x[0]
    x[7] = -x[7]
    found = map_features(x)
    assert [0, 40] in found.duplicates and found.outliers[0] == 7
    labels = np.empty(60, int)
    for number, members in enumerate(found.groups):
        labels[members] = number
    assert adjusted_rand_score(np.arange(60) % 4, labels) > 0.9
    assert found.places.shape == (60, 2) and found.places.min() == 0 and found.places.max() == 1


def test_nearest_image_equals_a_plain_loop():
    x = torch.nn.functional.normalize(clusters())
    distance, index = nearest_image(x)
    plain = 1 - x @ x.T + 9 * torch.eye(60)
    torch.testing.assert_close(distance, plain.amin(1))
    assert torch.equal(index, plain.argmin(1))


def test_near_duplicates_have_an_absolute_limit():
    assert distance_limits(torch.full((50,), 0.5))[0] == NEAR
    assert distance_limits(torch.zeros(50)) == (1e-6, float('inf'))


def test_links_form_groups():
    nearest = torch.tensor([1, 0, 1, 4, 3, 0])
    is_near = torch.tensor([True, True, True, True, False, False])
    assert linked(is_near, nearest) == [[0, 1, 2], [3, 4]]


def test_features_without_a_map_are_errors():
    for x, code in ((torch.rand(2, 4), 'too-few-images'), (torch.ones(9, 4), 'collapsed-features')):
        with raises_code(code):
            map_features(x)
    with raises_code('collapsed-features'):
        map_features(torch.full((9, 4), torch.nan))
