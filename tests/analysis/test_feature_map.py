"""The analysis behind the map of images."""

import numpy as np
import torch
from harness.errors import raises_code
from sklearn.metrics import adjusted_rand_score

from mmairl.analysis.feature_map import map_features


def clusters(spread: float = 0.1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.eye(8)[:4].repeat(15, 1) + spread * torch.randn(60, 8, generator=generator)


def test_outliers_and_groups_are_found():
    x = clusters()
    x[7] = -x[7]
    found = map_features(x)
    assert found.outliers[0] == 7
    labels = np.empty(60, int)
    for number, members in enumerate(found.groups):
        labels[members] = number
    assert adjusted_rand_score(np.arange(60) % 4, labels) > 0.9
    assert found.places.shape == (60, 2) and found.places.min() == 0 and found.places.max() == 1


def test_features_without_a_map_are_errors():
    for x, code in ((torch.rand(2, 4), 'too-few-images'), (torch.ones(9, 4), 'collapsed-features')):
        with raises_code(code):
            map_features(x)
    with raises_code('collapsed-features'):
        map_features(torch.full((9, 4), torch.nan))
