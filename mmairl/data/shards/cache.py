"""Shards as files of this node: local ones where they are, far ones copied, with a cache for all processes or for a moment."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from mmairl.data.shards.far import Stamp, copy, ending, is_far
from mmairl.errors import UserError
from mmairl.io import replacing

LEFT_OVER = 3600  # seconds without a write after which a temporary file is of a killed process


@contextmanager
def on_disk(shard: str, stamp: Stamp, cache: 'NodeCache | None') -> Iterator[Path]:
    """The whole shard as a file; a far one for as long as the block lasts or, with a cache, for longer."""
    if not is_far(shard):
        yield Path(shard)
    elif cache:
        yield cache.local(shard, stamp)
    else:
        with TemporaryDirectory() as folder:
            file = Path(folder) / ending(shard)
            file.touch()
            copy(shard, stamp, file)
            yield file


class NodeCache:
    """Whole shards on a disk of the node, for all its processes: at most `size` bytes; the least recently used go first."""

    def __init__(self, folder: str | Path, size: int) -> None:
        # A folder of our own, so that no file of the user is counted or removed.
        self.folder, self.size = Path(folder) / 'mmairl_shards', size

    def local(self, url: str, stamp: Stamp) -> Path:
        """The shard's file, copied first where it is not there."""
        name = (
            hashlib.sha256(f'{url} {stamp}'.encode()).hexdigest()[:32]
            + os.path.splitext(ending(url))[1]
        )
        file = self.folder / name
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f'.{name}.lock'):
                if not file.is_file():
                    with replacing(file) as beside:
                        self.make_room(beside, stamp[0])
                        copy(url, stamp, beside)
        os.utime(file)
        return file

    def make_room(self, file: Path, size: int) -> None:
        """Remove the oldest shards, and reserve the room for this one. A process that reads an old one has it open."""
        if size > self.size:
            raise UserError(
                f'the cache {self.folder} may have {self.size} bytes and a shard has {size}; set a larger cache_size'
            )
        with FileLock(self.folder / '.room'):
            held = []
            for file_there in self.folder.iterdir():
                with suppress(FileNotFoundError):  # another process has just renamed it
                    held.append((file_there.stat(), file_there))
            total = size + sum(status.st_size for status, _ in held)
            for status, old in sorted(held, key=lambda pair: pair[0].st_mtime):
                left_over = old.suffix == '.tmp' and status.st_mtime < time.time() - LEFT_OVER
                if total > self.size and (left_over or not old.name.startswith('.')):
                    old.unlink()
                    total -= status.st_size
            with file.open('wb') as beside:
                beside.truncate(size)
