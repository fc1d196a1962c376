"""The gradients of an optimizer, and a check of them."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmairl.errors import UserError


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    groups = optimizer.param_groups
    weights = [weight for group in groups for weight in group['params']]
    return [weight.grad for weight in weights if weight.grad is not None]


def require_dense(optimizer: str, grads: Iterable[Tensor]) -> None:
    if any(grad.layout is not torch.strided for grad in grads):
        raise UserError(
            f'{optimizer}: a gradient is sparse; set sparse=False of the embedding, or use torch.optim.SGD',
            code='sparse-gradient',
        )
