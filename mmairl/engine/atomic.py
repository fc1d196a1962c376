"""Files that are there whole or not at all: write beside, flush to disk, rename."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path that takes the place of `path` when the block succeeds and vanishes when it fails."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f'.{path.name}.{os.getpid()}.tmp')
    try:
        yield beside
        with beside.open('rb+') as file:
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


class AtomicBackend(LocalBackend):
    """mmengine's local file backend whose `put` never leaves a half-written checkpoint under the final name."""

    def put(self, obj: bytes | memoryview, filepath: str | Path) -> None:
        with replacing(filepath) as beside:
            beside.write_bytes(obj)

    def put_text(self, obj: str, filepath: str | Path, encoding: str = 'utf-8') -> None:
        with replacing(filepath) as beside:
            beside.write_text(obj, encoding=encoding)


# The checkpoint hook asks for it by name: default_hooks.checkpoint.backend_args.backend = 'atomic'.
register_backend('atomic', AtomicBackend, force=True)
