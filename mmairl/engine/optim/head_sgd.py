"""SGD that trains several classifiers at once, each with its own learning rate and weight decay."""

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmairl.registry import OPTIMIZERS

LARGEST = 1e30  # updates are clipped to this size, so that a head that diverges stays finite


@OPTIMIZERS.register_module()
class HeadSGD(torch.optim.SGD):
    """SGD for several linear classifiers (heads) whose weights are stacked in one tensor.

    The rows of each tensor consist of ``len(rates)`` blocks of equal size, one block per head. Block ``i`` is trained as if
    by SGD with the learning rate ``lr * rates[i]`` and the weight decay ``decays[i]``.

    The update of SGD is linear in ``rate * (gradient + decay * weight)``, even with momentum or Nesterov momentum. Rates and
    decays are therefore applied to the gradients, and one multi-tensor step trains all heads. Learning rate schedules change
    ``lr``.

    Args:
        params: Parameters or parameter groups.
        lr: Learning rate, which is multiplied by the rate of each head.
        rates: Factor of the learning rate for each head.
        decays: Weight decay of each head.
        momentum: Momentum. Default: 0.9.
        nesterov: Use Nesterov momentum. Default: False.
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
        """Collect the tensors of a step like torch's SGD, but replace gradients by copies with rates and decays applied."""
        super()._init_group(group, params, grads, *buffers)
        grads[:] = [self._fold(grad, param) for grad, param in zip(grads, params)]
        return False  # Torch's SGD expects this method to return whether a gradient is sparse.

    def _fold(self, grad: Tensor, param: Tensor) -> Tensor:
        heads = len(self.rates)
        column = (-1, *[1] * param.ndim)
        rates = on_device(self.rates, param.dtype, param.device).view(column)
        decays = on_device(self.decays, param.dtype, param.device).view(column)
        decayed = param.unflatten(0, (heads, -1)) * decays
        update = decayed.add_(grad.unflatten(0, (heads, -1))).mul_(rates)
        return update.clamp_(-LARGEST, LARGEST).flatten(0, 1)


@cache
def on_device(numbers: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return numbers as a cached tensor on a device. Without the cache, copying them to a GPU would block each step."""
    return torch.tensor(numbers, dtype=torch.float64).to(device, dtype)
