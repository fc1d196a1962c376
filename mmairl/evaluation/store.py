"""Features on disk, extracted once by all processes together and read by every protocol.

An entry's name is a digest of the weights, of how images are prepared and of the data, so that a change of any is another
entry. It is filled under another name and renamed when it is whole, so that a killed run leaves no half entry; of several
runs that want it at the same time one fills it, and the others wait and read.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torchvision
from filelock import BaseFileLock, FileLock, Timeout
from mmengine.dist import barrier, broadcast_object_list, get_rank, get_world_size, is_main_process
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, Features, require_sound
from mmairl.files import FULL

LAYOUT = 1  # of an entry; raise it when what is stored changes
PATIENCE = 10.0  # seconds between two words of the main process while it waits for another run
ELSEWHERE = 'name another folder (tools/evaluate.py --cache)'
SAMPLED = 64  # images whose pixels are part of the data's digest, beside every file's name, size and time


def stored(root: Path, backbone: nn.Module | None, dataset: Dataset, described: dict, how: Extraction) -> Features:
    """The features of `dataset`, which `described` builds: read from an entry below `root`, or extracted into one."""
    if not len(dataset):
        raise UserError(f'no images to evaluate: {described} is empty; check the evaluation data in the config')
    entry = root / digest(backbone, dataset, described, how)
    if not _everywhere(entry.is_dir()):
        with _alone(entry):
            if not _everywhere(entry.is_dir()):  # nor has the run that was waited for filled it
                _fill(entry, backbone, dataset, how)
    return read_entry(entry)


def read_entry(entry: Path) -> Features:
    """The two arrays of an entry, which are plain numbers: NumPy refuses those that would have to be unpickled."""
    try:
        return Features(
            *(torch.from_numpy(np.load(entry / f'{name}.npy', mmap_mode='c', allow_pickle=False)) for name in 'xy')
        )
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise UserError(
            f'the stored features in {entry} cannot be read ({error}); remove that folder to extract them again'
        ) from error


def digest(backbone: nn.Module | None, dataset: Dataset, described: dict, how: Extraction) -> str:
    """The name of an entry."""
    parts = [LAYOUT, torchvision.__version__, described, list(how.mean), list(how.std), str(backbone)]
    digested = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, tensor in () if backbone is None else sorted(backbone.state_dict().items()):
        digested.update(name.encode())
        digested.update(_bytes(tensor))
    digested.update(_bytes(dataset.labels))
    for line in _files(dataset):
        digested.update(line.encode())
    for index in np.linspace(0, len(dataset) - 1, min(SAMPLED, len(dataset))).astype(int):
        digested.update(_bytes(dataset[int(index)]['inputs'][0]))
    return digested.hexdigest()[:32]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def _files(dataset: Dataset) -> Sequence[str]:
    """Name, size and time of change of every file of a data set that reads files, also inside one that wraps it."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    if not hasattr(dataset, 'path'):
        return ()
    paths = (dataset.path(index) for index in range(len(dataset)))
    stats = ((path, path.stat() if path.exists() else None) for path in paths)
    return [f'{path}:{stat and stat.st_size}:{stat and stat.st_mtime_ns}' for path, stat in stats]


def _everywhere(here: bool) -> bool:
    """What the main process sees, so that all take the same way."""
    answer = [here]
    broadcast_object_list(answer)
    return answer[0]


@contextlib.contextmanager
def _alone(entry: Path) -> Iterator[None]:
    """One run at a time fills an entry; the system frees the lock of one that is killed.

    Only the main process holds it. While it waits it tells the others so, whose patience with it has an end.
    """
    lock = FileLock(entry.with_name(f'.{entry.name}.lock'))
    try:
        for tries in count():
            if _everywhere(is_main_process() and _locked(lock)):
                break
            if not tries:
                print_log(f'another run extracts the same features into {entry}: waiting for it', logger='current')
        yield
    finally:
        lock.release()


def _locked(lock: BaseFileLock) -> bool:
    """Whether the lock was got within some seconds."""
    path = Path(lock.lock_file)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=PATIENCE)
    except Timeout:
        return False
    except OSError as error:
        raise UserError(f'features cannot be stored in {path.parent} ({error}); {ELSEWHERE}') from error
    return True


def _fill(entry: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Each process extracts a contiguous share of the images into the same two files."""
    name = [f'.{entry.name}.{os.getpid()}.part']
    broadcast_object_list(name)
    beside = entry.with_name(name[0])
    try:
        if is_main_process():
            # Of a run that was killed: one that lives has the lock.
            for left in entry.parent.glob(f'.{entry.name}.*.part'):
                shutil.rmtree(left)
            beside.mkdir(parents=True)
        barrier()
        _write_share(beside, backbone, dataset, how)
        barrier()
        if is_main_process():
            os.replace(beside, entry)
        barrier()
    except BaseException as error:
        shutil.rmtree(beside, ignore_errors=True)
        if isinstance(error, OSError) and error.errno in FULL:
            raise UserError(
                f'the disk is full: features could not be stored in {entry.parent}; free some space or {ELSEWHERE}'
            ) from error
        raise


def _write_share(folder: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    rank, processes = get_rank(), get_world_size()
    at, end = (len(dataset) * share // processes for share in (rank, rank + 1))
    files: list[np.ndarray] = []
    for x, y in how.batches(backbone, Subset(dataset, range(at, end))):
        require_sound(Features(x, y), first_image=at)
        if not files:
            files = _open(folder, len(dataset), x, y)
            for file in files:
                _take_room(file, at, end)
        for file, values in zip(files, (x, y)):
            file[at : at + len(values)] = values.numpy()
        at += len(x)
    for file in files:
        file.flush()


def _open(folder: Path, count: int, x: Tensor, y: Tensor) -> list[np.ndarray]:
    """The two arrays, made by whichever process comes first and opened by the others."""
    opened = []
    for name, values in (('x', x), ('y', y)):
        path, shape = folder / f'{name}.npy', (count, *values.shape[1:])
        own = folder / f'{name}.{get_rank()}.npy'
        np.lib.format.open_memmap(own, 'w+', values.numpy().dtype, shape).flush()
        with contextlib.suppress(FileExistsError):
            os.link(own, path)
        own.unlink()
        opened.append(np.lib.format.open_memmap(path, 'r+'))
    return opened


def _take_room(file: np.memmap, at: int, end: int) -> None:
    """Have the disk set these rows aside: one that fills up below a mapped file kills the process without a word."""
    if not hasattr(os, 'posix_fallocate'):
        return
    row = file.strides[0]
    with open(file.filename, 'rb+') as opened:
        try:
            os.posix_fallocate(opened.fileno(), file.offset + at * row, (end - at) * row)
        except OSError as error:
            if error.errno in FULL:  # some file systems cannot set room aside
                raise
