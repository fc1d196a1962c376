"""A training checkpoint without what only training needs."""

from pathlib import Path

import torch

from mmairl.engine.checkpoint import load_checkpoint, newest_checkpoint, run_in
from mmairl.errors import UserError
from mmairl.files import replacing

KEPT = ('meta', 'state_dict')


def consolidate(src: Path, dst: Path) -> str:
    """Write weights and origin of a checkpoint, of an ordinary run or one under ZeRO, to a file; what was done, in words.

    >>> consolidate(Path('work_dirs/mocov2plus_vit'), Path('mocov2plus_vit.pth'))  # doctest: +SKIP
    'mocov2plus_vit.pth holds 612 tensors of epoch_200.pth; optimizer, schedules and random states are left out'
    """
    path, checkpoint = _newest_in(src) if src.is_dir() else (src, load_checkpoint(src))
    if lacking := [part for part in KEPT if part not in checkpoint]:
        raise UserError(f'{path} is no training checkpoint: it holds no {lacking[0]}; give one of a run of mmairl')
    with replacing(dst, source=path) as beside, beside.open('wb') as file:
        torch.save({part: checkpoint[part] for part in KEPT}, file)
    tensors = len(checkpoint['state_dict'])
    return f'{dst} holds {tensors} tensors of {path.name}; optimizer, schedules and random states are left out'


def _newest_in(folder: Path) -> tuple[Path, dict]:
    shards = [*folder.glob('*zero_pp_rank_*'), *folder.glob('*/*zero_pp_rank_*')]
    if shards:
        raise UserError(
            f"{folder} holds DeepSpeed's own shards, which are code to load; put them together with the zero_to_fp32.py "
            'that DeepSpeed has written beside them'
        )
    found = newest_checkpoint(folder, run_in(folder))
    if found is None:
        raise UserError(f'{folder} holds no checkpoint; give the work_dir of a run')
    return found
