"""Whether all processes' losses are finite, on its way to the host while the device goes on."""

import torch
from mmengine.dist import all_reduce
from torch import Tensor


class FiniteFlag:
    """One number for the losses of an optimizer step: `add` each, `fetch` when the last is there, `read` before the step.

    >>> flag = FiniteFlag()
    >>> flag.add(torch.tensor(1.0)); flag.add(torch.tensor(float('nan'))); flag.fetch(); flag.read()
    False
    """

    def __init__(self) -> None:
        self.all_finite: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        finite = torch.isfinite(loss.detach()).to(torch.float32)
        self.all_finite = finite if self.all_finite is None else self.all_finite * finite

    def fetch(self) -> None:
        """Start the copy to the host, behind the forward pass and ahead of the backward pass."""
        all_reduce(self.all_finite, 'min')
        on_device = self.all_finite.is_cuda
        self.on_host = torch.empty((), pin_memory=on_device)
        self.on_host.copy_(self.all_finite, non_blocking=True)
        self.there = torch.cuda.current_stream().record_event() if on_device else None
        self.all_finite = None

    def read(self) -> bool:
        """The answer of all processes; waits for the forward pass at most."""
        if self.there is not None:
            self.there.synchronize()
        return bool(self.on_host.numpy())
