"""SGD over classifiers stacked in one tensor, each with a rate and a decay of its own, at the cost of one."""

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

    The rows of each tensor are ``len(rates)`` equal blocks. Block ``i`` moves as under SGD with rate ``lr * rates[i]`` and
    weight decay ``decays[i]``. SGD is linear in ``rate * (gradient + decay * weight)``, with momentum and Nesterov too, so
    both are folded into the gradients and one multi-tensor step serves all heads. The schedule acts on ``lr``.
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
        self.rates, self.decays = tuple(rates), tuple(decays)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), 'rates': self.rates, 'decays': self.decays}

    def _init_group(self, group: dict, params: list[Tensor], grads: list[Tensor], *buffers: list[Tensor]) -> bool:
        """Collect what a step needs, as SGD does, with rates and decays folded into copies of the gradients."""
        super()._init_group(group, params, grads, *buffers)
        require_dense('HeadSGD', grads)
        grads[:] = [self._fold(grad, param) for grad, param in zip(grads, params)]
        return False  # no sparse gradients

    def _fold(self, grad: Tensor, param: Tensor) -> Tensor:
        heads, column = len(self.rates), (-1, *[1] * param.ndim)
        rates, decays = (
            factors(numbers, param.dtype, param.device).view(column) for numbers in (self.rates, self.decays)
        )
        decayed = param.unflatten(0, (heads, -1)) * decays
        return decayed.add_(grad.unflatten(0, (heads, -1))).mul_(rates).flatten(0, 1)


@cache
def factors(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers on a device. They are copied once, because a copy in each step would wait for a GPU."""
    return torch.tensor(numbers, dtype=torch.float64).to(device, dtype)
