"""The splits of a labelled set: their names, a validation part held out of the training images, and missing data."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mmairl.errors import UserError

SPLITS = ('train', 'val', 'train+val', 'test')


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


class Published:
    """What a published set says about itself: the splits it has, the files it wants below its root, and their source."""

    splits: tuple[str, ...] = SPLITS
    layout: str
    source: str

    def require_split(self, split: str) -> None:
        if split not in self.splits:
            names = ', '.join(repr(name) for name in self.splits)
            raise UserError(f'{type(self).__name__} has no split {split!r}; use one of {names}.')

    @contextmanager
    def reading(self, root: str | Path) -> Iterator[None]:
        """Turn what a reader of lists raises when they are missing or broken into one sentence."""
        try:
            yield
        except UserError:
            raise
        except (OSError, RuntimeError, ValueError, LookupError, SyntaxError) as error:
            raise UserError(
                f'{type(self).__name__} cannot be read from {Path(root).resolve()}{reason(error)}: it wants '
                f'{self.layout} there, from {self.source}; put them there or set root of the data set to where they are.'
            ) from error


def reason(error: Exception) -> str:
    """What the sentence can add; torchvision's own words are left out, for they advise a download we do not make."""
    if isinstance(error, RuntimeError):
        return ''
    if isinstance(error, FileNotFoundError) and error.filename:
        return f', where {error.filename} is missing'
    return f' ({type(error).__name__}: {error})'
