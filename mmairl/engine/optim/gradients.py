"""A check of gradients that the optimizers share."""

from collections.abc import Iterable

import torch
from torch import Tensor

from mmairl.errors import UserError


def require_dense(optimizer: str, grads: Iterable[Tensor]) -> None:
    if any(grad.layout is not torch.strided for grad in grads):
        raise UserError(
            f'{optimizer}: a gradient is sparse; set sparse=False in nn.Embedding, or use torch.optim.SGD',
            code='sparse-gradient',
        )
