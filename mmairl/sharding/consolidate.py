"""A training checkpoint without what only training needs."""

from pathlib import Path

from mmairl.engine.checkpoint import load_checkpoint, newest_checkpoint, run_in
from mmairl.errors import UserError
from mmairl.weights.write import write_checkpoint

KEPT = ('meta', 'state_dict')


def consolidate(src: Path, dst: Path) -> str:
    """Write a training checkpoint's weights and origin to a file of their own, and say what was done.

    >>> consolidate(Path('work_dirs/mocov2plus_vit'), Path('mocov2plus_vit.pth'))  # doctest: +SKIP
    'mocov2plus_vit.pth holds 612 tensors of epoch_200.pth; optimizer, schedules and random states are left out'
    """
    found = newest_checkpoint(src, run_in(src)) if src.is_dir() else (src, load_checkpoint(src))
    if found is None:
        raise UserError(f'{src} holds no checkpoint; give the work_dir of a run')
    path, checkpoint = found
    if missing := [part for part in KEPT if part not in checkpoint]:
        raise UserError(f'{path} is no training checkpoint: it holds no {missing[0]}; give one of a run of mmairl')
    write_checkpoint({part: checkpoint[part] for part in KEPT}, dst, source=path)
    tensors = len(checkpoint['state_dict'])
    return f'{dst} holds {tensors} tensors of {path.name}; optimizer, schedules and random states are left out'
