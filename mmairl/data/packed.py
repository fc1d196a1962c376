"""A data set in one file: a plain tar archive of the images with its own table of contents.

One file instead of a million is what network disks, quotas and copies to a node's own disk ask for. Any tar program
reads the archive; the table of contents lets this one take an image out of its middle.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from mmairl.data.folders import FileDataset
from mmairl.data.images import UnreadableImage, decode_bytes, read_file, retried
from mmairl.data.training import unreadable_allowed
from mmairl.data.views import ViewDataset, Views
from mmairl.errors import UserError, printable
from mmairl.files import replacing
from mmairl.registry import DATASETS

POINTER, CONTENTS = '.mmairl/pointer', '.mmairl/contents.npz'  # the archive's first and last member
HEADER = 512  # bytes of a tar member's header
DIGITS = 20


@DATASETS.register_module()
class Packed(ViewDataset):
    """The images of a folder in the one file that tools/pack.py has made of it: the same items in the same order.

    Images that could not be read were left out when it was made, so one that cannot be read means a damaged archive.

    >>> Packed('data/imagenet/train.tar', views=[[dict(type='RandomResizedCrop', size=224)]])
    """

    def __init__(self, root: str | Path, views: Views | None = None) -> None:
        super().__init__(views)
        self.root = Path(root)
        self.file: io.FileIO | None = None
        contents = read_contents(self.root)
        self.starts, self.sizes = contents['starts'], contents['sizes']
        self.labels = torch.from_numpy(contents['labels'])
        text = contents['classes'].tobytes().decode(errors='surrogateescape')
        self.classes = text.split('\0') if text else []

    def raw(self, index: int) -> Tensor:
        try:
            return decode_bytes(retried(lambda: self.read(index), self.root))
        except UnreadableImage as fault:
            raise UserError(
                f'image {index} of {self.root} {fault.reason.phrase}, so the archive is damaged (all of its images could '
                'be read when it was made); make it anew with tools/pack.py'
            ) from fault

    def read(self, index: int) -> bytes:
        """The bytes of an image file. Forked workers share the open archive, since each read says where."""
        try:
            self.file = self.file or io.FileIO(self.root)
            return os.pread(self.file.fileno(), int(self.sizes[index]), int(self.starts[index]))
        except OSError:
            self.file = None  # a mount that went away and came back needs the file opened again
            raise

    def __getstate__(self) -> dict:
        return {**self.__dict__, 'file': None}  # a spawned worker opens the archive itself


class Checked(Dataset):
    """The files of a data set as they are stored, or why one cannot be read: loaded in parallel by data workers."""

    def __init__(self, dataset: FileDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> bytes | str:
        files = self.dataset
        try:
            data = read_file(files.path(index), files.root, files.max_pixels)
            decode_bytes(data, files.max_pixels)
        except UnreadableImage as fault:
            return fault.reason.phrase
        return data


def pack(dataset: FileDataset, out: str | Path, workers: int = 0) -> Iterator[tuple[str, str | None]]:
    """Write the archive, whole or not at all; yields each file and, where it is left out, why it cannot be read."""
    rows: list[tuple[int, int, int]] = []
    left_out = 0
    with replacing(out) as beside, tarfile.open(beside, 'w') as archive:
        add(archive, POINTER, b'0' * DIGITS)
        for index, data in enumerate(DataLoader(Checked(dataset), batch_size=None, num_workers=workers)):
            path = dataset.path(index).relative_to(dataset.root).as_posix()
            if isinstance(data, str):
                left_out += 1
                if left_out > unreadable_allowed(len(dataset), dataset.max_unreadable):
                    raise UserError(
                        f'{left_out} of the first {index + 1} images in {dataset.root} cannot be read, {printable(path)} '
                        f'{data}; mend or remove them, or raise --max-unreadable'
                    )
            else:
                rows.append((add(archive, path, data), len(data), int(dataset.labels[index])))
            yield path, data if isinstance(data, str) else None
        starts, sizes, labels = np.array(rows, np.int64).reshape(-1, 3).T
        # The classes as one array of bytes, because numpy would pickle text.
        text = bytearray('\0'.join(dataset.classes).encode(errors='surrogateescape'))
        table = io.BytesIO()
        np.savez(table, starts=starts, sizes=sizes, labels=labels, classes=np.array(text, np.uint8))
        start = add(archive, CONTENTS, table.getvalue())
        archive.fileobj.seek(HEADER)
        archive.fileobj.write(f'{start:0{DIGITS}d}'.encode())
        archive.fileobj.seek(archive.offset)


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
        raise UserError(f'the archive {path.resolve()} does not exist; make it with tools/pack.py FOLDER {path}')
    with path.open('rb') as file:
        pointer = file.read(HEADER + DIGITS)
        if not pointer.startswith(POINTER.encode()):
            raise UserError(f'{path} is no archive of tools/pack.py; make one with tools/pack.py FOLDER {path}')
        try:
            file.seek(int(pointer[HEADER:]))
            table = io.BytesIO(file.read())
            if any(member.compress_type != ZIP_STORED for member in ZipFile(table).infolist()):
                raise ValueError('its table of contents is compressed')  # and could fill the memory
            with np.load(table, allow_pickle=False) as arrays:
                found = {name: arrays[name] for name in ('starts', 'sizes', 'labels', 'classes')}
            ends = found['starts'] + found['sizes']
            inside = (found['starts'] > 0) & (found['sizes'] > 0) & (ends <= path.stat().st_size)
            if not inside.all() or len(found['labels']) != len(ends):
                raise ValueError('its table of contents is wrong')
        except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
            raise UserError(f'{path} is cut short or damaged ({error}); make it anew with tools/pack.py') from error
    return found
