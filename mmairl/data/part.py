"""A part of a training set held out, so that nothing is chosen by the test set."""

import torch
from torch import Tensor

from mmairl.data.listed import ImageSubset
from mmairl.errors import UserError
from mmairl.registry import DATASETS

HELD_OUT = 0.2


def split_by_class(y: Tensor, seed: int = 0, fraction: float = HELD_OUT) -> tuple[Tensor, Tensor]:
    """Positions to fit on and positions held out: a fraction of every class, and at least one image of each.

    Where an image has several labels the fraction is of all images.
    """
    generator = torch.Generator().manual_seed(seed)
    if y.ndim == 2:
        order = torch.randperm(len(y), generator=generator)
        return order[int(fraction * len(y)) :], order[: int(fraction * len(y))]
    fit_part, held_part = [], []
    for label in y.unique():
        members = (y == label).nonzero().flatten()
        if len(members) < 2:
            raise UserError(
                f'class {int(label)} has one training image and some must be held out for validation; add images of it, '
                'leave the class out, or name validation data as evaluation.val'
            )
        members = members[torch.randperm(len(members), generator=generator)]
        held = max(1, int(fraction * len(members)))
        held_part.append(members[:held])
        fit_part.append(members[held:])
    return torch.cat(fit_part), torch.cat(held_part)


@DATASETS.register_module()
class Part(ImageSubset):
    """The images of a data set to fit on, or with `held` those kept back from it; for one seed they make up the whole."""

    def __init__(self, dataset: dict, held: bool, seed: int = 0, fraction: float = HELD_OUT) -> None:
        self.dataset = DATASETS.build(dataset)
        self._keep(split_by_class(self.dataset.labels, seed, fraction)[held].sort().values)
