"""Images in shards: WebDataset's and our own tar archives, Arrow and Parquet files of Hugging Face's `datasets`."""

import io
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from mmairl.data.datasets import ViewDataset, Views
from mmairl.data.decode import BYTES_PER_PIXEL, MAX_PIXELS, Reason, UnreadableImage
from mmairl.data.reading import retried
from mmairl.data.shards import far
from mmairl.data.shards.cache import NodeCache
from mmairl.data.shards.formats import parquet_image
from mmairl.data.shards.index import index_of, shards_at
from mmairl.errors import UserError, printable
from mmairl.registry import DATASETS

OPEN = 64  # files that a process keeps open


@DATASETS.register_module()
class Shards(ViewDataset):
    """Images in shards, which are read in place: nothing is unpacked.

    `root` is a shard, a folder of them, a pattern, a list file with a shard a line, or a list of these. Tar archives are
    WebDataset's (an image, and its label in `.cls` or as `label` in `.json`) or made by tools/pack.py; Arrow and Parquet files
    are those of `datasets`. The index of the images is made when the set is first used, and again when a shard has changed.

    >>> Shards('data/imagenet/imagenet-train-{000000..001281}.tar')  # doctest: +SKIP
    """

    def __init__(
        self,
        root: str | Path | Sequence[str],
        views: Views | None = None,
        max_unreadable: float = 0.01,
        max_pixels: int = MAX_PIXELS,
        cache: str | Path | None = None,
        cache_size: int = 2**40,
        channels: int | None = None,
    ) -> None:
        super().__init__(views, channels)
        self.cache = NodeCache(cache, cache_size) if cache else None
        self.root, self.max_unreadable, self.max_pixels = root, max_unreadable, max_pixels
        self.contents = index_of(shards_at(root), self.cache)
        self.classes = self.contents.classes
        self.take_depth()

    @property
    def labels(self) -> torch.Tensor:
        """Mapped from the index: a spawned worker does so itself."""
        return torch.from_numpy(self.contents.labels)

    @property
    def shard_bounds(self) -> list[np.ndarray]:
        """The first image of each shard or row group, and the end, for the sampler's order by shards."""
        return [self.contents.units]

    def name(self, index: int) -> str:
        shard, start, size = self.contents.place(index)
        return f'{self.contents.shards[shard]}/{self.contents.name(index) or f"{start}:{size}"}'

    def member(self, index: int) -> str:
        """The image's name in its shard, or its number where a shard gives none."""
        return self.contents.name(index) or f'{index:09}'

    def encoded(self, index: int) -> bytes:
        shard, start, size = self.contents.place(index)
        name, stamp = self.contents.shards[shard], self.contents.stamps[shard]
        if size > BYTES_PER_PIXEL * self.max_pixels:
            raise UnreadableImage(Reason.TOO_LARGE)

        if self.cache or not far.is_far(name):
            return retried(lambda: read_local(name, stamp, self.cache, start, size), name)
        if far.ending(name).endswith('.parquet'):
            raise UserError(
                f'{printable(name)} is read group by group; set cache of the data set to a folder of this node'
            )
        return far.part(name, stamp, start, size)


def read_local(
    name: str, stamp: far.Stamp, cache: NodeCache | None, start: int, size: int
) -> bytes:
    """An image of a shard that is a file of this node; one that is overwritten while it is open is refused."""
    try:
        file = open_shard(os.getpid(), name, stamp, cache)
        parquet = far.ending(name).endswith('.parquet')
        data = (
            parquet_image(file, name, start, size)
            if parquet
            else os.pread(file.fileno(), size, start)
        )
    except OSError:
        open_shard.cache_clear()  # a mount that went and came back needs its files opened again
        raise
    if not far.is_far(name):
        far.refuse_other(name, far.stamp_in(os.fstat(file.fileno())), stamp)
    return data


@lru_cache(OPEN)
def open_shard(process: int, name: str, stamp: far.Stamp, cache: NodeCache | None) -> io.FileIO:
    """An open shard. Each process has its own, and keeps one that the cache has let go."""
    return io.FileIO(cache.local(name, stamp) if far.is_far(name) else name)
