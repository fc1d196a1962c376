"""Splits of labelled data: a part held out for validation, by number or class by class, and what two splits must share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mmairl.errors import UserError

HELD_OUT = 0.2


@dataclass(frozen=True)
class HeldOut:
    """So many `images` for validation out of a training set `of` so many; one of another size gives the same fraction."""

    images: int
    of: int

    def rows(self, split: str, count: int, seed: int) -> Tensor:
        """Which of `count` images belong to the split, in their order; the test list is whole."""
        if split == 'test':
            return torch.arange(count)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        number = round(count * self.images / self.of)
        return {'train': order[number:], 'val': order[:number], 'train+val': order}[split].sort().values


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
