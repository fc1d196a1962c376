"""The index of the images of many shards: made once, and kept in files that all processes of a node map into memory.

The files lie in the user's cache, under a digest of the shards' names, sizes and times of change, and of the bytes of small
ones, so that a changed shard is searched again. What is found in a shard has a file of its own until all shards are searched,
so that a killed search goes on.
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
VERSION = 3  # of the files below a folder
BRACES = re.compile(r'\{(?:(\d{1,18})\.\.(\d{1,18})|([^{}]*,[^{}]*))\}')
PART = re.compile(r'(.*-)(\d{1,18})-of-(\d{1,18})(\D*)')
MOST = 10**6  # shards by one pattern
FEW = 4  # so many shards are searched without other processes
UNUSED = 30 * 86400  # seconds after which another index of the same shards goes
WHOLE = 256 * 2**20  # bytes of all shards together, up to which every byte counts: it takes a fifth of a second


class Index:
    """The images of all shards in order: image i is item i of each array, and shard s begins at bounds[s]."""

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        content = read_json(folder / 'about.json')
        self.folder, self.shards, self.about = folder, list(shards), content['about']
        self.classes: list[str] = content['classes']
        self.stamps = [tuple(stamp) for stamp in content['stamps']]
        self.bounds = np.cumsum([0, *content['counts']])
        # The same for what is read at once: a shard or, of Parquet, a row group.
        self.units = np.cumsum([0, *content['units']])
        # Copy on write, since torch takes no array that cannot be written.
        self.starts, self.sizes, self.labels, self.name_ends = np.load(folder / 'rows.npy', mmap_mode='c')
        self.names = np.load(folder / 'names.npy', mmap_mode='c')

    def __reduce__(self) -> tuple:
        """Without the arrays: a spawned worker maps them itself."""
        return Index, (self.folder, self.shards)

    def place(self, image: int) -> tuple[int, int, int]:
        """Shard, start and size of an image."""
        return int(np.searchsorted(self.bounds, image, 'right')) - 1, int(self.starts[image]), int(self.sizes[image])

    def name(self, image: int) -> str:
        """The image's name in its shard; '' where the shard gives none."""
        start = self.name_ends[image - 1] if image else 0
        return os.fsdecode(self.names[start : self.name_ends[image]].tobytes())


def index_of(shards: Sequence[str], cache: NodeCache | None = None) -> Index:
    """The index of these shards. It is made if there is none, by one process of a node."""
    stamps, contents = stamps_of(shards)
    if not cache:
        for shard, stamp in zip(shards, stamps):
            far.refuse_unversioned(shard, stamp)
    names = hashlib.sha256('\n'.join(shards).encode(errors='surrogateescape')).hexdigest()[:16]
    home = hardware.cache() / 'shards' / names
    folder = home / hashlib.sha256(json.dumps([VERSION, stamps, contents]).encode()).hexdigest()[:16]
    if not (folder / 'about.json').is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(home / '.lock'):
            if not (folder / 'about.json').is_file():
                build(shards, stamps, folder, cache)
                # Others may be of another node's copies of the shards.
                for old in set(home.iterdir()) - {folder, home / '.lock'}:
                    if old.stat().st_mtime < time.time() - UNUSED:
                        shutil.rmtree(old)
    with suppress(OSError):
        os.utime(folder)  # it is in use
    return Index(folder, shards)


def build(shards: Sequence[str], stamps: list[far.Stamp], folder: Path, cache: NodeCache | None) -> None:
    """Search the shards side by side, then put all together."""
    parts = [folder / f'shard_{at:06}.npz' for at in range(len(shards))]
    left = [place for place in zip(parts, shards, stamps) if not place[0].is_file()]
    workers = min(hardware.cores(), len(left)) if len(left) > FEW else 0
    own = torch.Generator()  # a run draws the same numbers, whether or not the index is there
    loader = DataLoader(
        left, batch_size=None, collate_fn=partial(search, cache=cache), num_workers=workers, generator=own
    )
    for _ in track(loader, 'looking for images in shards', len(left), disable=not is_main_process()):
        pass
    about = []
    for part in parts:
        with np.load(part, allow_pickle=False) as saved:
            about.append(json.loads(str(saved['about'])))
    refuse_unlike(shards, about)
    classes = about[0]['classes']
    if about[0]['kind'] == 'names':
        classes = sorted({name for told in about for name in told['classes']})
    elif about[0]['kind'] == 'numbers':
        classes = [str(number) for number in range(1 + max(told['highest'] for told in about))]
    counts, letters = ([told[what] for told in about] for what in ('count', 'letters'))
    rows = np.lib.format.open_memmap(folder / 'rows.npy', 'w+', np.int64, (4, sum(counts)))
    names = np.lib.format.open_memmap(folder / 'names.npy', 'w+', np.uint8, (sum(letters),))
    number, first, letter = {name: at for at, name in enumerate(classes)}, 0, 0
    for part, told in zip(parts, about):
        _, _, labels, name_ends = here = rows[:, first : first + told['count']]
        with np.load(part, allow_pickle=False) as saved:
            here[:] = saved['rows']
            names[letter : letter + told['letters']] = saved['names']
        name_ends += letter
        if told['kind'] == 'names':
            labels[:] = np.array([*(number[name] for name in told['classes']), -1])[labels]  # -1, of none, is the last
        first, letter = first + told['count'], letter + told['letters']
    rows.flush()
    names.flush()
    units = [size for told in about for size in told['units']]
    content = dict(classes=classes, stamps=stamps, counts=counts, units=units, about=about[0]['about'])
    write_json(folder / 'about.json', content)
    for part in parts:
        part.unlink()


def search(place: tuple[Path, str, far.Stamp], cache: NodeCache | None) -> None:
    """Write the images of a shard to a file of its own."""
    part, shard, stamp = place
    with on_disk(shard, stamp, cache) as file:
        rows = rows_of(file, printable(shard))
    name_ends = np.cumsum([len(name) for name in rows.names])
    about = dict(kind=rows.kind, classes=rows.classes, about=rows.about)
    about.update(count=len(rows.starts), highest=int(rows.labels.max()), letters=int(name_ends[-1]))
    about['units'] = list(rows.groups or [len(rows.starts)])
    with replacing(part) as beside, beside.open('wb') as written:
        np.savez(
            written,
            rows=np.stack([rows.starts, rows.sizes, rows.labels, name_ends]),
            names=np.frombuffer(b''.join(rows.names), np.uint8),
            about=np.array(json.dumps(about)),
        )


def refuse_unlike(shards: Sequence[str], about: list[dict]) -> None:
    """Shards that are not labelled alike."""
    first = about[0]
    for shard, told in zip(shards, about):
        if told['kind'] != first['kind'] or (told['kind'] == 'classes' and told['classes'] != first['classes']):
            raise UserError(
                f'the labels of {printable(shard)} ({told["kind"]}) are not those of {printable(shards[0])} ({first["kind"]})'
                ', or have other classes; give shards of one data set'
            )


def stamps_of(shards: Sequence[str]) -> tuple[list[far.Stamp], list[str]]:
    """Size and time of change of each shard, and of small ones of this machine, which may keep these, a digest."""
    try:
        first = far.stamp_of(shards[0])  # alone: where a storage hangs, a pool waits for all that it has begun
        with ThreadPoolExecutor(THREADS) as pool:
            stamps = [first, *pool.map(far.stamp_of, shards[1:])]
        whole = sum(stamp[0] for stamp in stamps) <= WHOLE and not any(map(far.is_far, shards))
        return stamps, [hashlib.sha256(Path(shard).read_bytes()).hexdigest() for shard in shards if whole]
    except OSError as error:
        raise UserError(
            f'the shard {printable(error.filename)} cannot be read ({error.strerror}); bring it back, or correct the pattern'
        ) from error


def shards_at(root: str | Path | Sequence[str]) -> list[str]:
    """The shards that a config names: a file, a folder of them, a pattern, a list file (.txt), or a list of all these."""
    places = root if isinstance(root, (list, tuple)) else [root]
    names = (name for place in places for name in braces(os.fspath(place)))
    shards = list(islice((shard for name in names for shard in files_at(name)), MOST + 1))
    if len(shards) > MOST:
        raise UserError(
            f'{printable(places[0])} names more than {MOST} shards; correct its numbers', code='many-shards'
        )
    if not shards or len(set(shards)) < len(shards):
        raise UserError('the list of shards is empty, or names one twice; name one or more, each once')
    return shards


def files_at(place: str) -> Iterator[str]:
    """The shards of a place without braces; of a list file, those of its lines."""
    if far.is_far(place) or not place.endswith('.txt') or os.path.isdir(place):
        yield from matching(place)
        return
    folder, lines = os.path.dirname(os.path.abspath(place)), read_lines(place, 'shards')
    for line in lines:
        for name in braces(line if far.is_far(line) else os.path.join(folder, line)):
            yield from matching(name)


def matching(place: str) -> list[str]:
    """The shards of a place that is no list."""
    here, shards, is_folder = os.path.abspath(place), [], os.path.isdir(place)
    if far.is_far(place):
        shards = [place] if far.ending(place).endswith(SUFFIXES) and '*' not in place else far.listed(place, SUFFIXES)
    elif is_folder:
        shards = sorted(entry.path for entry in os.scandir(here) if entry.name.endswith(SUFFIXES) and entry.is_file())
    elif place.endswith(SUFFIXES):
        name = existing(place) if glob.has_magic(place) else place
        rest = place.removeprefix(name)
        shards = sorted(map(os.path.abspath, glob.glob(glob.escape(name) + rest))) if glob.has_magic(rest) else [here]
    if not shards:
        inside = sorted(entry.name for entry in os.scandir(place) if entry.is_dir()) if is_folder else []
        below = f' (below it are {printable(", ".join(inside[:5]))})' if inside else ''
        raise UserError(
            f'{printable(place)} names no shard{below}; give a file {", ".join("NAME" + end for end in SUFFIXES)}, a folder '
            'of them, a pattern such as train-{000000..000146}.tar or train-*.parquet, or a list of shards NAME.txt'
        )
    if is_folder or (far.is_far(place) and shards != [place] and '*' not in place):
        refuse_gaps(shards)
    return shards


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
    """The longest beginning of a pattern that is a folder or file: a name, whatever characters are in it."""
    while pattern and not os.path.exists(pattern):
        pattern = os.path.dirname(pattern)
    return pattern


def braces(pattern: str) -> Iterator[str]:
    """The names that a pattern stands for, as in a shell: a{01..03}.tar, {train,val}.tar; a{1}.tar is a name."""
    pattern = pattern.removeprefix('file://')
    inner = BRACES.search(pattern, len(existing(pattern))) if '{' in pattern else None
    if not inner:
        yield pattern
        return
    if inner[3] is None:
        first, last = int(inner[1]), int(inner[2])
        if abs(last - first) >= MOST:
            raise UserError(f'{printable(pattern)} names more than {MOST} shards; correct its numbers')
        step = 1 if first <= last else -1
        words = [f'{number:0{len(inner[1])}}' for number in range(first, last + step, step)]
    else:
        words = inner[3].split(',')
    for word in words:
        yield from braces(pattern[: inner.start()] + word + pattern[inner.end() :])
