"""CKA is unbiased, and equals plain formulas."""

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from torch import nn

from mmairl.analysis.cka import cka, stage_cka


def grams(*features: torch.Tensor) -> torch.Tensor:
    centered = [x - x.mean(0) for x in features]
    return torch.stack([x @ x.T for x in centered])


def plain_hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    n = len(k)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += k[i, j] * l[i, j]
    k, l = (m - np.diag(np.diag(m)) for m in (k, l))  # noqa: E741
    ones = np.ones(n)
    extra = (ones @ k @ ones) * (ones @ l @ ones) / ((n - 1) * (n - 2))
    return (total + extra - 2 / (n - 2) * ones @ k @ l @ ones) / (n * (n - 3))


def test_cka_equals_plain_loops_over_batches():
    torch.manual_seed(0)
    batches = [(torch.randn(9, 5).double(), torch.randn(9, 7).double()) for _ in range(3)]
    found = cka((grams(a), grams(b)) for a, b in batches).item()
    parts = [[grams(x)[0].numpy() for x in pair] for pair in batches]
    cross = sum(plain_hsic(a, b) for a, b in parts)
    own = sum(plain_hsic(a, a) for a, _ in parts) * sum(plain_hsic(b, b) for _, b in parts)
    assert found == pytest.approx(cross / np.sqrt(own))


def test_independent_features_have_a_cka_of_zero():
    torch.manual_seed(0)
    pairs = ((grams(torch.randn(16, 500)), grams(torch.randn(16, 500))) for _ in range(300))
    assert abs(cka(pairs).item()) < 0.03, 'the biased estimate would be near 1'


def test_rotation_and_scale_do_not_matter():
    torch.manual_seed(0)
    x = torch.randn(20, 6).double()
    rotation = torch.linalg.qr(torch.randn(6, 6).double()).Q
    assert cka([(grams(x), grams(3 * x @ rotation))]).item() == pytest.approx(1)
    constant = torch.ones(20, 6).double()
    assert cka([(grams(x), grams(constant))]).isnan().all()


class Network(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU())

    def forward(self, images):
        return self.layer2(self.layer1(images))


def test_equal_stages_have_a_cka_of_one():
    first, second = Network(0), Network(1)
    batches = torch.randn(3, 8, 3, 9, 9)
    values, rows, columns = stage_cka(first, second, batches)
    assert rows == columns == ['layer1', 'layer2', 'pooled'] and values.shape == (3, 3)
    own, _, _ = stage_cka(first, first, batches)
    assert torch.allclose(own.diagonal(), torch.ones(3).double()) and values.max() < 1


def test_small_batches_are_errors_and_stages_are_not_required():
    with raises_code('small-batch'):
        stage_cka(Network(0), Network(0), torch.randn(1, 3, 3, 9, 9))
    values, rows, columns = stage_cka(nn.Flatten(), Network(0), torch.randn(1, 8, 3, 9, 9))
    assert rows == ['pooled'] and values.shape == (1, len(columns))
