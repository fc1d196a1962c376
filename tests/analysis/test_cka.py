"""CKA equals a direct computation in double precision, and has known properties."""

from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision
from harness.errors import raises_code

from mmairl.analysis.cka import MinibatchCKA, network_cka, stage_cka, unbiased_hsic

STAGES = ['layer1', 'layer2', 'layer3', 'layer4']


def dense_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Return CKA by Kornblith et al.'s formula for feature matrices, computed over all images at once."""
    x = x - x.mean(0)
    y = y - y.mean(0)
    norm = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return np.linalg.norm(y.T @ x) ** 2 / norm


def looped_hsic(first: np.ndarray, second: np.ndarray) -> float:
    """Return Song et al.'s unbiased estimate of HSIC by its definition, with means over tuples of different images."""
    images = range(len(first))
    same = [first[i, j] * second[i, j] for i, j in permutations(images, 2)]
    one_shared = [first[i, j] * second[i, k] for i, j, k in permutations(images, 3)]
    none_shared = [first[i, j] * second[k, m] for i, j, k, m in permutations(images, 4)]
    return np.mean(same) - 2 * np.mean(one_shared) + np.mean(none_shared)


def test_unbiased_hsic_equals_loops_over_images():
    x, y = np.random.default_rng(0).normal(size=(2, 7, 3))
    first = x @ x.T
    second = y @ y.T
    hsic = unbiased_hsic(torch.tensor(first), torch.tensor(second)).item()
    assert hsic == pytest.approx(looped_hsic(first, second), rel=1e-10)


def test_cka_ignores_rotation_scale_and_shift():
    x = torch.randn(60, 7) + 3
    rotation, _ = torch.linalg.qr(torch.randn(7, 7))
    similarity = MinibatchCKA()
    for part in x.split(20):
        constant = torch.ones(20, 3)
        similarity.update([part, constant], [part @ rotation * 3 + 5])
    same, of_constant = similarity.value().flatten().tolist()
    assert same == pytest.approx(1, abs=1e-5)
    assert np.isnan(of_constant)


def test_cka_without_large_batches_raises():
    similarity = MinibatchCKA()
    three_images = [torch.randn(3, 7)]
    similarity.update(three_images, three_images)
    with raises_code('small-batch'):
        similarity.value()


def test_cka_of_independent_noise_is_near_zero():
    similarity = MinibatchCKA()
    biased = []
    for _ in range(30):
        a, b = torch.randn(2, 64, 512)
        similarity.update([a], [b])
        biased.append(dense_cka(a.double().numpy(), b.double().numpy()))
    assert abs(similarity.value().item()) < 0.02
    assert np.mean(biased) > 0.7


@pytest.fixture(scope='module')
def networks() -> list[torch.nn.Module]:
    return [torchvision.models.resnet18(num_classes=8).eval() for _ in range(2)]


@pytest.fixture(scope='module')
def batches() -> list[torch.Tensor]:
    return list(torch.randn(3, 8, 3, 32, 32))


@torch.no_grad()
def stage_features(network: torch.nn.Module, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the features after each stage of torchvision's ResNet."""
    x = network.maxpool(network.relu(network.bn1(network.conv1(images))))
    features = {}
    for stage in STAGES:
        x = features[stage] = getattr(network, stage)(x)
    return features


def test_stage_cka_compares_the_same_images(networks, batches):
    values, rows, columns = stage_cka(*networks, batches)
    assert rows == columns == [*STAGES, 'pooled']
    expected = MinibatchCKA()
    for images in batches:
        first, second = (stage_features(network, images) for network in networks)
        expected.update([first['layer2']], [second['layer4']])
    assert values[1, 3].item() == pytest.approx(expected.value().item(), abs=1e-6)


def test_cka_of_a_network_with_itself_is_one(networks, batches):
    similarity, _, _ = stage_cka(networks[0], networks[0], batches)
    assert similarity.diagonal().tolist() == pytest.approx([1] * 5)
    torch.testing.assert_close(similarity, similarity.T)
    assert not networks[0].layer1[-1]._forward_hooks


def test_network_cka_compares_all_pairs_at_a_stage(networks, batches):
    by_stage, _, _ = stage_cka(*networks, batches)
    many = network_cka([*networks, networks[0]], batches, stage='layer3')
    assert many.shape == (3, 3)
    assert many[0, 2].item() == pytest.approx(1)
    assert many[0, 1].item() == pytest.approx(by_stage[2, 2].item(), abs=1e-6)


def test_unknown_stage_raises(networks, batches):
    with raises_code('unknown-stage'):
        network_cka(networks, batches, stage='layer9')
