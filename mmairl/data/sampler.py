"""The order of the images in an epoch. It does not depend on the number of processes, and a run can resume at any image."""

from collections.abc import Iterator, Sized

import numpy as np
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmairl.data.training_images import TrainingImages
from mmairl.registry import DATA_SAMPLERS


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Permutes the images of a data set in each epoch, and distributes them to the processes in turn.

    The order of an epoch depends only on the seed and on the number of the epoch, and a resumed epoch can start at any
    image. For a fixed total batch size, the n-th batch contains the same images for any number of processes. If the data set
    is wrapped in TrainingImages, the sampler also yields a seed for the views of each image. This seed depends only on the
    seed, the epoch and the position in the epoch.

    mmengine's DefaultSampler uses `seed + epoch` as the seed of a permutation, so two runs with
    neighboring seeds have most orders in common. NumPy hashes the two numbers instead.

    Args:
        dataset: The data set.
        shuffle: Whether to permute the images.
        seed: The seed from which the orders of all epochs are derived. Default: a random seed that all processes share.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int | None = None) -> None:
        self.rank, self.world_size = get_dist_info()
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = sync_random_seed() if seed is None else seed
        self.epoch = 0
        self.start = 0

    @property
    def total(self) -> int:
        """The number of images that all processes together see in an epoch.

        A few images may be repeated, so that each process has the same number of images.
        """
        return -(-len(self.dataset) // self.world_size) * self.world_size

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Set the epoch, and the number of its images that all processes together have already seen."""
        self.epoch = epoch
        self.start = start

    def order(self) -> np.ndarray:
        """Return the indices of the images in the order of the current epoch."""
        if not self.shuffle:
            return np.arange(len(self.dataset))
        return np.random.default_rng([self.seed, self.epoch]).permutation(len(self.dataset))

    def seeds(self) -> np.ndarray:
        """Return a seed for the views at each position of the current epoch."""
        random = np.random.default_rng([self.seed, self.epoch, 1])
        return random.integers(2**32, size=self.total)

    def __iter__(self) -> Iterator[int | tuple[int, int]]:
        order = self.order()
        seeds = self.seeds() if isinstance(self.dataset, TrainingImages) else None
        for position in range(self.start + self.rank, self.total, self.world_size):
            index = int(order[position % len(order)])
            yield index if seeds is None else (index, int(seeds[position]))

    def __len__(self) -> int:
        """Return the number of images of this process in a full epoch, for schedules."""
        return self.total // self.world_size
