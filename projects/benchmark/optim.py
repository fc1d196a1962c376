"""Compare a step of LARS on a ResNet-50's parameters with the LARS of mmpretrain and lightly."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torchvision
from torch import Tensor
from torch.optim import Optimizer

from mmairl.engine.optim.lars import LARS
from projects.benchmark.of_lightly import installed
from projects.benchmark.timing import Case

HYPER = dict(lr=0.2, momentum=0.9, weight_decay=1e-6)
NOTE = (
    'Limit: weights, gradients and momenta are read once, and weights and momenta are written once. After one step from '
    "zero momenta, all three optimizers agree. If the rate changes, lightly's LARS differs, because it applies the rate "
    "outside the momentum buffer. On a GPU, mmpretrain's LARS reads two norms per weight back to the host, one after the other "
    "(108 waits per step of a ResNet-50), and lightly's also waits, because it compares two norms with zero. Norm layers "
    'and biases are excluded from adaptation and decay; in mmpretrain, this requires both `lars_exclude=True` and '
    '`weight_decay=0`.'
)


def optim(device: str, quick: bool) -> Iterator[Case]:
    """Compare mmairl's LARS with mmpretrain's, and with lightly's if it is installed."""
    from mmpretrain.engine.optimizers import LARS as PretrainLARS

    make = torchvision.models.resnet18 if quick else torchvision.models.resnet50
    excluded = dict(lars_exclude=True, weight_decay=0.0)
    yield _case(make, device, "mmpretrain's LARS", PretrainLARS, excluded)
    if installed('LARS'):
        from lightly.utils.lars import LARS as LightlyLARS

        yield _case(make, device, "lightly's LARS", LightlyLARS, dict(weight_decay=0.0))


def _case(
    make: Callable, device: str, peer_name: str, peer: type[Optimizer], excluded: dict
) -> Case:
    torch.manual_seed(0)
    weights = [weight.detach().to(device) for weight in make().parameters()]
    grads = [1e-3 * torch.randn_like(weight) for weight in weights]
    size = sum(weight.nbytes for weight in weights)
    ours, theirs = (
        _step(LARS, weights, grads, dict(adapt=False)),
        _step(peer, weights, grads, excluded),
    )
    name = f'LARS step, {make.__name__}'
    check = partial(torch.testing.assert_close, atol=1e-7, rtol=1e-5)
    return Case(name, peer_name, ours, theirs, check, aim='>= 1', moved=5 * size, note=NOTE)


def _step(
    kind: type[Optimizer], weights: list[Tensor], grads: list[Tensor], excluded: dict
) -> Callable[[], list[Tensor]]:
    """Return a step of an optimizer on copies of the parameters.

    `excluded` contains the options by which this optimizer excludes vectors (norm layers and biases).
    """
    own = [weight.clone().requires_grad_() for weight in weights]
    for weight, grad in zip(own, grads):
        weight.grad = grad.clone()
    adapted, vectors = ([w for w in own if (w.ndim > 1) == wanted] for wanted in (True, False))
    optimizer = kind([dict(params=adapted), dict(params=vectors, **excluded)], **HYPER)

    def step() -> list[Tensor]:
        optimizer.step()
        return [weight.detach() for weight in own]

    return step
