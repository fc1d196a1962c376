"""Compare all values of two checkpoints bit for bit, and check whether a file is damaged."""

import zipfile
from pathlib import Path

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.replay import COMPARED, differing


def different_runs(one: Path, other: Path) -> list[str]:
    """List where two training checkpoints differ: in weights, in state that affects later steps, or in logged losses.

    >>> different_runs(Path('whole/iter_15.pth'), Path('resumed/iter_15.pth'))  # doctest: +SKIP
    []
    """
    one, other = load_checkpoint(one), load_checkpoint(other)
    names = [f'meta.{key}' for key in ('iter', 'epoch') if one['meta'][key] != other['meta'][key]]
    for part in COMPARED:
        names += differing(one.get(part), other.get(part), part)
    losses = [
        checkpoint['message_hub']['log_scalars']['train/loss'].data[0]
        for checkpoint in (one, other)
    ]
    return names + differing(*losses, 'train/loss')


def is_damaged(path: Path) -> bool:
    """Return True if the file is not an archive, or if one of its checksums is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is not None
    except (zipfile.BadZipFile, OSError):
        return True
