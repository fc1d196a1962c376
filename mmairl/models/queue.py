"""The queue of keys that serve as negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.registry import MODELS


@MODELS.register_module()
class KeyQueue(nn.Module):
    """First in, first out, of unit vectors; the position is kept on the host, so that no step waits for the device.

    Args:
        length: how many keys it holds.
        dim: their width; the network fills it in from its projector.
        start: 'noise' starts full of normalised Gaussian noise, as the papers do; 'empty' offers only real keys.
    """

    def __init__(self, length: int, dim: int, start: str = 'noise') -> None:
        super().__init__()
        if start not in ('noise', 'empty'):
            raise UserError(f"queue.start='{start}' is not known; say noise (the papers) or empty")
        if length < 1:
            raise UserError(
                f'queue.length={length} holds nothing; set a positive length or model.queue=None'
            )
        self.length, self.start = length, start
        self.position, self.filled = 0, 0
        self.register_buffer('vectors', F.normalize(torch.randn(length, dim), dim=1))

    def negatives(self) -> Tensor:
        """The keys as they stand. `enqueue` changes them in place, so it comes after the step's backward pass."""
        return self.vectors[: self.filled] if self.start == 'empty' else self.vectors

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        """Put the keys in order behind the newest one, over the oldest; wraps around at any batch size."""
        if len(keys) > self.length:
            raise UserError(
                f'{len(keys)} keys a step do not fit a queue of {self.length}; raise model.queue.length to the '
                'total batch or more'
            )
        until_end = min(len(keys), self.length - self.position)
        self.vectors[self.position : self.position + until_end] = keys[:until_end]
        self.vectors[: len(keys) - until_end] = keys[until_end:]
        self.position = (self.position + len(keys)) % self.length
        self.filled = min(self.filled + len(keys), self.length)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.position, self.filled])

    def set_extra_state(self, state: Tensor) -> None:
        self.position, self.filled = state.tolist()
