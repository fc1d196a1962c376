"""The list of a folder's images, kept between runs: to list a million files anew takes minutes on a network disk."""

import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from mmairl.errors import UserError
from mmairl.files import replacing

KEPT_FROM = 20_000  # files; fewer are listed in no time
SETTLED = 10 * 10**9  # ns; in a folder changed later than that, a further change could fall on the same time stamp
THREADS = 16  # that wait for a network disk, one folder each
Stamp = tuple[int, int]  # when the folder's list of names and when the folder itself last changed, in ns


@dataclass(frozen=True)
class Folder:
    stamp: Stamp
    folders: list[str]
    files: list[str]


def indexed(root: str | Path, extensions: tuple[str, ...]) -> list[str]:
    """The image files below `root`, relative to it: a folder's own in sorted order, then those of its sorted folders.

    The list comes from the user's cache when no folder has changed since it was made, by the time stamps of all of them
    (one look at each folder instead of one at each file). A file that was replaced under its old name is not noticed,
    and need not be: only names are kept. Delete the cache folder's `index` to list everything anew.
    """
    root = Path(root).resolve()
    path = cache_folder() / f'{digest(root, extensions)}.npz'
    if (files := kept(path, root)) is not None:
        return files
    folders = scan(root, extensions)
    files = [os.path.join(at, name) for at, folder in folders.items() for name in folder.files]
    newest = max(max(folder.stamp) for folder in folders.values())
    if len(files) >= KEPT_FROM and time.time_ns() - newest > SETTLED:
        keep(path, folders)
    return files


def cache_folder() -> Path:
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'mmairl' / 'index'


def digest(root: Path, extensions: tuple[str, ...]) -> str:
    return hashlib.sha256('\0'.join([os.fspath(root), *extensions]).encode(errors='surrogateescape')).hexdigest()[:16]


def scan(root: Path, extensions: tuple[str, ...]) -> dict[str, Folder]:
    """Every folder below `root` that is not hidden, in the order of a walk; those of one depth are read side by side."""
    found: dict[str, Folder] = {}
    level = ['']
    with ThreadPoolExecutor(THREADS) as pool:
        while level:
            found.update(zip(level, pool.map(partial(list_folder, root, extensions), level)))
            level = [os.path.join(at, name) for at in level for name in found[at].folders]
    return {at: found[at] for at in walk(found, '')}


def list_folder(root: Path, extensions: tuple[str, ...], at: str) -> Folder:
    """What a folder holds; its stamp is taken first, so that a change while it is read makes the list look old."""
    folders, files = [], []
    try:
        when = stamp(root / at)
        with os.scandir(root / at) as entries:
            for entry in entries:
                if entry.name[0] == '.':
                    continue
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.name.lower().endswith(extensions):
                    files.append(entry.name)
    except OSError as error:
        raise UserError(
            f'{error.filename} cannot be listed ({error.strerror}); mend that, or move it out of {root}.'
        ) from error
    return Folder(when, sorted(folders), sorted(files))


def stamp(folder: Path) -> Stamp:
    """The second changes with anything that is done to the folder, and cannot be set back as the first can."""
    status = folder.stat()
    return status.st_mtime_ns, status.st_ctime_ns


def walk(found: dict[str, Folder], at: str) -> Iterator[str]:
    yield at
    for name in found[at].folders:
        yield from walk(found, os.path.join(at, name))


def keep(path: Path, folders: dict[str, Folder]) -> None:
    """Write the index whole or not at all; a cache that cannot be written only costs the next run its listing."""
    try:
        with replacing(path) as beside, beside.open('wb') as file:
            np.savez(
                file,
                folders=joined(folders),
                stamps=np.array([folder.stamp for folder in folders.values()], np.int64),
                counts=np.array([len(folder.files) for folder in folders.values()], np.int64),
                files=joined(name for folder in folders.values() for name in folder.files),
            )
    except OSError:
        pass


def kept(path: Path, root: Path) -> list[str] | None:
    """The files of the index, or None where there is none, it is broken, or a folder has changed or gone."""
    try:
        with np.load(path, allow_pickle=False) as index:
            folders, stamps, counts = split(index['folders']), index['stamps'], index['counts']
            with ThreadPoolExecutor(THREADS) as pool:
                now = np.array(list(pool.map(stamp, (root / at for at in folders))), np.int64)
            if not np.array_equal(now, stamps):
                return None
            names = iter(split(index['files']))
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    prefixes = [os.path.join(at, '') if at else '' for at in folders]
    return [prefix + next(names) for prefix, count in zip(prefixes, counts.tolist()) for _ in range(count)]


def joined(names: Iterator[str] | dict[str, Folder]) -> np.ndarray:
    """Names as one array of bytes: no name holds a zero byte, and no pickle is needed to read it."""
    return np.frombuffer('\0'.join(names).encode(errors='surrogateescape'), np.uint8)


def split(data: np.ndarray) -> list[str]:
    return data.tobytes().decode(errors='surrogateescape').split('\0')
