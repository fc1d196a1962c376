"""Images in shards: WebDataset's and our own tar archives, Arrow and Parquet files of Hugging Face's `datasets`."""

import io
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from mmairl.data import far
from mmairl.data.far import NodeCache
from mmairl.data.images import BYTES_PER_PIXEL, MAX_PIXELS, Reason, UnreadableImage, retried
from mmairl.data.shard_formats import row_group
from mmairl.data.shard_index import index_of, shards_at
from mmairl.data.views import ViewDataset, Views
from mmairl.errors import UserError, printable
from mmairl.registry import DATASETS

OPEN = 64  # files that a process keeps open


@DATASETS.register_module(name=['Shards', 'Packed'])
class Shards(ViewDataset):
    """The images of shards, each at its place, without writing them out.

    `root` is a shard, a folder of them, a pattern, a list file with a shard a line, or a list of these. Tar archives are
    WebDataset's (an image, and its label in `.cls` or as `label` in `.json`) or made by tools/pack.py; Arrow and Parquet files
    are those of `datasets`. Where each image lies is found when the set is first used, and again when a shard has changed.

    >>> Shards('data/imagenet/imagenet-train-{000000..001281}.tar', views=[[dict(type='CenterCrop', size=224)]])
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
        self.__setstate__({})
        self.take_depth()

    def __getstate__(self) -> dict:
        """Without what a worker that is started anew opens itself."""
        return {name: value for name, value in vars(self).items() if name not in ('files', 'labels')}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self.classes, self.labels = self.contents.classes, torch.from_numpy(self.contents.labels)
        self.files: OrderedDict[tuple[int, int], BinaryIO] = OrderedDict()

    @property
    def shard_bounds(self) -> list[np.ndarray]:
        """Where each shard begins and ends: what the sampler orders them by."""
        return [self.contents.bounds]

    def name(self, index: int) -> str:
        shard, start, size = self.contents.place(index)
        return f'{self.contents.shards[shard]}/{os.fsdecode(self.contents.name(index)) or f"{start}:{size}"}'

    def path(self, index: int) -> Path:
        """The image's name below its shard; no such file is there."""
        return Path(self.name(index))

    def files_in_order(self) -> Iterator[bytes]:
        return map(self.contents.name, range(len(self)))

    def member(self, index: int) -> str:
        """The image's name in its shard, or its number where a shard gives none."""
        return os.fsdecode(self.contents.name(index)) or f'{index:09}'

    def encoded(self, index: int) -> bytes:
        """The image's file as it is stored."""
        shard, start, size = self.contents.place(index)
        return retried(lambda: self.read(shard, start, size), self.contents.shards[shard])

    def raw(self, index: int) -> Tensor:
        try:
            return self.decoded(self.encoded(index), index)
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, printable(self.name(index)), '; mend or remove it') from fault

    def read(self, shard: int, start: int, size: int) -> bytes:
        """The bytes of an image file."""
        if size > BYTES_PER_PIXEL * self.max_pixels:
            raise UnreadableImage(Reason.TOO_LARGE)
        name, stamp = self.contents.shards[shard], self.contents.stamps[shard]
        try:
            file = self.opened(shard)
            if name.endswith('.parquet'):
                data = row_group(file.name, name, stamp, start)[size].as_py()
            elif isinstance(file, io.FileIO):
                data = os.pread(file.fileno(), size, start)
            else:
                data = far.read(file, name, start, size)
        except OSError:
            self.files.pop((os.getpid(), shard), None)  # a mount that went and came back needs the file opened again
            raise
        if not data:
            raise UnreadableImage(Reason.EMPTY)
        return data

    def opened(self, shard: int) -> BinaryIO:
        """The open shard, each process having its own: connections do not survive a fork."""
        at = os.getpid(), shard
        if at not in self.files:
            if len(self.files) >= OPEN:
                self.files.popitem(last=False)
            self.files[at] = self.open(self.contents.shards[shard], self.contents.stamps[shard])
        self.files.move_to_end(at)
        return self.files[at]

    def open(self, name: str, stamp: far.Stamp) -> BinaryIO:
        if not far.is_far(name):
            file = io.FileIO(name)
            status = os.fstat(file.fileno())
            far.refuse_other(name, (status.st_size, status.st_mtime_ns), stamp)
            return file
        if self.cache:
            return io.FileIO(self.cache.local(name, stamp))
        if name.endswith('.parquet'):
            raise UserError(
                f'{printable(name)} is read group by group; set cache of the data set to a folder of this node'
            )
        return far.opened(name, stamp)
