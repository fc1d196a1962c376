"""Randomness of its own for each image, so that neither workers nor interruptions change what is drawn."""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from mmairl.randomness import same_randomness


class Seeded(Dataset):
    """A data set whose items are drawn from the seed that comes with their index (`Drawn`).

    A worker's generators advance with every image that it happens to get, and cannot be taken up again; here 0 and 8
    workers, one process and two, an interrupted and an uninterrupted run all see the same views.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """What a loader asks for: a batch; seeded, it leaves the generators of the process as they were.

        Other samplers' indices carry no seed: put back, the generators would draw the same views for every batch.
        """
        with same_randomness() if any(seed_of(index) is not None for index in indices) else nullcontext():
            return [self._drawn(index) for index in indices]

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def _drawn(self, index: int) -> Any:
        if (seed := seed_of(index)) is not None:
            # torch.manual_seed would also queue a call for a GPU that a worker never starts, at every image
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
        return self.dataset[index]

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a data set knows: classes, labels, the files that could not be read."""
        if name == 'dataset':  # not there yet while being unpickled
            raise AttributeError(name)
        return getattr(self.dataset, name)


def seed_of(index: int) -> int | None:
    """What `Drawn` adds to an index."""
    return getattr(index, 'seed', None)
