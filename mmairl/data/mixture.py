"""Several data sets as one: how often each is seen in an epoch, and which of them an image is from."""

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
    """The images of several data sets, each set under a name.

    In training, `weights` says how often an epoch sees each image of a set: 2 is twice, 0.3 is three images in ten, and others
    in the next epoch. A set without a weight has 1. Evaluation sees each image once. Classes of one name are one class, and a
    set without classes, or with several an image, has no labels here.

    >>> Mixture(dict(a=dict(type='Shapes'), b=dict(type='ImageFolder', root='b')), weights=dict(b=0.3))  # doctest: +SKIP
    """

    def __init__(
        self,
        sets: Mapping[str, dict | ViewDataset],
        weights: Mapping[str, float] | None = None,
        views: Views | None = None,
    ) -> None:
        super().__init__(views)
        self.sets = {name: DATASETS.build(part) if isinstance(part, dict) else part for name, part in sets.items()}
        inner = {name: innermost_dataset(part) for name, part in self.sets.items()}
        refuse_unfit(inner)
        sizes = [len(part) for part in self.sets.values()]
        self.bounds = np.cumsum([0, *sizes])  # of each set, in the images of all
        self.per_epoch = weighed(dict(zip(self.sets, sizes)), weights) if weights else None
        first = next(iter(inner.values()))
        self.channels, self.as_stored, self.depth = first.channels, first.as_stored, first.depth
        lows, highs = zip(*(part.value_range for part in inner.values()))
        self.value_range = min(lows), max(highs)
        unreadable = [getattr(part, 'max_unreadable', 0) * size for part, size in zip(inner.values(), sizes)]
        self.max_unreadable = sum(unreadable) / len(self)
        self.classes = list(dict.fromkeys(name for part in self.sets.values() for name in part.classes))
        number = {name: at for at, name in enumerate(self.classes)}
        # Of each set, its classes as places among those of all. A label of -1 is the last, too.
        self.places = {name: torch.tensor([*map(number.get, part.classes), -1]) for name, part in self.sets.items()}

    @property
    def labels(self) -> Tensor:
        if not self.classes:
            return torch.tensor(-1).expand(len(self))  # one number, however many images
        return torch.cat([self.joined(name, part.labels) for name, part in self.sets.items()])

    def label(self, index: int) -> Tensor:
        name, part, at = self.place(index)
        return self.joined(name, part.label(at)[None])[0]

    def joined(self, name: str, labels: Tensor) -> Tensor:
        """Labels of a set as places among the classes of all; unknown where an image has several."""
        return self.places[name][labels] if labels.ndim == 1 else torch.full((len(labels),), -1)

    def __len__(self) -> int:
        return int(self.bounds[-1])

    @property
    def origins(self) -> Tensor:
        """The number of each image's set."""
        return torch.arange(len(self.sets)).repeat_interleave(torch.from_numpy(np.diff(self.bounds)))

    @property
    def shard_bounds(self) -> list[np.ndarray] | None:
        """The first image of each shard and the end, for each set; None where some set is not of shards."""
        inside = self.sets.values()
        return [part.contents.units for part in inside] if all(hasattr(part, 'contents') for part in inside) else None

    def place(self, index: int) -> tuple[str, ViewDataset, int]:
        """The image's set, by name and itself, and the image's place there."""
        number = int(np.searchsorted(self.bounds, index, 'right')) - 1
        name = list(self.sets)[number]
        return name, self.sets[name], index - int(self.bounds[number])

    def raw(self, index: int) -> Tensor:
        _, part, at = self.place(index)
        return part.raw(at)

    def name(self, index: int) -> str:
        _, part, at = self.place(index)
        return part.name(at)

    def member(self, index: int) -> str:
        """The name of its set, and its own in there."""
        name, part, at = self.place(index)
        return f'{name}/{part.member(at) if hasattr(part, "member") else part.name(at)}'


def weighed(sizes: Mapping[str, int], weights: Mapping[str, float]) -> np.ndarray:
    """Return the number of images of each set in an epoch."""
    for name, weight in weights.items():
        if name not in sizes:
            raise UserError(
                f"Mixture.weights names '{name}', and the sets are {', '.join(sizes)}{closest(name, sizes)}; "
                'weigh sets that are there'
            )
        if not isinstance(weight, (int, float)) or not 0 < weight < math.inf:
            raise UserError(
                f'Mixture.weights.{name}={weight!r} is no positive number; set how often an epoch sees each image of the set, '
                'or leave the set out'
            )
    return np.array([max(1, round(size * weights.get(name, 1))) for name, size in sizes.items()])


def refuse_unfit(sets: Mapping[str, ViewDataset]) -> None:
    """Refuse sets whose images do not fit into one batch, and sets with views or weights that would not be used."""
    kinds = {
        name: f'{part.channels} channels of {dtype_name(part.depth or torch.uint8)}' for name, part in sets.items()
    }
    for name, part in sets.items():
        first = next(iter(kinds))
        if isinstance(part, Mixture):
            raise UserError(f"the set '{name}' of the Mixture is a Mixture itself; name its sets in one")
        if any(part.views):
            raise UserError(
                f"the set '{name}' of the Mixture has views of its own; give the Mixture the views, for all sets"
            )
        if kinds[name] != kinds[first]:
            raise UserError(
                f"the images of the set '{name}' have {kinds[name]}, and those of '{first}' {kinds[first]}; set channels of "
                'both to the same, convert the images, or train on the sets apart'
            )
