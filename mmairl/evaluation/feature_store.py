"""A cache of features on disk: one file per data set, named by a hash of everything the features depend on.

All protocols and later runs share the file of one extraction. The processes of a run fill a file together. If several runs
need the same file, one fills it and the others wait.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from filelock import FileLock, Timeout
from mmengine.dist import barrier, get_rank, get_world_size, is_main_process
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mmairl.errors import explained
from mmairl.evaluation.features import Extraction, Features, on_main_process, readable_rows
from mmairl.evaluation.sets import require_labeled_images
from mmairl.io import explained_disk_errors, replacing


def stored(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """Return the features of a data set from a file. If the file is missing, all processes fill it together.

    The file gets its name only once it is complete.
    """
    require_labeled_images(dataset)
    # The operating system releases the lock of a killed process.
    lock = FileLock(path.with_name(f'.{path.name}.lock'))
    try:
        if not on_main_process(lambda: _is_filled(path, lock)):
            _fill(path, backbone, dataset, how)
    finally:
        lock.release()
    x = read_rows(path, len(dataset))
    return readable_rows(x, dataset.labels, ~x[:, 0].isnan())


def read_rows(path: Path, images: int) -> Tensor:
    """Return the memory-mapped features in a file. Nothing is unpickled."""
    what = f'the features in {path} cannot be read'
    with explained(what, 'remove the file to extract again', code='unreadable-features'):
        x = np.load(path, mmap_mode='c', allow_pickle=False)
        if x.dtype != np.float32 or x.ndim != 2 or len(x) != images:
            raise ValueError(f'it holds {x.dtype} of shape {x.shape} for {images} images')
    return torch.from_numpy(x)


def _is_filled(path: Path, lock: FileLock) -> bool:
    """Return whether the file exists. If it does not, take the lock first, and wait for a run that holds it."""
    if path.is_file():
        return True
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print_log(
                f'another run extracts the same features into {path}: waiting for it',
                logger='current',
            )
            lock.acquire()
    return path.is_file()


def _fill(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Extract a contiguous share of the images in each process, and write the rows into one file.

    A full disk raises an error here. Writing through a memory map would end the process by a signal.
    """
    images = len(dataset)
    first = images * get_rank() // get_world_size()
    end = images * (get_rank() + 1) // get_world_size()
    with ExitStack() as complete, explained_disk_errors(path):
        unfinished = on_main_process(lambda: complete.enter_context(replacing(path)))
        if is_main_process():
            unfinished.touch()
        barrier()
        with unfinished.open('rb+') as file:
            for x, _, _ in how.batches(backbone, Subset(dataset, range(first, end)), first):
                if not file.tell():
                    write_header(file, (images, x.shape[1]))
                    file.seek(first * x.shape[1] * 4, os.SEEK_CUR)
                file.write(x.numpy().tobytes())
        barrier()
    barrier()


def write_header(file: BinaryIO, shape: Sequence[int], kind: str = '<f4') -> None:
    """Write the header of a NumPy file before its rows. Its length depends only on shape and kind."""
    header = dict(descr=kind, fortran_order=False, shape=tuple(shape))
    np.lib.format.write_array_header_1_0(file, header)
