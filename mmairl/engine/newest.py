"""Which checkpoint a run goes on from: the newest that is whole."""

import logging
from pathlib import Path

from mmengine.logging import print_log

from mmairl.engine.verify import damage
from mmairl.errors import UserError


def newest_checkpoint(work_dir: str | Path) -> Path | None:
    """The newest whole training checkpoint in the folder, or None in a folder without any; damaged ones are named.

    Newest is what `last_checkpoint` names, as in OpenMMLab, and then what was written last.
    """
    work_dir = Path(work_dir)
    note = work_dir / 'last_checkpoint'
    named = work_dir / Path(note.read_text().strip()).name if note.is_file() else None  # folders get moved
    found = [path for path in work_dir.glob('*.pth') if not path.name.startswith('best_')]
    found.sort(key=lambda path: (path == named, path.stat().st_mtime_ns), reverse=True)
    for path in found:
        wrong = damage(path)
        if wrong is None:
            return path
        print_log(f'{path} {wrong}; going back to the one before', logger='current', level=logging.WARNING)
    if found:
        raise UserError(f'none of the {len(found)} checkpoints in {work_dir} is whole; start again without --resume')
    return None
