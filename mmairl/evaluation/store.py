"""Features on disk, extracted once by all processes together and read by every protocol.

An entry's name is a digest of the weights, of how images are prepared and of the data, so that a change of any is another
entry. It is filled under another name and renamed when it is whole, so that a killed run leaves no half entry.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torchvision
from mmengine.dist import barrier, broadcast_object_list, get_rank, get_world_size, is_main_process
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, Features, require_sound

LAYOUT = 1  # of an entry; raise it when what is stored changes
SAMPLED = 64  # images whose pixels are part of the data's digest, beside every file's name, size and time


def stored(root: Path, backbone: nn.Module | None, dataset: Dataset, described: dict, how: Extraction) -> Features:
    """The features of `dataset`, which `described` builds: read from an entry below `root`, or extracted into one."""
    if not len(dataset):
        raise UserError(f'no images to evaluate: {described} is empty; check the evaluation data in the config')
    entry = root / digest(backbone, dataset, described, how)
    if not _everywhere(entry.is_dir()):
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


def _fill(entry: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Each process extracts a contiguous share of the images into the same two files."""
    name = [f'.{entry.name}.{os.getpid()}.part']
    broadcast_object_list(name)
    beside = entry.with_name(name[0])
    try:
        if is_main_process():
            for left in entry.parent.glob(f'.{entry.name}.*.part'):  # of a run that was killed
                shutil.rmtree(left)
            beside.mkdir(parents=True)
        barrier()
        _write_share(beside, backbone, dataset, how)
        barrier()
        if is_main_process():
            os.replace(beside, entry)
        barrier()
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _write_share(folder: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    rank, processes = get_rank(), get_world_size()
    at, end = (len(dataset) * share // processes for share in (rank, rank + 1))
    files: list[np.ndarray] = []
    for x, y in how.batches(backbone, Subset(dataset, range(at, end))):
        require_sound(Features(x, y), first_image=at)
        if not files:
            files = _open(folder, len(dataset), x, y)
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
