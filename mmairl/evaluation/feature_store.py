"""Store extracted features on disk, so that other protocols and later runs can reuse them.

There is one file per backbone and data set, and its name is a hash of everything that the features depend on. The processes of
a run write a file together. If several runs need the same file, one run writes it and the others wait.
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
    """Return the features of a data set from the file `path`. If the file is missing, all processes write it together.

    A file has a temporary name until it is complete.
    """
    require_labeled_images(dataset)
    # A killed process leaves its lock file behind, but the operating system releases the lock.
    lock = FileLock(path.with_name(f'.{path.name}.lock'))
    try:
        if not on_main_process(lambda: _is_filled(path, lock)):
            _fill(path, backbone, dataset, how)
    finally:
        lock.release()
    x = read_rows(path, len(dataset))
    return readable_rows(x, dataset.labels, ~x[:, 0].isnan())


def read_rows(path: Path, images: int) -> Tensor:
    """Return the features in a file, memory-mapped. Nothing is unpickled, so the file cannot execute code."""
    what = f'the features in {path} cannot be read'
    with explained(
        what, 'remove the file to extract the features again', code='unreadable-features'
    ):
        x = np.load(path, mmap_mode='c', allow_pickle=False)
        if x.dtype != np.float32 or x.ndim != 2 or len(x) != images:
            raise ValueError(
                f'expected float32 features of {images} images; the file has {x.dtype}, shape {x.shape}'
            )
    return torch.from_numpy(x)


def _is_filled(path: Path, lock: FileLock) -> bool:
    """Return whether the file exists. If it is missing, wait for the lock, take it, and check again."""
    if path.is_file():
        return True
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print_log(
                f'another run is writing the same features to {path}; waiting for it',
                logger='current',
            )
            lock.acquire()
    return path.is_file()


def _fill(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Let each process extract a contiguous share of the images and write the rows into one file.

    The bytes are written one after the other, so that a full disk raises an error. If they were written through a memory
    map, a full disk would kill the process.
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
                    # Each process writes the same header.
                    write_header(file, (images, x.shape[1]))
                    file.seek(first * x.shape[1] * 4, os.SEEK_CUR)
                file.write(x.numpy().tobytes())
        barrier()
    barrier()


def write_header(file: BinaryIO, shape: Sequence[int], kind: str = '<f4') -> None:
    """Write the header of a NumPy file."""
    header = dict(descr=kind, fortran_order=False, shape=tuple(shape))
    np.lib.format.write_array_header_1_0(file, header)
