"""Mixtures of several data sets. A weight determines how often training sees the images of each set."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset, Views, dtype_name, innermost_dataset
from mmairl.errors import UserError, closest
from mmairl.registry import DATASETS


@DATASETS.register_module()
class Mixture(ViewDataset):
    """Combines the images of several named data sets into one data set.

    Classes with the same name become one class. If a set has no classes, or if its images can have several classes, its
    images are unlabeled in the mixture. Evaluation ignores the weights and sees each image once.

    Args:
        sets: The data sets by name, as configs or as objects.
        weights: For each set by name, how often a training epoch sees each of its images. With 2, an epoch sees each image
            twice. With 0.3, an epoch sees three in ten images, and the next epoch sees other images. Default: 1.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml). The
            views apply to the images of all sets.

    Raises:
        UserError: If the sets differ in channels or bit depth, if a set has its own views or is a Mixture, or if a weight
            is not positive or belongs to an unknown set.

    Example:
        >>> photos = dict(type='ImageFolder', root='photos')
        >>> Mixture(dict(a=dict(type='Shapes'), b=photos), weights=dict(b=0.3))  # doctest: +SKIP
    """

    def __init__(
        self,
        sets: Mapping[str, dict | ViewDataset],
        weights: Mapping[str, float] | None = None,
        views: Views | None = None,
    ) -> None:
        super().__init__(views)
        self.sets = {
            name: DATASETS.build(part) if isinstance(part, dict) else part
            for name, part in sets.items()
        }
        inner = {name: innermost_dataset(part) for name, part in self.sets.items()}
        require_one_kind(inner)
        sizes = {name: len(part) for name, part in self.sets.items()}
        # The index of the first image of each set, followed by the number of all images.
        self.bounds = np.cumsum([0, *sizes.values()])
        self.per_epoch = images_per_epoch(sizes, weights) if weights else None
        first = next(iter(inner.values()))
        self.channels = first.channels
        self.as_stored = first.as_stored
        self.depth = first.depth
        lows, highs = zip(*(part.value_range for part in inner.values()))
        self.value_range = min(lows), max(highs)
        unreadable = [
            getattr(inner[name], 'max_unreadable', 0) * size for name, size in sizes.items()
        ]
        self.max_unreadable = sum(unreadable) / len(self)
        self.classes = list(
            dict.fromkeys(name for part in self.sets.values() for name in part.classes)
        )
        number = {name: index for index, name in enumerate(self.classes)}
        # For each set, a table that maps the labels of the set to labels of the mixture. Label -1 (unlabeled) indexes the
        # last entry, which is -1 as well.
        self.numbers = {
            name: torch.tensor([*map(number.get, part.classes), -1])
            for name, part in self.sets.items()
        }

    @property
    def labels(self) -> Tensor:
        if not self.classes:
            # An expanded tensor takes the memory of a single label.
            return torch.tensor(-1).expand(len(self))
        return torch.cat([self.joint_labels(name, part.labels) for name, part in self.sets.items()])

    def label(self, index: int) -> Tensor:
        name, part, inner = self.locate(index)
        return self.joint_labels(name, part.label(inner)[None])[0]

    def joint_labels(self, name: str, labels: Tensor) -> Tensor:
        """Convert labels of a set to labels of the mixture.

        If an image of the set can have several classes, all labels are -1.
        """
        if labels.ndim > 1:
            return torch.full((len(labels),), -1)
        return self.numbers[name][labels]

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def origins(self) -> Tensor:
        """For each image, the position in `sets` of the set that contains the image."""
        sizes = torch.from_numpy(np.diff(self.bounds))
        return torch.arange(len(self.sets)).repeat_interleave(sizes)

    @property
    def shard_bounds(self) -> list[np.ndarray] | None:
        """For each set, the index of the first image of each shard or row group, followed by the number of images in the set.

        The value is None unless all sets are of the type Shards.
        """
        parts = self.sets.values()
        if not all(hasattr(part, 'contents') for part in parts):
            return None
        return [part.contents.units for part in parts]

    def locate(self, index: int) -> tuple[str, ViewDataset, int]:
        """Find the set that contains an image. Return the name of the set, the set, and the image's index in the set."""
        number = int(np.searchsorted(self.bounds, index, 'right')) - 1
        name = list(self.sets)[number]
        return name, self.sets[name], index - int(self.bounds[number])

    def raw(self, index: int) -> Tensor:
        _, part, inner = self.locate(index)
        return part.raw(inner)

    def name(self, index: int) -> str:
        _, part, inner = self.locate(index)
        return part.name(inner)

    def member(self, index: int) -> str:
        """Return the path of an image within the mixture: the name of the set, then the name of the image in the set."""
        name, part, inner = self.locate(index)
        return f'{name}/{part.member(inner)}'


def images_per_epoch(sizes: Mapping[str, int], weights: Mapping[str, float]) -> np.ndarray:
    """Return the number of images of each set in a training epoch. Raise if a weight is invalid or its set is unknown."""
    for name, weight in weights.items():
        if name not in sizes:
            raise UserError(
                f"Mixture.weights: unknown set ('{name}'); use one of {', '.join(sizes)}{closest(name, sizes)}",
                code='unknown-set',
            )
        if not 0 < weight < math.inf:
            raise UserError(
                f"Mixture.weights.{name}: expected a positive number ('{weight}'); set how often an epoch sees each image "
                'of the set, or remove the set from the mixture',
                code='bad-weight',
            )
    return np.array([max(1, round(size * weights.get(name, 1))) for name, size in sizes.items()])


def require_one_kind(sets: Mapping[str, ViewDataset]) -> None:
    """Raise if the sets differ in channels or bit depth, or if a set has its own views or is itself a Mixture.

    The mixture would ignore the views of a set and the weights of an inner Mixture.
    """
    kinds = {
        name: f'{part.channels} channels of {dtype_name(part.depth or torch.uint8)}'
        for name, part in sets.items()
    }
    first = next(iter(kinds))
    for name, part in sets.items():
        if isinstance(part, Mixture):
            raise UserError(
                f"Mixture: a set must not be a Mixture itself ('{name}'); list the sets of that Mixture instead",
                code='nested-mixture',
            )
        if any(part.views):
            raise UserError(
                f"Mixture: a set must not have its own views ('{name}'); set the views of the Mixture instead",
                code='views-of-set',
            )
        if kinds[name] != kinds[first]:
            raise UserError(
                f"Mixture: the images of '{name}' have {kinds[name]}, but those of '{first}' have {kinds[first]}; set the "
                'same channels for both, convert the images, or train on the sets separately',
                code='mixed-images',
            )
