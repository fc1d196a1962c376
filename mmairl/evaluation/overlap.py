"""Images that two data sets share, by content: the same file, a copy under another path, or equal pixels in memory."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
from torch.utils.data import Dataset

from mmairl.data.datasets import FileDataset, ViewDataset
from mmairl.data.decode import UnreadableImage
from mmairl.data.shards.dataset import Shards

THREADS = 16  # reads in flight on a network disk
BLOCK = 1024  # files per task
Leaf = tuple[Dataset, np.ndarray]  # a data set that holds images itself, and the rows taken from it


def shared_images(
    one: Dataset, two: Dataset, rows: Sequence[int] | None = None
) -> list[tuple[str, str]]:
    """Return the name of each image of `one` (or of its `rows`) that is also in `two`, with its name there.

    Only files whose size occurs in both data sets are read.
    """
    first = list(_leaves(one, rows))
    second = list(_leaves(two))
    first, second = _of_common_size(first, second)
    names = {digest: name for name, digest in _digests(second)}
    return [(name, names[digest]) for name, digest in _digests(first) if digest in names]


def _of_common_size(first: list[Leaf], second: list[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
    """Leave out images whose size does not occur on the other side; all stay if a size is unknown."""
    first_sizes = [_sizes(*leaf) for leaf in first]
    second_sizes = [_sizes(*leaf) for leaf in second]
    if any(sizes is None for sizes in [*first_sizes, *second_sizes]):
        return first, second
    common = np.intersect1d(np.concatenate([[], *first_sizes]), np.concatenate([[], *second_sizes]))

    def selected(leaves: list[Leaf], sizes: list[np.ndarray]) -> list[Leaf]:
        return [
            (dataset, rows[np.isin(known, common)]) for (dataset, rows), known in zip(leaves, sizes)
        ]

    return selected(first, first_sizes), selected(second, second_sizes)


def _leaves(dataset: Dataset, rows: Sequence[int] | None = None) -> Iterator[Leaf]:
    """Yield the data sets below those that select, relabel or mix images."""
    rows = np.arange(len(dataset)) if rows is None else np.asarray(rows)
    if hasattr(dataset, 'sets'):
        for part, first, end in zip(dataset.sets.values(), dataset.bounds, dataset.bounds[1:]):
            yield from _leaves(part, rows[(rows >= first) & (rows < end)] - first)
    elif hasattr(dataset, 'dataset'):
        indices = getattr(dataset, 'indices', None)
        yield from _leaves(dataset.dataset, rows if indices is None else np.asarray(indices)[rows])
    else:
        yield dataset, rows


def _sizes(dataset: Dataset, rows: np.ndarray) -> np.ndarray | None:
    """Return the bytes of each image's file, or None if only reading tells."""
    if isinstance(dataset, FileDataset):
        blocks = [rows[at : at + BLOCK] for at in range(0, len(rows), BLOCK)]
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda block: [_size(dataset.path(int(row))) for row in block], blocks)
            return np.array([size for block in found for size in block])
    if isinstance(dataset, Shards) and not _has_parquet(dataset):
        return np.asarray(dataset.contents.sizes)[rows]
    return None


def _size(path: str | os.PathLike) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return -1


def _digests(leaves: Sequence[Leaf]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and a digest of the content of each image that can be read."""
    for dataset, rows in leaves:
        with ThreadPoolExecutor(1 if _has_parquet(dataset) else THREADS) as pool:
            for row, digest in zip(rows, pool.map(partial(_digest, dataset), map(int, rows))):
                if digest is not None:
                    yield _name(dataset, int(row)), digest


def _has_parquet(dataset: Dataset) -> bool:
    """Return whether images are in Parquet files, whose index has no sizes and whose reader supports one thread."""
    return isinstance(dataset, Shards) and any(
        shard.endswith('.parquet') for shard in dataset.contents.shards
    )


def _digest(dataset: Dataset, row: int) -> bytes | None:
    try:
        if getattr(type(dataset), 'encoded', ViewDataset.encoded) is not ViewDataset.encoded:
            return hashlib.sha256(dataset.encoded(row)).digest()
        image = dataset.raw(row) if hasattr(dataset, 'raw') else dataset[row]['inputs'][0]
    except UnreadableImage:
        return None
    pixels = np.ascontiguousarray(image)
    return hashlib.sha256(f'{pixels.dtype} {pixels.shape} '.encode() + pixels.tobytes()).digest()


def _name(dataset: Dataset, row: int) -> str:
    return dataset.name(row) if hasattr(dataset, 'name') else f'image {row}'
