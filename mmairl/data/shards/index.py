"""The index of the images in shards: where each image is, its label and its name.

The index is stored in files that all processes of a node map into memory. The files are in the user's cache, in a folder whose
name is a digest of the names, the sizes and the modification times or versions of the shards. The digest also covers the
content of small local shards, so that changed shards are indexed again. While the index is built, the result for each shard is
in a separate file, so that indexing can resume after an interruption.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from mmengine.dist import is_main_process
from rich.progress import track
from torch.utils.data import DataLoader

from mmairl import hardware
from mmairl.data.shards import remote
from mmairl.data.shards.cache import NodeCache, on_disk
from mmairl.data.shards.columnar import read_arrow, read_parquet
from mmairl.data.shards.tar_files import read_tar
from mmairl.errors import UserError, printable
from mmairl.io import read_json, replacing, write_json

READERS = {'.tar': read_tar, '.parquet': read_parquet, '.arrow': read_arrow}
THREADS = 16  # network disks are slow, so this many threads request the sizes and times of shards
VERSION = 4  # version of the format of the index
FEW = 4  # up to this many shards are indexed in the main process, without worker processes
# Shards are hashed if they have at most this many bytes in total. Hashing this many bytes takes a fifth of a second.
HASHED = 2**28


class Index:
    """The index of the images in all shards. Item i of `starts`, `sizes`, `labels` and `name_ends` describes image i.

    bounds[s] is the index of the first image of shard s.
    """

    def __init__(self, folder: Path, shards: Sequence[str]) -> None:
        content = read_json(folder / 'about.json')
        self.folder = folder
        self.shards = list(shards)
        self.about = content['about']
        self.classes: list[str] = content['classes']
        self.stamps = [tuple(stamp) for stamp in content['stamps']]
        self.bounds = np.cumsum([0, *content['counts']])
        # The index of the first image of each shard or, in Parquet files, of each row group, then the number of all images.
        self.units = np.cumsum([0, *content['units']])
        # The memory maps are copy-on-write, because torch warns about read-only arrays.
        rows = np.load(folder / 'rows.npy', mmap_mode='c')
        self.starts, self.sizes, self.labels, self.name_ends = rows
        self.names = np.load(folder / 'names.npy', mmap_mode='c')

    def __reduce__(self) -> tuple:
        """Pickle the index without its arrays. A spawned data worker maps the arrays into its memory itself."""
        return Index, (self.folder, self.shards)

    def place(self, image: int) -> tuple[int, int, int]:
        """Return the shard of an image as an index into `shards`, and the position and size of the image in the shard."""
        shard = int(np.searchsorted(self.bounds, image, 'right')) - 1
        return shard, int(self.starts[image]), int(self.sizes[image])

    def name(self, image: int) -> str:
        """Return the name of an image in its shard, or '' if the shard has no names."""
        start = self.name_ends[image - 1] if image else 0
        return os.fsdecode(self.names[start : self.name_ends[image]].tobytes())


def index_of(shards: Sequence[str], cache: NodeCache | None = None) -> Index:
    """Return the index of these shards. If the index does not exist yet, one process of the node builds it."""
    stamps = stamps_of(shards)
    for shard, stamp in zip(shards, stamps):
        if remote.is_remote(shard) and not cache and not any(stamp[1:]):
            raise UserError(
                f'{shard}: the storage states no ETag, version or modification time, so a change of the shard could not be '
                'noticed; set cache of the data set to a folder of this node, or use another server',
                code='remote-unversioned',
            )
    state = json.dumps([VERSION, list(shards), stamps, digests_of(shards, stamps)])
    folder = hardware.cache() / 'shards' / hashlib.sha256(state.encode()).hexdigest()[:32]
    if not (folder / 'about.json').is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / '.lock'):
            if not (folder / 'about.json').is_file():
                build_index(shards, stamps, folder, cache)
    return Index(folder, shards)


def stamps_of(shards: Sequence[str]) -> list[remote.Stamp]:
    """Return the size and the modification time or version of each shard."""
    try:
        # The first request runs outside the pool. If the storage hangs, the error then comes without waiting for the other
        # requests.
        first = remote.stamp_of(shards[0])
        with ThreadPoolExecutor(THREADS) as pool:
            return [first, *pool.map(remote.stamp_of, shards[1:])]
    except OSError as error:
        raise UserError(
            f'{error.filename}: the shard cannot be read ({error.strerror}); restore the shard, or correct the pattern',
            code='unreadable-shard',
        ) from error


def digests_of(shards: Sequence[str], stamps: list[remote.Stamp]) -> list[str]:
    """Return digests of the content of the shards, or an empty list if the shards are large or remote.

    Digests are used because a shard can change without a change of its size or modification time.
    """
    if sum(stamp[0] for stamp in stamps) > HASHED or any(map(remote.is_remote, shards)):
        return []
    return [hashlib.sha256(Path(shard).read_bytes()).hexdigest() for shard in shards]


def build_index(
    shards: Sequence[str], stamps: list[remote.Stamp], folder: Path, cache: NodeCache | None
) -> None:
    """Index each shard, then combine the results."""
    parts = [folder / f'shard_{number:06}.npz' for number in range(len(shards))]
    pending = [job for job in zip(parts, shards, stamps) if not job[0].is_file()]
    loader = DataLoader(
        pending,
        batch_size=None,
        collate_fn=partial(index_shard, cache=cache),
        num_workers=min(hardware.cores(), len(pending)) if len(pending) > FEW else 0,
        # A separate generator is used, so that building the index does not change the state of the global generator.
        generator=torch.Generator(),
    )
    is_silent = not is_main_process()
    for _ in track(loader, 'looking for images in shards', len(pending), disable=is_silent):
        pass
    saved = [dict(np.load(part)) for part in parts]
    notes = [json.loads(str(arrays['about'])) for arrays in saved]
    require_like_labels(shards, notes)
    classes = join_classes(notes)
    starts, sizes, labels, name_sizes = np.concatenate([arrays['rows'] for arrays in saved], axis=1)
    if notes[0]['kind'] == 'names':
        number = {name: position for position, name in enumerate(classes)}
        # For each shard, map its labels to indices into `classes`. Label -1 (unlabeled) indexes the last entry, which is -1.
        numbers = [np.array([*map(number.get, note['classes']), -1]) for note in notes]
        labels = np.concatenate([new[arrays['rows'][2]] for new, arrays in zip(numbers, saved)])
    np.save(folder / 'rows.npy', np.stack([starts, sizes, labels, name_sizes.cumsum()]))
    np.save(folder / 'names.npy', np.concatenate([arrays['names'] for arrays in saved]))
    content = dict(
        classes=classes,
        stamps=stamps,
        counts=[sum(note['units']) for note in notes],
        units=[size for note in notes for size in note['units']],
        about=notes[0]['about'],
    )
    write_json(folder / 'about.json', content)
    for part in parts:
        part.unlink()


def index_shard(job: tuple[Path, str, remote.Stamp], cache: NodeCache | None) -> None:
    """Write the index of one shard to a separate file."""
    part, shard, stamp = job
    with on_disk(shard, stamp, cache) as file:
        rows = READERS[file.suffix](file, printable(shard))
    rows.check(shard)
    about = dict(
        kind=rows.label_kind,
        classes=rows.classes,
        about=rows.about,
        highest=max(rows.labels),
        units=rows.groups or [len(rows.starts)],
    )
    name_sizes = list(map(len, rows.names))
    with replacing(part) as temporary, temporary.open('wb') as written:
        np.savez(
            written,
            rows=np.array([rows.starts, rows.sizes, rows.labels, name_sizes], np.int64),
            names=np.frombuffer(b''.join(rows.names), np.uint8),
            about=np.array(json.dumps(about)),
        )


def require_like_labels(shards: Sequence[str], notes: list[dict]) -> None:
    """Raise if the labels of two shards are of different kinds, such as numbers and names, or if two shards state different
    classes.
    """
    first = notes[0]
    keys = ('kind', 'classes') if first['kind'] == 'classes' else ('kind',)
    for shard, note in zip(shards, notes):
        if any(note[key] != first[key] for key in keys):
            fault = f'the classes differ from those in {shards[0]}'
            if note['kind'] != first['kind']:
                fault = f"the labels have the form '{note['kind']}', but those in {shards[0]} have '{first['kind']}'"
            raise UserError(
                f'{shard}: {fault}; set shards of the same data set',
                code='unlike-shards',
            )


def join_classes(notes: list[dict]) -> list[str]:
    """Return the names of the classes of all shards together."""
    if notes[0]['kind'] == 'names':
        return sorted({name for note in notes for name in note['classes']})
    if notes[0]['kind'] == 'numbers':
        highest = max(note['highest'] for note in notes)
        return [str(number) for number in range(highest + 1)]
    return notes[0]['classes']
