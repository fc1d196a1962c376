"""The order in which images are seen, by seed and epoch alone: it can be resumed anywhere, by any number of processes."""

import math
from collections.abc import Iterator, Sized

import torch
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmairl.data.training import TrainingImages
from mmairl.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Each epoch a permutation of the data set, dealt in turn to the processes, from the `start`-th image on.

    The permutation is that of mmengine's DefaultSampler, which cannot begin inside an epoch. With the total batch
    unchanged, the n-th batch is the same set of images however many processes share it. TrainingImages also get the
    seed of each image's views: it depends on the image's place in the epoch, not on the worker.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int | None = None) -> None:
        self.rank, self.world_size = get_dist_info()
        self.dataset, self.shuffle = dataset, shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch, self.start = 0, 0

    @property
    def total(self) -> int:
        """The images of an epoch; the first ones are seen twice where every process would not have as many."""
        return math.ceil(len(self.dataset) / self.world_size) * self.world_size

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to this epoch, of which all processes together have seen `start` images."""
        self.epoch, self.start = epoch, start

    def order(self) -> list[int]:
        """This epoch's permutation, which a study's run records as well."""
        if not self.shuffle:
            return list(range(len(self.dataset)))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return torch.randperm(len(self.dataset), generator=generator).tolist()

    def __iter__(self) -> Iterator[int | tuple[int, int]]:
        order = self.order()
        with_seeds = isinstance(self.dataset, TrainingImages)
        for place in range(self.start + self.rank, self.total, self.world_size):
            index = order[place % len(order)]
            yield (index, self.seed_of(place)) if with_seeds else index

    def seed_of(self, place: int) -> int:
        """32 well-mixed bits of (seed, epoch, place): neighbours must not draw alike (the finaliser of splitmix64)."""
        bits = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03 + place * 0x8CB92BA72F3D8DD7) % 2**64
        bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        bits = (bits ^ bits >> 27) * 0x94D049BB133111EB % 2**64
        return (bits ^ bits >> 31) % 2**32

    def __len__(self) -> int:
        """This process's images in a whole epoch, wherever it starts: what schedules are made for."""
        return len(range(self.rank, self.total, self.world_size))
