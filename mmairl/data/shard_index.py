"""Where each image of many shards lies: found once, and kept in files that all processes of a node map into memory.

The files lie in the user's cache, under a digest of the shards' names, sizes and times of change: what was found of other
shards is never used. Each shard is a file of its own until all are found, so that a killed search goes on.
"""

import glob
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from mmengine.dist import is_main_process
from rich.progress import track
from torch.utils.data import DataLoader, Dataset

from mmairl import machine
from mmairl.data import far
from mmairl.data.shard_formats import rows_of
from mmairl.errors import UserError, printable
from mmairl.files import replacing, write_json

SUFFIXES = ('.tar', '.parquet', '.arrow')
THREADS = 16  # that wait for a network disk
FEW = 4  # shards that are searched without other processes


class Index:
    """The images of all shards in order: image i is row i of each array, and shard s has the rows from bounds[s] on."""

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        told = json.loads((folder / 'about.json').read_text())
        self.folder, self.shards = folder, list(shards)
        self.classes: list[str] = told['classes']
        self.stamps = [tuple(stamp) for stamp in told['stamps']]
        self.about: dict = told['about']
        self.map()

    def map(self) -> None:
        """Copy on write, since torch takes no array that cannot be written."""
        for name in ('bounds', 'starts', 'sizes', 'labels', 'name_ends', 'names'):
            setattr(self, name, np.load(self.folder / f'{name}.npy', mmap_mode='c'))

    def __getstate__(self) -> dict:
        """Without the arrays, which a worker that is started anew maps itself."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state)
        self.map()

    def place(self, row: int) -> tuple[int, int, int]:
        """Shard, start and size of an image."""
        return int(np.searchsorted(self.bounds, row, 'right')) - 1, int(self.starts[row]), int(self.sizes[row])

    def name(self, row: int) -> bytes:
        return self.names[self.name_ends[row] : self.name_ends[row + 1]].tobytes()


def index_of(shards: Sequence[str], cache: far.NodeCache | None = None) -> Index:
    """The index of these shards, found now unless that was done before; one process of a node does it."""
    stamps = stamps_of(shards)
    names = hashlib.sha256('\n'.join(shards).encode(errors='surrogateescape')).hexdigest()[:16]
    home = machine.cache() / 'shards' / names
    folder = home / hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
    if not (folder / 'about.json').is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(home / '.lock'):
            if not (folder / 'about.json').is_file():
                build(shards, stamps, folder, cache)
                for old in set(home.iterdir()) - {folder, home / '.lock'}:
                    shutil.rmtree(old)
    return Index(folder, shards)


def build(shards: Sequence[str], stamps: list[far.Stamp], folder: Path, cache: far.NodeCache | None) -> None:
    """Search the shards side by side, then put what was found together."""
    left = [at for at in range(len(shards)) if not part(folder, at).is_file()]
    workers = min(machine.cores(), len(left)) if len(left) > FEW else 0
    own = torch.Generator()  # a run draws the same numbers, whether or not the index is there
    search = DataLoader(
        Search(shards, stamps, left, folder, cache), batch_size=None, num_workers=workers, generator=own
    )
    for _ in track(search, 'looking for images in shards', len(left), disable=not is_main_process()):
        pass
    about = [told_by(part(folder, at)) for at in range(len(shards))]
    refuse_unlike(shards, about)
    classes = about[0]['classes']
    if about[0]['kind'] == 'names':
        classes = sorted({name for one in about for name in one['classes']})
    elif about[0]['kind'] == 'numbers':
        classes = [str(number) for number in range(1 + max(one['highest'] for one in about))]
    bounds, letters = (np.cumsum([0, *(one[what] for one in about)]) for what in ('count', 'letters'))
    np.save(folder / 'bounds.npy', bounds)
    sizes = dict.fromkeys(('starts', 'sizes', 'labels'), bounds[-1]) | dict(name_ends=bounds[-1] + 1, names=letters[-1])
    kept = {
        name: np.lib.format.open_memmap(
            folder / f'{name}.npy', 'w+', np.uint8 if name == 'names' else np.int64, (int(size),)
        )
        for name, size in sizes.items()
    }
    number = {name: at for at, name in enumerate(classes)}
    for at, told in enumerate(about):
        rows = slice(bounds[at], bounds[at + 1])
        with np.load(part(folder, at), allow_pickle=False) as found:
            kept['starts'][rows], kept['sizes'][rows], kept['labels'][rows] = (
                found[name] for name in ('starts', 'sizes', 'labels')
            )
            kept['names'][letters[at] : letters[at + 1]] = found['names']
            kept['name_ends'][bounds[at] + 1 : bounds[at + 1] + 1] = letters[at] + found['name_ends']
        if told['kind'] == 'names':
            kept['labels'][rows] = np.array([number[name] for name in told['classes']])[kept['labels'][rows]]
    for array in kept.values():
        array.flush()
    write_json(folder / 'about.json', dict(classes=classes, stamps=stamps, about=about[0]['about']))
    for at in range(len(shards)):
        part(folder, at).unlink()


def told_by(file: Path) -> dict:
    with np.load(file, allow_pickle=False) as found:
        return json.loads(found['about'].tobytes())


def part(folder: Path, at: int) -> Path:
    return folder / f'shard_{at:06}.npz'


class Search(Dataset):
    """One item a shard: what is found in it is written to its file."""

    def __init__(
        self, shards: Sequence[str], stamps: list[far.Stamp], left: list[int], folder: Path, cache: far.NodeCache | None
    ) -> None:
        self.shards, self.stamps, self.left, self.folder, self.cache = shards, stamps, left, folder, cache

    def __len__(self) -> int:
        return len(self.left)

    def __getitem__(self, item: int) -> int:
        at = self.left[item]
        shard = self.shards[at]
        near = nullcontext(Path(shard)) if not far.is_far(shard) else far.fetched(shard, self.stamps[at], self.cache)
        with near as file:
            found = rows_of(file, printable(shard))
            twin = found.digest(file)
        about = dict(kind=found.kind, classes=found.classes, count=len(found.starts), about=found.about)
        about.update(highest=int(found.labels.max()), letters=sum(map(len, found.names)), digest=twin)
        with replacing(part(self.folder, at)) as beside, beside.open('wb') as written:
            np.savez(
                written,
                starts=found.starts,
                sizes=found.sizes,
                labels=found.labels,
                names=np.frombuffer(b''.join(found.names), np.uint8),
                name_ends=np.cumsum([len(name) for name in found.names]),
                about=np.frombuffer(json.dumps(about).encode(), np.uint8),
            )
        return at


def refuse_unlike(shards: Sequence[str], about: list[dict]) -> None:
    """Shards that are not labelled alike, or that are one shard twice."""
    first, digests = about[0], {}
    for shard, one in zip(shards, about):
        if one['kind'] != first['kind'] or (one['kind'] == 'classes' and one['classes'] != first['classes']):
            raise UserError(
                f'the labels of {printable(shard)} ({one["kind"]}) are not those of {printable(shards[0])} ({first["kind"]})'
                ', or have other classes; give shards of one data set'
            )
        if (twin := digests.setdefault(one['digest'], shard)) is not shard:
            raise UserError(f'the shards {printable(twin)} and {printable(shard)} hold the same images; leave one out')


def stamps_of(shards: Sequence[str]) -> list[far.Stamp]:
    """Size and time of change of each shard."""

    def stamp(shard: str) -> far.Stamp:
        if far.is_far(shard):
            return far.stamp_of(shard)
        try:
            status = os.stat(shard)
        except OSError as error:
            raise UserError(
                f'the shard {printable(shard)} cannot be read ({error.strerror}); bring it back, or correct the pattern'
            ) from error
        return status.st_size, status.st_mtime_ns

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(stamp, shards))


def shards_at(root: str | Path | Sequence[str]) -> list[str]:
    """The shards that a config names: a file, a folder of them, a pattern, a list file (.txt), or a list of all these."""
    if isinstance(root, (list, tuple)):
        found = [shard for one in root for shard in shards_at(one)]
    else:
        found = [shard for one in braces(os.fspath(root)) for shard in files_at(one)]
    if twice := [shard for shard in found if found.count(shard) > 1] if len(set(found)) < len(found) else []:
        raise UserError(f'the shard {printable(twice[0])} is named twice; name it once')
    return found


def files_at(place: str) -> list[str]:
    """The shards of a place without braces."""
    if far.is_far(place):
        ends = place.endswith(SUFFIXES) and '*' not in place
        return [place] if ends else far.listed(place, SUFFIXES)
    if os.path.isdir(place):
        found = sorted(entry.path for entry in os.scandir(place) if entry.name.endswith(SUFFIXES))
        refuse_gaps(found)
    elif place.endswith('.txt'):
        lines = Path(place).read_text('utf-8-sig').splitlines() if os.path.isfile(place) else []
        lines = [line.strip() for line in lines if line.strip()]
        inside = [line if far.is_far(line) else os.path.join(os.path.dirname(place), line) for line in lines]
        found = [shard for one in inside for shard in shards_at(one)]
    elif place.endswith(SUFFIXES):
        found = sorted(glob.glob(place)) if glob.has_magic(place) and not os.path.exists(place) else [place]
    else:
        found = []
    if not found:
        inside = sorted(entry.name for entry in os.scandir(place) if entry.is_dir()) if os.path.isdir(place) else []
        below = f' (below it are {printable(", ".join(inside[:5]))})' if inside else ''
        raise UserError(
            f'{printable(place)} names no shard{below}; give a file {", ".join("NAME" + end for end in SUFFIXES)}, a folder '
            'of them, a pattern such as train-{000000..000146}.tar or train-*.parquet, or a list of shards NAME.txt'
        )
    return [os.path.abspath(shard) for shard in found]


def refuse_gaps(shards: Sequence[str]) -> None:
    """In a folder, names such as train-00003-of-00010.parquet say how many there must be."""
    for one in shards:
        if said := re.fullmatch(r'(.*-)(\d+)(-of-)(\d+)(\D*)', one):
            before, _, of, count, end = said.groups()
            names = [f'{before}{at:0{len(said[2])}}{of}{count}{end}' for at in range(int(count))]
            if missing := sorted(set(names) - set(shards)):
                raise UserError(
                    f'{len(missing)} of the {count} shards are missing, first {printable(missing[0])}; bring them back, or '
                    'name those that are there by a pattern'
                )


def braces(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, as in a shell: a{01..03}.tar, {train,val}.tar."""
    inner = re.search(r'\{([^{}]*)\}', pattern)
    if not inner:
        yield pattern
        return
    if span := re.fullmatch(r'(\d+)\.\.(\d+)', inner[1]):
        first, last = span.groups()
        words = [f'{number:0{len(first)}}' for number in range(int(first), int(last) + 1)]
    else:
        words = inner[1].split(',')
    for word in words:
        yield from braces(pattern[: inner.start()] + word + pattern[inner.end() :])
