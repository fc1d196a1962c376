"""The order of the images in an epoch. It does not depend on the number of processes, and a run can resume at any image."""

from collections.abc import Iterator, Sized

import numpy as np
import torch
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmairl.data.training_images import TrainingImages
from mmairl.registry import DATA_SAMPLERS

BLOCK = 2**14


@DATA_SAMPLERS.register_module()
class ResumableSampler(Sampler):
    """Permutes the images of a data set in each epoch, and distributes them to the processes in turn.

    The order of an epoch depends only on the seed and on the number of the epoch, and a resumed epoch can start at any
    image. For a fixed total batch size, the n-th batch contains the same images for any number of processes. If the data set
    is wrapped in TrainingImages, the sampler also yields a seed for the views of each image. This seed depends only on the
    seed, the epoch and the position in the epoch.

    mmengine's DefaultSampler uses `seed + epoch` as the seed of a permutation, so two runs with neighboring seeds have most
    orders in common. This sampler hashes the two numbers instead.

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
        generator = torch.Generator().manual_seed(seed_of(self.seed, self.epoch))
        return torch.randperm(len(self.dataset), generator=generator).numpy()

    def __iter__(self) -> Iterator[int | tuple[int, int]]:
        positions = np.arange(self.start + self.rank, self.total, self.world_size)
        order = self.order()
        with_seeds = isinstance(self.dataset, TrainingImages)
        # A list of all positions would take a gigabyte for the largest data sets.
        for block in np.split(positions, range(BLOCK, len(positions), BLOCK)):
            indices = order[block % len(self.dataset)].tolist()
            yield from zip(indices, self.seeds_of(block).tolist()) if with_seeds else indices

    def seeds_of(self, positions: np.ndarray) -> np.ndarray:
        """Return a 32-bit seed for the views at each position.

        The seed is a hash of (seed, epoch, position), so that images at neighboring positions do not have similar views.
        """
        run = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xD1B54A32D192ED03) % 2**64
        bits = positions.astype(np.uint64) * np.uint64(0x8CB92BA72F3D8DD7) + np.uint64(run)
        # This is the last step of the random generator splitmix64.
        bits = (bits ^ bits >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return (bits ^ bits >> np.uint64(31)) % np.uint64(2**32)

    def __len__(self) -> int:
        """Return the number of images of this process in a full epoch. mmengine computes schedules from it."""
        return self.total // self.world_size


def seed_of(seed: int, epoch: int) -> int:
    """Return the seed of an epoch's order. It is a hash, so that runs with different seeds have no order in common."""
    return int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
