"""Find images that two data sets share.

An image is shared if both data sets contain its file or a copy of the file. Images that are in memory are shared if their
pixels are equal.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
from torch.utils.data import Dataset

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage

THREADS = 16  # Parallel reads hide the latency of a network disk.
BLOCK = 256  # number of items that a thread handles at a time
# A leaf is a pair: a data set that wraps no other data set, and the indices of the images to search in it.
Leaf = tuple[Dataset, np.ndarray]


def in_threads(function: Callable, items: Sequence, threads: int = THREADS) -> list:
    """Apply a function to many items in threads. Threads take blocks of items, because taking single items would be slow."""
    starts = range(0, len(items), BLOCK)

    def block_from(start: int) -> list:
        return [function(item) for item in items[start : start + BLOCK]]

    with ThreadPoolExecutor(threads) as pool:
        return list(chain.from_iterable(pool.map(block_from, starts)))


def file_stat(path: str | Path) -> tuple[int, int]:
    """Return the size and modification time of a file, or -1 and 0 if the file is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


def shared_images(
    one: Dataset, two: Dataset, rows: Sequence[int] | None = None
) -> list[tuple[str, str]]:
    """Return the images of `one` that are also in `two`, as pairs of their names in `one` and in `two`.

    If `rows` is set, only these images of `one` are searched in `two`. If all file sizes are known, only files whose size
    occurs in both data sets are read.
    """
    first = list(_leaves(one, rows))
    second = list(_leaves(two))
    first, second = _of_common_size(first, second)
    twins = {digest: name for name, digest in _digests(second)}
    shared = []
    for name, digest in _digests(first):
        if digest in twins:
            shared.append((name, twins[digest]))
    return shared


def _of_common_size(first: list[Leaf], second: list[Leaf]) -> tuple[list[Leaf], list[Leaf]]:
    """Return only the images whose file size occurs in both lists. If a size is unknown, return all images."""
    sizes = [_sizes(*leaf) for leaf in first + second]
    if any(known is None for known in sizes):
        return first, second
    end = len(first)
    of_first = np.concatenate(sizes[:end])
    of_second = np.concatenate(sizes[end:])
    common = np.intersect1d(of_first, of_second)
    leaves = []
    for (dataset, rows), known in zip(first + second, sizes):
        is_common = np.isin(known, common)
        leaves.append((dataset, rows[is_common]))
    return leaves[:end], leaves[end:]


def _leaves(dataset: Dataset, rows: Sequence[int] | None = None) -> Iterator[Leaf]:
    """Yield the leaves of a data set. Data sets that only select, relabel or mix images are unwrapped."""
    if rows is None:
        rows = np.arange(len(dataset))
    rows = np.asarray(rows)
    if hasattr(dataset, 'dataset'):
        indices = getattr(dataset, 'indices', None)
        inner = rows if indices is None else np.asarray(indices)[rows]
        yield from _leaves(dataset.dataset, inner)
    else:
        yield dataset, rows


def _sizes(dataset: Dataset, rows: np.ndarray) -> np.ndarray | None:
    """Return the size of each image's file, or -1 for a missing file.

    Return None if the sizes cannot be found without reading the images.
    """
    sizes = dataset.sizes() if isinstance(dataset, ViewDataset) else None
    return None if sizes is None else sizes[rows]


def _digests(leaves: Sequence[Leaf]) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each readable image and a digest of its content."""
    for dataset, rows in leaves:
        name = getattr(dataset, 'name', 'image {}'.format)
        digest_of = partial(_digest, dataset)
        digests = in_threads(digest_of, rows.tolist())
        for row, digest in zip(rows.tolist(), digests):
            if digest is not None:
                yield name(row), digest


def _digest(dataset: Dataset, row: int) -> bytes | None:
    encoded = getattr(type(dataset), 'encoded', ViewDataset.encoded)
    has_files = encoded is not ViewDataset.encoded
    try:
        if has_files:
            return hashlib.sha256(dataset.encoded(row)).digest()
        if hasattr(dataset, 'raw'):
            image = dataset.raw(row)
        else:
            image, *_ = dataset[row]['inputs']
    except UnreadableImage:
        return None
    pixels = np.ascontiguousarray(image)
    described = f'{pixels.dtype} {pixels.shape} '.encode()
    return hashlib.sha256(described + pixels.tobytes()).digest()
