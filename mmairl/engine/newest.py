"""Which checkpoint a run goes on from: the newest that is whole."""

import logging
from pathlib import Path

from mmengine.logging import print_log

from mmairl.engine.verify import damage
from mmairl.errors import UserError


def newest_checkpoint(work_dir: str | Path) -> Path | None:
    """The newest whole training checkpoint of the run in this folder, or None where there is none; damaged ones are named.

    Newest is what `last_checkpoint` names, as in OpenMMLab, and then what was written last.
    """
    work_dir = Path(work_dir)
    note = work_dir / 'last_checkpoint'
    named = Path(note.read_text().strip()) if note.is_file() else None
    folder = work_dir
    if named is not None and len(named.parts) > 1 and named.parent.is_dir() and not any(work_dir.glob('*.pth')):
        folder = named.parent  # default_hooks.checkpoint.out_dir; a folder that was moved has its checkpoints with it
    found = [path for path in folder.glob('*.pth') if not path.name.startswith('best_')]
    last = None if named is None else folder / named.name
    found.sort(key=lambda path: (path == last, path.stat().st_mtime_ns), reverse=True)
    for path in found:
        wrong = damage(path)
        if wrong is None:
            return path
        print_log(f'{path} {wrong}; going back to the one before', logger='current', level=logging.WARNING)
    if found:
        raise UserError(f'none of the {len(found)} checkpoints in {folder} is whole; start again without --resume')
    return None
