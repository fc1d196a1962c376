"""The queue of keys from earlier steps, which a head uses as negatives or as a set of possible positives."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.registry import MODELS


@MODELS.register_module()
class KeyQueue(nn.Module):
    """A first-in-first-out queue of unit vectors.

    The write position is stored in the memory of the host, so that no step waits for the device.

    Args:
        length: Number of keys that the queue can hold.
        dim: Width of a key. The model sets it to the width of its projector.
        start: `'noise'` fills the queue with normalized Gaussian noise, as in MoCo's code. `'empty'` starts without keys.

    Raises:
        UserError: If `start` is unknown.
    """

    def __init__(self, length: int, dim: int, start: str = 'noise') -> None:
        super().__init__()
        if start not in ('noise', 'empty'):
            raise UserError(
                f"model.queue.start: unknown value ('{start}'); set 'noise' or 'empty'",
                code='unknown-start',
            )
        self.length = length
        self.start = start
        self.position = 0
        self.filled = 0
        noise = torch.randn(length, dim)
        self.register_buffer('vectors', F.normalize(noise, dim=1))

    def negatives(self) -> Tensor:
        """Return the keys in the queue, without copying them.

        `enqueue` changes the returned tensor in place, so call `enqueue` only after the backward pass.
        """
        return self.vectors[: self.filled] if self.start == 'empty' else self.vectors

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Overwrite the oldest keys with the new keys, in order."""
        until_end = min(len(keys), self.length - self.position)
        self.vectors[self.position : self.position + until_end] = keys[:until_end]
        self.vectors[: len(keys) - until_end] = keys[until_end:]
        self.position = (self.position + len(keys)) % self.length
        self.filled = min(self.filled + len(keys), self.length)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.position, self.filled])

    def set_extra_state(self, state: Tensor) -> None:
        self.position, self.filled = state.tolist()
