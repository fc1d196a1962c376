"""Training images with reproducible views, and their order, from which a run can resume at any image."""

import random
from collections.abc import Iterator, Sequence, Sized
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from mmengine.dist import get_dist_info, get_world_size, sync_random_seed
from mmengine.utils import apply_to
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from mmairl.data.datasets import innermost_dataset
from mmairl.data.decode import UnreadableImage
from mmairl.errors import UserError
from mmairl.randomness import same_randomness
from mmairl.registry import DATA_SAMPLERS

# Unless max_unreadable is 0, a data set of any size may have this many unreadable images.
ALWAYS_ALLOWED = 10
LISTED = 20  # at most this many unreadable images are listed


class TrainingImages(Dataset):
    """Wraps a data set for training, so that views are reproducible and bad images are replaced.

    An item is requested by an index or by a pair (index, seed). ResumableSampler yields pairs. The
    seed alone determines the views of the image. The number of workers, the number of processes and
    interruptions have no effect. If an image is unreadable, the next readable image takes its
    place.

    Args:
        dataset: The data set.

    Attributes:
        unreadable: For each image, whether it is known to be unreadable. Data workers share it.
        allowed: How many unreadable images each process may meet. Over the epochs, each process
            meets all images. Unless `max_unreadable` of the data set is 0, this number is at least
            10.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.unreadable = torch.zeros(len(dataset), dtype=torch.bool).share_memory_()
        fraction = getattr(innermost_dataset(dataset), 'max_unreadable', 0)
        allowed = max(ALWAYS_ALLOWED, int(fraction * len(dataset))) if fraction else 0
        self.allowed = min(allowed, len(dataset) - 1)

    def __deepcopy__(self, memo: dict) -> 'TrainingImages':
        """Return the object itself, because mmengine copies configs and the memory is shared."""
        return self

    def __getitems__(self, items: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return a list of samples. If the items have seeds, restore the random states afterwards.

        Without seeds, restoring the states would give every batch the same views.
        """
        pairs = [item if isinstance(item, tuple) else (item, None) for item in items]
        seeded = any(seed is not None for _, seed in pairs)
        with same_randomness() if seeded else nullcontext():
            return [self.sample(index, seed) for index, seed in pairs]

    def __getitem__(self, item: int | tuple[int, int]) -> Any:
        return self.__getitems__([item])[0]

    def sample(self, index: int, seed: int | None) -> Any:
        """Return the image at this index or, if that image is unreadable, the next readable one."""
        for step in range(len(self)):
            current = (index + step) % len(self)
            if self.unreadable[current]:
                continue
            if seed is not None:
                # torch.manual_seed would also queue a call on the GPU for every image.
                torch.default_generator.manual_seed(seed)
                np.random.seed(seed)
                random.seed(seed)
            try:
                return require_tensors(self.dataset[current], self.dataset)
            except UnreadableImage:
                self.unreadable[current] = True
            if len(met := self.met()) > self.allowed:
                first = ', '.join(self.names_with_reasons(met[:3]))
                raise UserError(
                    f'{len(met)} of the {len(self)} training images cannot be read, more than the '
                    f'{self.allowed} that each process allows (the first: {first}); fix or remove '
                    'them, or raise max_unreadable of the data set',
                    code='too-many-unreadable',
                )

    def met(self) -> Tensor:
        """Return the indices of unreadable images that this process and its workers have met."""
        return self.unreadable.nonzero().flatten()

    def names_with_reasons(self, met: Tensor) -> list[str]:
        """Read the first unreadable images again, and return those that still are, with the reasons."""
        lines = []
        for index in met[:LISTED].tolist():
            try:
                self.dataset.raw(index)
            except UnreadableImage as fault:
                lines.append(f'{self.dataset.name(index)} ({fault.reason})')
        return lines

    def __len__(self) -> int:
        return len(self.dataset)


def require_tensors(sample: Any, dataset: Dataset) -> Any:
    """Return the sample. Raise if it is or contains a Pillow image, which cannot be batched."""

    def refuse(image: Image.Image) -> None:
        raise UserError(
            f'{type(dataset).__name__}: returns Pillow images instead of views; derive a class from '
            'mmairl.data.datasets.ViewDataset whose method raw(index) returns '
            'torchvision.transforms.functional.pil_to_tensor(image), and set it as '
            'train_dataloader.dataset',
            code='pillow-images',
        )

    return apply_to(sample, lambda part: isinstance(part, Image.Image), refuse)


def require_a_batch(loader: DataLoader) -> None:
    """Raise if an epoch has no batch, for which mmengine's schedules have no clear error."""
    if len(loader) == 0:
        raise UserError(
            f'the training set has {len(loader.dataset)} images, fewer than one batch of '
            f'{loader.batch_size} on each of {get_world_size()} processes; lower total_batch_size',
            code='no-batch',
        )


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

    def __init__(
        self,
        dataset: Sized,
        shuffle: bool = True,
        seed: int | None = None,
    ) -> None:
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
        random = np.random.default_rng([self.seed, self.epoch])
        return random.permutation(len(self.dataset))

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
