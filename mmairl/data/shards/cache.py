"""Access to shards as local files. A remote shard is copied into a cache on a local disk, or into a temporary folder."""

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from mmairl.data.shards.remote import Stamp, base_name, copy, is_remote
from mmairl.errors import UserError
from mmairl.io import replacing

# A temporary file that has not changed for this many seconds counts as left over from a killed process.
LEFT_OVER = 3600


@contextmanager
def on_disk(shard: str, stamp: Stamp, cache: 'NodeCache | None') -> Iterator[Path]:
    """Yield the path of a local file with the content of a shard.

    If the shard is remote and `cache` is None, the file is a temporary copy, which is removed at the end of the `with` block.
    """
    if not is_remote(shard):
        yield Path(shard)
    elif cache:
        yield cache.local(shard, stamp)
    else:
        with TemporaryDirectory() as folder:
            file = Path(folder) / base_name(shard)
            file.touch()
            copy(shard, stamp, file)
            yield file


class NodeCache:
    """Copies of remote shards on a disk of this node, which all processes of the node share.

    If the cache is full, the least recently used copies are removed.

    Args:
        folder: The folder that contains the cache.
        size: Largest size of the cache in bytes.
    """

    def __init__(self, folder: str | Path, size: int) -> None:
        # The copies are in a separate folder, so that no file of the user is counted or removed.
        self.folder = Path(folder) / 'mmairl_shards'
        self.size = size

    def local(self, url: str, stamp: Stamp) -> Path:
        """Return the path of the local copy of a shard. If there is no copy yet, create one."""
        digest = hashlib.sha256(f'{url} {stamp}'.encode()).hexdigest()[:32]
        name = digest + os.path.splitext(base_name(url))[1]
        file = self.folder / name
        if not file.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / f'.{name}.lock'):
                if not file.is_file():
                    with replacing(file) as temporary:
                        self.make_room(temporary, stamp[0])
                        copy(url, stamp, temporary)
        os.utime(file)
        return file

    def make_room(self, file: Path, size: int) -> None:
        """Reserve space in the cache for a file. If there is too little space, remove the least recently used copies.

        A process that is reading a removed copy can continue, because it has the file open.
        """
        if size > self.size:
            raise UserError(
                f'{self.folder}: a shard of {size} bytes exceeds cache_size={self.size}; set a larger cache_size',
                code='small-cache',
            )
        with FileLock(self.folder / '.room'):
            present = []
            for path in self.folder.iterdir():
                with suppress(FileNotFoundError):  # another process may have just renamed the file
                    present.append((path.stat(), path))
            total = size + sum(status.st_size for status, _ in present)
            for status, old in sorted(present, key=lambda pair: pair[0].st_mtime):
                is_left_over = old.suffix == '.tmp' and status.st_mtime < time.time() - LEFT_OVER
                if total > self.size and (is_left_over or not old.name.startswith('.')):
                    old.unlink()
                    total -= status.st_size
            with file.open('wb') as reserved:
                reserved.truncate(size)
