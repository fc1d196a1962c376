"""Mixtures of several data sets, with a weight for each set."""

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
    """The images of several named data sets.

    Classes with the same name become one class. The images of a set without classes, or with several classes per image,
    are unlabeled in the mixture. Evaluation ignores the weights and sees each image once.

    Args:
        sets: Name and config of each data set.
        weights: How often a training epoch sees each image of a set. With 2, an epoch sees each image twice. With 0.3, it
            sees three in ten images, and the next epoch sees others. Default: 1.
        views: A list of transforms per view, or the name of a view set. All sets have the same views.

    Raises:
        UserError: If images differ in channels or depth, if a set has views of its own, or if a weight is not positive.

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
        self.bounds = np.cumsum([0, *sizes.values()])  # first image of each set, and the end
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
        # The label in the mixture of each class of a set. The last entry, -1, belongs to the label -1.
        self.numbers = {
            name: torch.tensor([*map(number.get, part.classes), -1])
            for name, part in self.sets.items()
        }

    @property
    def labels(self) -> Tensor:
        if not self.classes:
            return torch.tensor(-1).expand(len(self))  # takes the memory of one label
        return torch.cat([self.joint_labels(name, part.labels) for name, part in self.sets.items()])

    def label(self, index: int) -> Tensor:
        name, part, inner = self.locate(index)
        return self.joint_labels(name, part.label(inner)[None])[0]

    def joint_labels(self, name: str, labels: Tensor) -> Tensor:
        """Convert the labels of a set to those of the mixture: -1 if an image can have several."""
        if labels.ndim > 1:
            return torch.full((len(labels),), -1)
        return self.numbers[name][labels]

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def origins(self) -> Tensor:
        """The position of each image's set in `sets`."""
        sizes = torch.from_numpy(np.diff(self.bounds))
        return torch.arange(len(self.sets)).repeat_interleave(sizes)

    @property
    def shard_bounds(self) -> list[np.ndarray] | None:
        """For each set, the index of the first image of each shard, and the end. None unless all sets are Shards."""
        parts = self.sets.values()
        if not all(hasattr(part, 'contents') for part in parts):
            return None
        return [part.contents.units for part in parts]

    def locate(self, index: int) -> tuple[str, ViewDataset, int]:
        """Return the name of the set that contains an image, the set, and the image's index in the set."""
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
        """Return the name of the set, followed by the name of the image in the set."""
        name, part, inner = self.locate(index)
        return f'{name}/{part.member(inner) if hasattr(part, "member") else part.name(inner)}'


def images_per_epoch(sizes: Mapping[str, int], weights: Mapping[str, float]) -> np.ndarray:
    """Return how many images of each set an epoch has."""
    for name, weight in weights.items():
        if name not in sizes:
            raise UserError(
                f"Mixture.weights: unknown set ('{name}'); use one of {', '.join(sizes)}{closest(name, sizes)}",
                code='unknown-set',
            )
        if not 0 < weight < math.inf:
            raise UserError(
                f"Mixture.weights.{name}: expected a positive number ('{weight}'); set how often an epoch sees each image "
                'of the set, or leave the set out',
                code='bad-weight',
            )
    return np.array([max(1, round(size * weights.get(name, 1))) for name, size in sizes.items()])


def require_one_kind(sets: Mapping[str, ViewDataset]) -> None:
    """Raise if images differ in channels or depth, or if a set has views or weights, which would be ignored."""
    kinds = {
        name: f'{part.channels} channels of {dtype_name(part.depth or torch.uint8)}'
        for name, part in sets.items()
    }
    first = next(iter(kinds))
    for name, part in sets.items():
        if isinstance(part, Mixture):
            raise UserError(
                f"Mixture: a set must not be a Mixture itself ('{name}'); list its sets instead",
                code='nested-mixture',
            )
        if any(part.views):
            raise UserError(
                f"Mixture: a set must not have views of its own ('{name}'); set views of the Mixture",
                code='views-of-set',
            )
        if kinds[name] != kinds[first]:
            raise UserError(
                f"Mixture: the images of '{name}' have {kinds[name]}, but those of '{first}' have {kinds[first]}; set the "
                'same channels for both, convert the images, or train on the sets separately',
                code='mixed-images',
            )
