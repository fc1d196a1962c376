"""SGD for several classifiers stacked in one tensor, each with its own learning rate and weight decay."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmairl.engine.optim.gradients import require_dense
from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class HeadSGD(torch.optim.SGD):
    """SGD with a learning rate and a weight decay per head.

    The rows of each tensor are ``len(rates)`` equal blocks, one per head. Block ``i`` moves as under SGD with rate
    ``lr * rates[i]`` and weight decay ``decays[i]``. SGD is linear in ``rate * (gradient + decay * weight)``, also with
    momentum and Nesterov. Rates and decays are therefore applied to the gradients, and one multi-tensor step serves all
    heads at the cost of one. Schedules act on ``lr``.

    Args:
        params: Parameters or groups.
        lr: Learning rate that the rates multiply.
        rates: Relative rate of each head.
        decays: Weight decay of each head.
        momentum: Momentum. Default: 0.9.
        nesterov: Use Nesterov momentum. Default: False.

    Raises:
        UserError: If a gradient is sparse.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        rates: Sequence[float],
        decays: Sequence[float],
        momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov)
        self.rates = tuple(rates)
        self.decays = tuple(decays)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), 'rates': self.rates, 'decays': self.decays}

    def _init_group(
        self, group: dict, params: list[Tensor], grads: list[Tensor], *buffers: list[Tensor]
    ) -> bool:
        """Collect the tensors of a step like SGD, with rates and decays applied to copies of the gradients."""
        super()._init_group(group, params, grads, *buffers)
        require_dense('HeadSGD', grads)
        grads[:] = [self._fold(grad, param) for grad, param in zip(grads, params)]
        return False  # no sparse gradients

    def _fold(self, grad: Tensor, param: Tensor) -> Tensor:
        heads = len(self.rates)
        column = (-1, *[1] * param.ndim)
        rates = on_device(self.rates, param.dtype, param.device).view(column)
        decays = on_device(self.decays, param.dtype, param.device).view(column)
        decayed = param.unflatten(0, (heads, -1)) * decays
        return decayed.add_(grad.unflatten(0, (heads, -1))).mul_(rates).flatten(0, 1)


@cache
def on_device(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers on a device. The copy is cached, because it would block a GPU in each step."""
    return torch.tensor(numbers, dtype=torch.float64).to(device, dtype)
