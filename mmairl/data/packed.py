"""A data set in one file: a plain tar archive of the images with its own table of contents.

One file instead of a million is what network disks, quotas and copies to a node's own disk ask for. Any tar program
reads the archive; the table of contents lets this one take an image out of its middle.
"""

import io
import os
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmairl.data.decode import BYTES_PER_PIXEL, MAX_PIXELS, decode_bytes
from mmairl.data.folders import FileDataset
from mmairl.data.reading import PAUSES, Unreadable, name, read_file
from mmairl.data.views import ViewDataset
from mmairl.errors import UserError
from mmairl.files import replacing
from mmairl.registry import DATASETS

POINTER, CONTENTS = '.mmairl/pointer', '.mmairl/contents.npz'  # the archive's first and last member
HEADER = 512  # of a tar member, before its bytes
DIGITS = 20


@DATASETS.register_module()
class Packed(ViewDataset):
    """The images of a folder in the one file that tools/pack.py has made of it: the same items in the same order.

    Images that could not be read were left out when it was made, so one that cannot now means a damaged archive.

    >>> Packed('data/imagenet/train.tar', views=[[dict(type='RandomResizedCrop', size=224)]])
    """

    def __init__(
        self, root: str | Path, views: Sequence[Sequence[dict]] | None = None, max_pixels: int = MAX_PIXELS
    ) -> None:
        super().__init__(views)
        self.root, self.max_pixels = Path(root), max_pixels
        self.file: io.FileIO | None = None
        contents = read_contents(self.root)
        self.starts, self.sizes = contents['starts'], contents['sizes']
        self.labels = torch.from_numpy(contents['labels'])
        self.classes = names(contents['classes'])

    def raw(self, index: int) -> Tensor:
        try:
            return decode_bytes(self.read(index), self.max_pixels)
        except Unreadable as fault:
            raise UserError(
                f'Image {index} of {self.root} {fault}, so the archive is damaged (all of its images could be read when '
                'it was made); make it anew with tools/pack.py.'
            ) from fault

    def read(self, index: int) -> bytes:
        """The bytes of an image file, asked for again after growing pauses where the file system fails."""
        for pause in (*PAUSES, None):
            try:
                return os.pread(self.descriptor(), int(self.sizes[index]), int(self.starts[index]))
            except OSError as error:
                if pause is None:
                    raise UserError(
                        f'The file system of {self.root} does not answer ({name(error)}) after {len(PAUSES) + 1} tries '
                        f'over {sum(PAUSES):.1f} s; check the mount, then go on with --resume.'
                    ) from error
                self.file = None  # a mount that went away and came back wants the file to be opened again
                time.sleep(pause)
        raise AssertionError('the last try returns or raises')

    def descriptor(self) -> int:
        """Of the archive; forked workers may share it, because every reading says where."""
        if self.file is None:
            self.file = io.FileIO(self.root)
        return self.file.fileno()

    def __getstate__(self) -> dict:
        return {**self.__dict__, 'file': None}  # a worker that is started anew opens the archive itself


class Checked(Dataset):
    """The files of a data set as they are stored, or why one of them cannot be read: in parallel, below a loader."""

    def __init__(self, dataset: FileDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> bytes | str:
        files = self.dataset
        try:
            data = read_file(files.path(index), files.root, BYTES_PER_PIXEL * files.max_pixels)
            decode_bytes(data, files.max_pixels)
        except Unreadable as fault:
            return fault.reason.phrase
        return data


def pack(dataset: FileDataset, out: str | Path, workers: int = 0) -> Iterator[tuple[str, str | None]]:
    """Write the archive, whole or not at all; yields each file and, where it is left out, why it cannot be read."""
    rows: list[tuple[int, int, int]] = []
    left_out = 0
    loader = DataLoader(Checked(dataset), batch_size=None, num_workers=workers, collate_fn=as_it_is)
    with replacing(out) as beside, tarfile.open(beside, 'w') as archive:
        add(archive, POINTER, b'0' * DIGITS)
        for index, data in enumerate(loader):
            path = dataset.path(index).relative_to(dataset.root).as_posix()
            if isinstance(data, str):
                left_out += 1
                if left_out > dataset.allowed:
                    raise UserError(
                        f'{left_out} of the first {index + 1} images in {dataset.root} cannot be read, {path} '
                        f'{data}; mend or remove them, or raise --max-unreadable.'
                    )
            else:
                rows.append((add(archive, path, data), len(data), int(dataset.labels[index])))
            yield path, data if isinstance(data, str) else None
        starts, sizes, labels = np.array(rows, np.int64).reshape(-1, 3).T
        start = add(archive, CONTENTS, contents(starts=starts, sizes=sizes, labels=labels, classes=dataset.classes))
        archive.fileobj.seek(HEADER)
        archive.fileobj.write(f'{start:0{DIGITS}d}'.encode())
        archive.fileobj.seek(archive.offset)


def as_it_is(data: bytes | str) -> bytes | str:
    return data


def contents(starts: np.ndarray, sizes: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> bytes:
    """The table of contents; the classes as one array of bytes, because numpy would pickle text."""
    file = io.BytesIO()
    text = bytearray('\0'.join(classes).encode(errors='surrogateescape'))
    np.savez(file, starts=starts, sizes=sizes, labels=labels, classes=np.array(text, np.uint8))
    return file.getvalue()


def add(archive: tarfile.TarFile, path: str, data: bytes) -> int:
    """Append a member; returns where its bytes start."""
    info = tarfile.TarInfo(path)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
    archive.members.clear()  # a million of them would fill the memory
    return archive.offset - -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def read_contents(path: Path) -> dict[str, np.ndarray]:
    """The table of contents, found by the pointer at the archive's start."""
    if not path.is_file():
        raise UserError(f'The archive {path.resolve()} does not exist; make it with tools/pack.py FOLDER {path}')
    with path.open('rb') as file:
        pointer = file.read(HEADER + DIGITS)
        if not pointer.startswith(POINTER.encode()):
            raise UserError(f'{path} is no archive of tools/pack.py; make one with tools/pack.py FOLDER {path}')
        try:
            file.seek(int(pointer[HEADER:]))
            with np.load(io.BytesIO(file.read()), allow_pickle=False) as table:
                found = dict(table)
            ends = found['starts'] + found['sizes']
            inside = (found['starts'] > 0) & (found['sizes'] > 0) & (ends <= path.stat().st_size)
            if not inside.all() or len(found['labels']) != len(ends) or 'classes' not in found:
                raise ValueError('its table of contents is wrong')
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f'{path} is cut short or damaged ({error}); make it anew with tools/pack.py.') from error
    return found


def names(data: np.ndarray) -> list[str]:
    """Of the classes; none for images without labels."""
    text = data.tobytes().decode(errors='surrogateescape')
    return text.split('\0') if text else []
