"""CKA against dense computations in double precision, and against what is known of it."""

from itertools import permutations

import numpy as np
import pytest
import torch
import torchvision

from mmairl.analysis.cka import MinibatchCKA, full_cka, network_cka, stage_cka, unbiased_hsic
from mmairl.errors import UserError


def dense_cka(x: np.ndarray, y: np.ndarray) -> float:
    """Kornblith et al.'s formula in the features, with everything at once."""
    x, y = x - x.mean(0), y - y.mean(0)
    return np.linalg.norm(y.T @ x) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y))


def looped_hsic(k: np.ndarray, l: np.ndarray) -> float:  # noqa: E741
    """Song et al.'s unbiased estimate as its definition reads, over tuples of different images."""
    pairs, triples, quadruples = (list(permutations(range(len(k)), size)) for size in (2, 3, 4))
    same = np.mean([k[i, j] * l[i, j] for i, j in pairs])
    one_shared = np.mean([k[i, j] * l[i, q] for i, j, q in triples])
    return same - 2 * one_shared + np.mean([k[i, j] * l[q, r] for i, j, q, r in quadruples])


def test_the_unbiased_estimate_is_the_sum_over_different_images():
    generator = np.random.default_rng(0)
    k, l = (a @ a.T for a in generator.normal(size=(2, 7, 3)))  # noqa: E741
    assert unbiased_hsic(torch.tensor(k), torch.tensor(l)).item() == pytest.approx(looped_hsic(k, l), rel=1e-10)


def test_the_biased_form_is_the_dense_formula_over_any_batches():
    x, linear = torch.randn(60, 7) + 3, torch.nn.Linear(7, 5).requires_grad_(False)
    wanted = pytest.approx(dense_cka(x.double().numpy(), linear(x).double().numpy()), rel=1e-5)
    for size in (60, 13):
        assert full_cka(torch.nn.Identity(), linear, x.split(size)) == wanted


def test_a_rotated_scaled_and_shifted_copy_is_the_same_and_what_does_not_vary_has_no_cka():
    x, rotation = torch.randn(60, 7) + 3, torch.linalg.qr(torch.randn(7, 7))[0]
    similarity = MinibatchCKA()
    similarity.update([x[:3], x[:3]], [x[:3]])
    with pytest.raises(UserError) as error:
        similarity.value()
    assert error.value.code == 'small-batch'
    for part in x.split(20):
        similarity.update([part, torch.ones(20, 3)], [part @ rotation * 3 + 5])
    same, constant = similarity.value().flatten().tolist()
    assert same == pytest.approx(1, abs=1e-5) and constant != constant


def test_independent_noise_is_near_zero_and_the_biased_estimate_is_not():
    similarity, biased = MinibatchCKA(), []
    for _ in range(30):
        a, b = torch.randn(2, 64, 512)
        similarity.update([a], [b])
        biased.append(dense_cka(a.double().numpy(), b.double().numpy()))
    assert abs(similarity.value().item()) < 0.02
    assert np.mean(biased) > 0.7


def through(network, x: torch.Tensor) -> list[torch.Tensor]:
    """The features of the four stages of torchvision's ResNet."""
    x = network.maxpool(network.relu(network.bn1(network.conv1(x))))
    return [x := stage(x) for stage in (network.layer1, network.layer2, network.layer3, network.layer4)]


def test_stages_and_networks_are_compared_on_the_same_images():
    networks = [torchvision.models.resnet18(num_classes=8).eval() for _ in range(2)]
    batches = list(torch.randn(3, 8, 3, 32, 32))
    values, rows, columns = stage_cka(*networks, batches)
    assert rows == columns == ['layer1', 'layer2', 'layer3', 'layer4', 'pooled']
    expected = MinibatchCKA()
    with torch.no_grad():
        for images in batches:
            a, b = (through(network, images) for network in networks)
            expected.update([a[1]], [b[3]])
    assert values[1, 3].item() == pytest.approx(expected.value().item(), abs=1e-6)
    own, *_ = stage_cka(networks[0], networks[0], batches)
    assert torch.allclose(own.diagonal(), torch.ones(5, dtype=own.dtype)) and torch.allclose(own, own.T)
    assert not networks[0].layer1._forward_hooks and not networks[0].layer1[-1]._forward_hooks
    many = network_cka([*networks, networks[0]], batches, stage='layer3')
    assert many.shape == (3, 3) and many[0, 2].item() == pytest.approx(1)
    assert many[0, 1].item() == pytest.approx(values[2, 2].item(), abs=1e-6)
    with pytest.raises(UserError) as error:
        network_cka(networks, batches, stage='layer9')
    assert error.value.code == 'unknown-stage'
