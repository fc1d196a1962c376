"""Reading of image files from disks that may fail for a moment, such as network disks."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from mmairl.data.decode import UnreadableImage
from mmairl.errors import UserError, explained

Answer = TypeVar('Answer')
PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6)  # seconds before the second try, the third try, ...
# These errors are the fault of the file. All others (ESTALE, EIO, ETIMEDOUT) may be temporary.
FAULTS = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)


def read_file(path: Path, root: Path) -> bytes:
    """Return the content of an image file below `root`."""
    try:
        return retried(path.read_bytes, path)
    except FAULTS as error:
        require_root(root)
        raise UnreadableImage(f'cannot be read ({error.strerror})') from error


def retried(read: Callable[[], Answer], name: Path | str) -> Answer:
    """Call `read` and return its result. After a temporary failure, pause and call it again."""
    for pause in PAUSES:
        try:
            return read()
        except FAULTS:
            raise
        except OSError:
            time.sleep(pause)
    fault, remedy = f'{name}: cannot be read', 'check the mount, and continue with --resume'
    with explained(fault, remedy, (OSError,), FAULTS, code='no-answer'):
        return read()


def require_root(root: Path) -> None:
    """Raise if the root folder is missing or empty, for example after a mount was lost."""
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(root) as entries:
        if any(entries):
            return
    raise UserError(
        f'{root}: the image folder was removed or became empty during the run; mount the folder '
        'again, and continue with --resume',
        code='lost-folder',
    )
