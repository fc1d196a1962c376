"""The index of the images of many shards, in files that all processes of a node map into memory.

The files are in the user's cache, under a digest of the shards' names, sizes and modification times, and of the content of
small ones, so that a changed shard is indexed again. The result for each shard has a file of its own until all shards are
done, so that a killed search resumes.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from mmengine.dist import is_main_process
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl import hardware
from mmairl.data.shards import far
from mmairl.data.shards.cache import NodeCache, on_disk
from mmairl.data.shards.formats import rows_of
from mmairl.data.subsets import read_lines
from mmairl.errors import UserError, printable
from mmairl.io import read_json, replacing, write_json

SUFFIXES = ('.tar', '.parquet', '.arrow')
THREADS = 16  # that wait for a network disk
VERSION = 3  # of the index files
BRACES = re.compile(r'\{(?:(\d{1,18})\.\.(\d{1,18})|([^{}]*,[^{}]*))\}')
PART = re.compile(r'(.*-)(\d{1,18})-of-(\d{1,18})(\D*)')
MAX_SHARDS = 10**6  # of one pattern
FEW = 4  # shards that one process indexes alone
UNUSED = 30 * 86400  # seconds after which another index of the same shards is removed
HASHED = (
    256 * 2**20
)  # bytes of all shards up to which their content is hashed, in a fifth of a second


class Index:
    """The images of all shards in order: image i is item i of each array, and shard s begins at bounds[s]."""

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        content = read_json(folder / 'about.json')
        self.folder = folder
        self.shards = list(shards)
        self.about = content['about']
        self.classes: list[str] = content['classes']
        self.stamps = [tuple(stamp) for stamp in content['stamps']]
        self.bounds = np.cumsum([0, *content['counts']])
        # The same for what can only be read whole: a shard or, in Parquet, a row group.
        self.units = np.cumsum([0, *content['units']])
        # Copy on write, because torch accepts no read-only array.
        self.starts, self.sizes, self.labels, self.name_ends = np.load(
            folder / 'rows.npy', mmap_mode='c'
        )
        self.names = np.load(folder / 'names.npy', mmap_mode='c')

    def __reduce__(self) -> tuple:
        """Pickle without the arrays: a spawned worker maps them itself."""
        return Index, (self.folder, self.shards)

    def place(self, image: int) -> tuple[int, int, int]:
        """Return shard, start and size of an image."""
        shard = int(np.searchsorted(self.bounds, image, 'right')) - 1
        return shard, int(self.starts[image]), int(self.sizes[image])

    def name(self, image: int) -> str:
        """Return the image's name in its shard; '' if the shard has no names."""
        start = self.name_ends[image - 1] if image else 0
        return os.fsdecode(self.names[start : self.name_ends[image]].tobytes())


def index_of(shards: Sequence[str], cache: NodeCache | None = None) -> Index:
    """Return the index of these shards. One process of a node creates it if it is missing."""
    stamps, contents = stamps_of(shards)
    if not cache:
        for shard, stamp in zip(shards, stamps):
            far.refuse_unversioned(shard, stamp)
    names = hashlib.sha256('\n'.join(shards).encode(errors='surrogateescape')).hexdigest()[:16]
    home = hardware.cache() / 'shards' / names
    folder = (
        home / hashlib.sha256(json.dumps([VERSION, stamps, contents]).encode()).hexdigest()[:16]
    )
    if not (folder / 'about.json').is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(home / '.lock'):
            if not (folder / 'about.json').is_file():
                build(shards, stamps, folder, cache)
                remove_unused(home, folder)
    with suppress(OSError):
        os.utime(folder)  # it is in use
    return Index(folder, shards)


def remove_unused(home: Path, folder: Path) -> None:
    """Remove old indexes of the same shards. Recent ones may describe another node's copies."""
    for other in set(home.iterdir()) - {folder, home / '.lock'}:
        if other.stat().st_mtime < time.time() - UNUSED:
            shutil.rmtree(other)


def build(
    shards: Sequence[str], stamps: list[far.Stamp], folder: Path, cache: NodeCache | None
) -> None:
    """Index the shards in several processes, then join the results."""
    parts = [folder / f'shard_{number:06}.npz' for number in range(len(shards))]
    pending = [job for job in zip(parts, shards, stamps) if not job[0].is_file()]
    workers = min(hardware.cores(), len(pending)) if len(pending) > FEW else 0
    loader = DataLoader(
        pending,
        batch_size=None,
        collate_fn=partial(search, cache=cache),
        num_workers=workers,
        generator=torch.Generator(),  # a run draws the same numbers, whether or not the index exists
    )
    for _ in track(
        loader, 'looking for images in shards', len(pending), disable=not is_main_process()
    ):
        pass
    notes = []
    for part in parts:
        with np.load(part, allow_pickle=False) as saved:
            notes.append(json.loads(str(saved['about'])))
    refuse_unlike(shards, notes)
    classes = join_classes(notes)
    join_rows(parts, notes, classes, folder)
    content = dict(
        classes=classes,
        stamps=stamps,
        counts=[note['count'] for note in notes],
        units=[size for note in notes for size in note['units']],
        about=notes[0]['about'],
    )
    write_json(folder / 'about.json', content)
    for part in parts:
        part.unlink()


def join_classes(notes: list[dict]) -> list[str]:
    """Return the classes of all shards."""
    if notes[0]['kind'] == 'names':
        return sorted({name for note in notes for name in note['classes']})
    if notes[0]['kind'] == 'numbers':
        highest = max(note['highest'] for note in notes)
        return [str(number) for number in range(highest + 1)]
    return notes[0]['classes']


def join_rows(parts: list[Path], notes: list[dict], classes: list[str], folder: Path) -> None:
    """Write the rows and the names of all shards, shard by shard, into files that are mapped."""
    count = sum(note['count'] for note in notes)
    letters = sum(note['letters'] for note in notes)
    rows = np.lib.format.open_memmap(folder / 'rows.npy', 'w+', np.int64, (4, count))
    names = np.lib.format.open_memmap(folder / 'names.npy', 'w+', np.uint8, (letters,))
    number_of = {name: number for number, name in enumerate(classes)}
    row = letter = 0
    for part, note in zip(parts, notes):
        block = rows[:, row : row + note['count']]
        with np.load(part, allow_pickle=False) as saved:
            block[:] = saved['rows']
            names[letter : letter + note['letters']] = saved['names']
        _, _, labels, name_ends = block
        name_ends += letter
        if note['kind'] == 'names':
            numbers = [number_of[name] for name in note['classes']]
            labels[:] = np.array([*numbers, -1])[labels]  # the last serves the label -1
        row += note['count']
        letter += note['letters']
    rows.flush()
    names.flush()


def search(job: tuple[Path, str, far.Stamp], cache: NodeCache | None) -> None:
    """Write the images of a shard to a file of its own."""
    part, shard, stamp = job
    with on_disk(shard, stamp, cache) as file:
        rows = rows_of(file, printable(shard))
    name_ends = np.cumsum([len(name) for name in rows.names])
    about = dict(
        kind=rows.kind,
        classes=rows.classes,
        about=rows.about,
        count=len(rows.starts),
        highest=int(rows.labels.max()),
        letters=int(name_ends[-1]),
        units=list(rows.groups or [len(rows.starts)]),
    )
    with replacing(part) as temporary, temporary.open('wb') as written:
        np.savez(
            written,
            rows=np.stack([rows.starts, rows.sizes, rows.labels, name_ends]),
            names=np.frombuffer(b''.join(rows.names), np.uint8),
            about=np.array(json.dumps(about)),
        )


def refuse_unlike(shards: Sequence[str], notes: list[dict]) -> None:
    """Raise if the labels of two shards are of different kinds or classes."""
    first = notes[0]
    for shard, note in zip(shards, notes):
        if note['kind'] != first['kind'] or (
            note['kind'] == 'classes' and note['classes'] != first['classes']
        ):
            raise UserError(
                f'the labels of {printable(shard)} ({note["kind"]}) are not those of {printable(shards[0])} ({first["kind"]})'
                ', or have other classes; set shards of one data set',
                code='unlike-shards',
            )


def stamps_of(shards: Sequence[str]) -> tuple[list[far.Stamp], list[str]]:
    """Return size and modification time of each shard, and digests of small local ones, which may keep both."""
    try:
        first = far.stamp_of(
            shards[0]
        )  # alone: if a storage hangs, a pool waits for all requests that it has begun
        with ThreadPoolExecutor(THREADS) as pool:
            stamps = [first, *pool.map(far.stamp_of, shards[1:])]
        if sum(stamp[0] for stamp in stamps) > HASHED or any(map(far.is_far, shards)):
            return stamps, []
        return stamps, [hashlib.sha256(Path(shard).read_bytes()).hexdigest() for shard in shards]
    except OSError as error:
        raise UserError(
            f'the shard {printable(error.filename)} cannot be read ({error.strerror}); restore it, or correct the pattern',
            code='unreadable-shard',
        ) from error


def shards_at(root: str | Path | Sequence[str]) -> list[str]:
    """Return the shards of a config: a file, a folder of them, a pattern, a list file (.txt), or a list of all these."""
    places = root if isinstance(root, (list, tuple)) else [root]
    names = (name for place in places for name in braces(os.fspath(place)))
    shards = list(islice((shard for name in names for shard in files_at(name)), MAX_SHARDS + 1))
    if len(shards) > MAX_SHARDS:
        raise UserError(
            f'{printable(places[0])} names more than {MAX_SHARDS} shards; correct its numbers',
            code='many-shards',
        )
    if not shards or len(set(shards)) < len(shards):
        raise UserError(
            'the list of shards is empty, or names one twice; name one or more, each once',
            code='bad-shard-list',
        )
    return shards


def files_at(place: str) -> Iterator[str]:
    """Yield the shards of a place without braces; for a list file, those of its lines."""
    if far.is_far(place) or not place.endswith('.txt') or os.path.isdir(place):
        yield from matching(place)
        return
    folder = os.path.dirname(os.path.abspath(place))
    for line in read_lines(place, 'shards'):
        for name in braces(line if far.is_far(line) else os.path.join(folder, line)):
            yield from matching(name)


def matching(place: str) -> list[str]:
    """Return the shards of a file, folder or pattern. Raise if there are none, or if some of a folder are missing."""
    is_folder = os.path.isdir(place)
    if far.is_far(place):
        is_file = far.ending(place).endswith(SUFFIXES) and '*' not in place
        shards = [place] if is_file else far.listed(place, SUFFIXES)
        is_folder = not is_file and '*' not in place
    elif is_folder:
        entries = os.scandir(os.path.abspath(place))
        shards = sorted(
            entry.path for entry in entries if entry.name.endswith(SUFFIXES) and entry.is_file()
        )
    else:
        shards = local_matches(place) if place.endswith(SUFFIXES) else []
    if not shards:
        raise UserError(
            f'{printable(place)} names no shard{folders_below(place)}; set a file '
            f'{", ".join("NAME" + suffix for suffix in SUFFIXES)}, a folder of them, a pattern such as '
            'train-{000000..000146}.tar or train-*.parquet, or a list of shards NAME.txt',
            code='no-shards',
        )
    if is_folder:
        refuse_gaps(shards)
    return shards


def local_matches(place: str) -> list[str]:
    """Return the files of a pattern. A name that exists is not a pattern, whatever characters it has."""
    name = existing(place) if glob.has_magic(place) else place
    pattern = place.removeprefix(name)
    if not glob.has_magic(pattern):
        return [os.path.abspath(place)]
    return sorted(map(os.path.abspath, glob.glob(glob.escape(name) + pattern)))


def folders_below(place: str) -> str:
    """Name the folders in a folder that has no shards, for an error message."""
    if not os.path.isdir(place):
        return ''
    names = sorted(entry.name for entry in os.scandir(place) if entry.is_dir())
    return f' (it contains the folders {printable(", ".join(names[:5]))})' if names else ''


def refuse_gaps(shards: Sequence[str]) -> None:
    """Raise if shards of a folder are missing: names such as train-00003-of-00010.parquet state how many there must be."""
    numbers, first_parts = defaultdict(set), {}
    for shard in shards:
        if part := PART.fullmatch(shard):
            series = part[1], part[3], part[4]
            numbers[series].add(int(part[2]))
            first_parts.setdefault(series, part)
    for series, present in numbers.items():
        part, count = first_parts[series], int(series[1])
        missing = count - sum(number < count for number in present)
        if missing:
            first = next(number for number in range(count) if number not in present)
            name = f'{part[1]}{first:0{len(part[2])}}-of-{part[3]}{part[4]}'
            raise UserError(
                f'{missing} of the {part[3]} shards are missing, first {printable(name)}; bring them back, or '
                'name those that are there by a pattern',
                code='missing-shards',
            )


def existing(pattern: str) -> str:
    """Return the longest beginning of a pattern that is a folder or file: a name, whatever characters it has."""
    while pattern and not os.path.exists(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def braces(pattern: str) -> Iterator[str]:
    """Yield the names of a pattern, as in a shell: a{01..03}.tar, {train,val}.tar. a{1}.tar is a name."""
    pattern = pattern.removeprefix('file://')
    inner = BRACES.search(pattern, len(existing(pattern))) if '{' in pattern else None
    if not inner:
        yield pattern
        return
    words = number_range(inner[1], inner[2], pattern) if inner[3] is None else inner[3].split(',')
    for word in words:
        yield from braces(pattern[: inner.start()] + word + pattern[inner.end() :])


def number_range(first: str, last: str, pattern: str) -> list[str]:
    """Return the numbers from first to last, with the digits of the first."""
    start = int(first)
    end = int(last)
    if abs(end - start) >= MAX_SHARDS:
        raise UserError(
            f'{printable(pattern)} names more than {MAX_SHARDS} shards; correct its numbers',
            code='many-shards',
        )
    step = 1 if start <= end else -1
    return [f'{number:0{len(first)}}' for number in range(start, end + step, step)]
