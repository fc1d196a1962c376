"""The data set `Shards`, which reads images from shards."""

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
from mmairl.data.shards import remote
from mmairl.data.shards.cache import NodeCache
from mmairl.data.shards.columnar import parquet_image
from mmairl.data.shards.index import index_of
from mmairl.data.shards.shard_paths import shards_at
from mmairl.errors import UserError
from mmairl.registry import DATASETS

OPEN = 64  # a process keeps at most this many shards open


@DATASETS.register_module()
class Shards(ViewDataset):
    """Images in shards: tar archives of WebDataset or tools/pack.py, or Arrow and Parquet files of `datasets`.

    In a tar archive, the label of an image is the content of its `.cls` file, or the value of `label` or `cls` in its `.json`
    file. Shards are not unpacked. Instead, an index states where each image is. The index is written when the shards are
    first used, and it is written again when a shard has changed.

    Args:
        root: One shard, a folder of shards, a pattern, a text file with one shard per line, a data set of the Hugging Face
            hub ('hf:NAME' or 'hf:NAME:SPLIT'), or a list of these.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        max_unreadable: Training stops if more than this fraction of the images, and more than 10 images, are unreadable.
            With 0, it stops at the first unreadable image.
        max_pixels: Images with more pixels than this count as unreadable.
        cache: A folder on this node for copies of remote shards. Default: read single images from the remote shards.
        cache_size: Largest size of the cache in bytes.
        channels: Number of channels in the image files. If set, the values are read as stored, without conversion.
            Default: convert every image to 8-bit RGB.

    Raises:
        UserError: If a shard is missing or damaged or has no image, or if its URL may contain a secret.

    Example:
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
        self.root = root
        self.max_unreadable = max_unreadable
        self.max_pixels = max_pixels
        self.contents = index_of(shards_at(root), self.cache)
        self.classes = self.contents.classes
        self.take_depth()

    @property
    def labels(self) -> torch.Tensor:
        """The labels of all images. They share the memory of the index, which is a memory map."""
        return torch.from_numpy(self.contents.labels)

    @property
    def shard_bounds(self) -> list[np.ndarray]:
        """The index of the first image of each shard or row group, followed by the number of images.

        The list contains a single array, because the same attribute of a Mixture contains one array for each set.
        ResumableSampler uses the attribute if its order is 'shards'.
        """
        return [self.contents.units]

    def name(self, index: int) -> str:
        shard, start, size = self.contents.place(index)
        return f'{self.contents.shards[shard]}/{self.contents.name(index) or f"{start}:{size}"}'

    def member(self, index: int) -> str:
        """Return the name of the image in its shard, or the index of the image if the shard has no names."""
        return self.contents.name(index) or f'{index:09}'

    def encoded(self, index: int) -> bytes:
        shard, start, size = self.contents.place(index)
        name = self.contents.shards[shard]
        stamp = self.contents.stamps[shard]
        # In Parquet files, `size` is the row of the image.
        is_parquet = remote.base_name(name).endswith('.parquet')
        if not is_parquet and size > BYTES_PER_PIXEL * self.max_pixels:
            raise UnreadableImage(Reason.TOO_LARGE)
        if self.cache or not remote.is_remote(name):
            return retried(lambda: read_local(name, stamp, self.cache, start, size), name)
        if is_parquet:
            raise UserError(
                f'{name}: remote Parquet files require a cache; set cache of the data set to a folder of this node',
                code='parquet-without-cache',
            )
        return remote.part(name, stamp, start, size)


def read_local(
    name: str, stamp: remote.Stamp, cache: NodeCache | None, start: int, size: int
) -> bytes:
    """Return the file content of an image from a shard that is local or copied. Raise if a local shard was overwritten."""
    try:
        file = open_shard(os.getpid(), name, stamp, cache)
        if remote.base_name(name).endswith('.parquet'):
            data = parquet_image(file, name, start, size)
        else:
            data = os.pread(file.fileno(), size, start)
    except OSError:
        open_shard.cache_clear()  # if a mount was lost and has returned, its files must be opened again
        raise
    if not remote.is_remote(name):
        remote.refuse_other(name, remote.stamp_in(os.fstat(file.fileno())), stamp)
    return data


@lru_cache(OPEN)
def open_shard(process: int, name: str, stamp: remote.Stamp, cache: NodeCache | None) -> io.FileIO:
    """Open a shard once per process. The open file stays readable even if the cache of this node removes the copy."""
    return io.FileIO(cache.local(name, stamp) if remote.is_remote(name) else name)
