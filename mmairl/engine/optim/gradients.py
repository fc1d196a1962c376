"""Functions that find and check the gradients of an optimizer's parameters."""

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmairl.errors import UserError


def with_gradient(optimizer: Optimizer) -> list[Tensor]:
    weights = [weight for group in optimizer.param_groups for weight in group['params']]
    return [weight for weight in weights if weight.grad is not None]


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    return [weight.grad for weight in with_gradient(optimizer)]


def require_dense(optimizer: str, grads: Iterable[Tensor]) -> None:
    if any(grad.layout is not torch.strided for grad in grads):
        raise UserError(
            f'{optimizer}: a gradient is sparse; set sparse=False in nn.Embedding, or use torch.optim.SGD',
            code='sparse-gradient',
        )
