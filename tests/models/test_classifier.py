"""The classifier: several heads at once, a frozen backbone, and images with several classes."""

import itertools

import pytest
import torch
from harness import toy  # noqa: F401  registers the small backbone
from harness.errors import raises_code
from torch import nn

from mmairl.engine.optim.head_sgd import HeadSGD
from mmairl.models.classifier import Classifier


def model(heads: int = 1, frozen: bool = True) -> Classifier:
    torch.manual_seed(0)
    return Classifier(
        dict(type='Small', width=3), in_channels=6, classes=4, heads=heads, frozen=frozen
    ).double()


def batches(count: int = 12):
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        images = torch.randn(8, 3, 8, 8, generator=generator, dtype=torch.float64)
        yield [images], dict(label=torch.randint(4, (8,), generator=generator))


def train(network: Classifier, optimizer: torch.optim.Optimizer, schedule: list[float]) -> None:
    network.train()
    base = optimizer.param_groups[0]['lr']
    for factor, (images, labels) in zip(schedule, batches()):
        optimizer.param_groups[0]['lr'] = base * factor
        optimizer.zero_grad()
        network(images, labels, mode='loss')['loss'].backward()
        optimizer.step()


@pytest.mark.parametrize('nesterov', [False, True])
def test_stacked_heads_train_like_single_heads(nesterov):
    pairs = list(itertools.product([30.0, 1.0, 0.1], [0.0, 1e-2]))
    rates, decays = zip(*pairs)
    schedule = [1.0] * 6 + [0.1] * 6
    together = model(heads=len(pairs))
    trained = [parameter for parameter in together.parameters() if parameter.requires_grad]
    train(
        together, HeadSGD(trained, lr=1.0, rates=rates, decays=decays, nesterov=nesterov), schedule
    )
    for head, (rate, decay) in enumerate(pairs):
        alone = model()
        options = dict(lr=rate, momentum=0.9, weight_decay=decay, nesterov=nesterov)
        train(alone, torch.optim.SGD(alone.fc.parameters(), **options), schedule)
        block = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(together.fc.weight[block], alone.fc.weight, rtol=1e-5, atol=1e-9)
        torch.testing.assert_close(together.fc.bias[block], alone.fc.bias, rtol=1e-5, atol=1e-9)


def test_supervised_loss_is_cross_entropy():
    network, (images, labels) = model(frozen=False), next(batches())
    scores = network(images) @ network.fc.weight.T + network.fc.bias
    expected = -(scores.log_softmax(1)[range(8), labels['label']]).mean().float()
    torch.testing.assert_close(network(images, labels, mode='loss')['loss'], expected)
    with raises_code('no-labels'):
        network(images, None, mode='loss')


def test_frozen_backbone_keeps_weights_and_statistics():
    for frozen in (True, False):
        network = model(frozen=frozen)
        before = {key: value.clone() for key, value in network.backbone.blocks.state_dict().items()}
        train(
            network,
            torch.optim.SGD([p for p in network.parameters() if p.requires_grad], lr=0.1),
            [1.0] * 3,
        )
        same = [
            torch.equal(value, before[key])
            for key, value in network.backbone.blocks.state_dict().items()
        ]
        assert all(same) if frozen else not any(same)
        assert network.training and network.backbone.training != frozen


def test_unknown_labels_have_no_gradient():
    images, _ = next(batches())
    labels = torch.randint(0, 2, (8, 4))
    labels[:, 1] = -1
    network = model()
    network(images, dict(label=labels), mode='loss')['loss'].backward()
    assert network.fc.weight.grad[1].abs().max() == 0 and network.fc.weight.grad[0].abs().max() > 0
    scores = network(images, dict(label=labels), mode='predict')[0]['scores'][:, 0]
    expected = nn.functional.binary_cross_entropy_with_logits(
        scores[:, [0, 2, 3]], labels[:, [0, 2, 3]].float()
    )
    assert network(images, dict(label=labels), mode='loss')['loss'].item() == pytest.approx(
        expected.item() * 3 / 4
    )
