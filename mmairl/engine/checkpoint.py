"""Write and find the checkpoints of a run, and choose the checkpoint from which a run starts.

`hooks/saving.py` decides when a checkpoint is written and which older checkpoints are removed. `engine/resume.py` restores a
run.
"""

import secrets
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.dist import broadcast_object_list
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as platform

from mmairl.checkpoints.load import load_checkpoint
from mmairl.checkpoints.pickles import write_checkpoint
from mmairl.config import flat
from mmairl.errors import UserError
from mmairl.io import read_text, write_text
from mmairl.signals import ARGUMENTS

# A resume requires these parts of a checkpoint.
REQUIRED = ('meta', 'state_dict', 'optimizer', 'message_hub')
# This file in a work dir holds the path of the newest checkpoint. The name is OpenMMLab's.
NOTE = 'last_checkpoint'
# The config sections that affect the trained weights.
SECTIONS = (
    'preprocessing',
    'model',
    'train_dataloader',
    'total_batch_size',
    'optim_wrapper',
    'param_scheduler',
    'train_cfg',
    'fast',
    'randomness',
    'custom_hooks',
    'default_hooks.momentum',
    'strategy',
)


def settings(cfg: Config) -> dict[str, str]:
    """Return the settings that affect the trained weights, as a dictionary from dotted keys to text.

    A checkpoint stores them, and a resume compares them with the current settings.
    """
    return {
        key: str(value) for key, value in flat(cfg.to_dict()).items() if key.startswith(SECTIONS)
    }


def write_snapshot(
    checkpoint: dict[str, Any], path: Path, note: Path, outdated: Sequence[str]
) -> None:
    """Write a checkpoint, then write its path to the file `note`, then remove outdated checkpoints.

    Because of this order, a complete checkpoint exists at any time.
    """
    checkpoint['meta']['time'] = time.strftime('%Y%m%d_%H%M%S')
    write_checkpoint(checkpoint, path)
    write_text(note, str(path))
    for name in outdated:
        path.with_name(name).unlink(missing_ok=True)


def choose_start(cfg: Config) -> tuple[str, dict[str, Any] | None]:
    """Read the checkpoint that a run starts from, and set `cfg.load_from` and `cfg.resume` to match.

    Returns the id of the run, which stays the same when the run resumes, and the content of the checkpoint, if any.

    The previous values of `cfg.resume` and `cfg.load_from` determine the start:

    | resume | load_from | start |
    |---|---|---|
    | False | not set | start from scratch |
    | False | set | start with the weights in `load_from` |
    | True | set | resume from `load_from` |
    | True or 'auto' | not set | resume from the newest checkpoint in the work dir, or else start from scratch |
    | 'auto' | set | resume from the newest checkpoint in the work dir, or else start with the weights in `load_from` |

    Raises:
        UserError: If a checkpoint cannot be resumed, or if a new run would start in a folder with checkpoints.
    """
    newest = None
    if cfg.get('resume') and (cfg.resume == 'auto' or not cfg.get('load_from')):
        newest = newest_checkpoint(cfg)
        cfg.resume = newest is not None
        cfg.load_from = newest or cfg.get('load_from')
    if newest is None:
        refuse_overwriting(cfg)
    checkpoint = load_checkpoint(cfg.load_from) if cfg.get('load_from') else None
    run_id = secrets.token_hex(8)
    if cfg.get('resume'):
        missing = [part for part in REQUIRED if not isinstance(checkpoint.get(part), dict)]
        if missing:
            raise UserError(
                f"{cfg.load_from}: not a training checkpoint, because it has no '{missing[0]}'; give a checkpoint that a "
                'training run wrote',
                code='not-a-training-checkpoint',
            )
        run_id = checkpoint['meta'].get('run', run_id)
    return run_id, checkpoint


def newest_checkpoint(cfg: Config) -> str | None:
    """Return the path of the newest checkpoint in the work dir, or None. The first process chooses it for all processes."""
    note = Path(cfg.work_dir) / NOTE
    newest = None
    if note.is_file():
        noted = Path(read_text(note).strip())
        # The work dir may have moved since the path was written.
        moved = note.with_name(noted.name)
        newest = str(moved if moved.is_file() else noted)
    elif stored := [file for file in checkpoints_in(cfg) if not file.name.startswith('best_')]:
        # A run that is killed before it writes the note has a checkpoint.
        newest = str(stored[-1])
    chosen = [newest]
    broadcast_object_list(chosen)
    return chosen[0]


def refuse_overwriting(cfg: Config) -> None:
    """Raise if a run would start in a folder that holds checkpoints of another run."""
    stored = checkpoints_in(cfg)
    folder = Path(cfg.work_dir).resolve()
    continues = cfg.get('resume') and Path(cfg.load_from).resolve().parent == folder
    if stored and not continues:
        raise UserError(
            f"{cfg.work_dir}: the folder already holds checkpoints of a run ('{stored[0].name}'); continue that run with "
            f'{ARGUMENTS["resume"]}, or choose another folder with {ARGUMENTS["folder"]}',
            code='has-checkpoints',
        )


def checkpoints_in(cfg: Config) -> list[Path]:
    """Return the checkpoints in the work dir, beginning with the oldest."""
    return sorted(Path(cfg.work_dir).glob('*.pth'), key=lambda file: file.stat().st_mtime_ns)


def trust_mmengine_checkpoints() -> None:
    """Make mmengine read checkpoints without running code that such a file may contain."""
    CheckpointLoader.register_scheme('', load_checkpoint, force=True)
    # mmengine's loaders of several URL schemes call `load_url`. Replacing this function changes all of these loaders.
    platform.load_url = partial(platform.load_url, weights_only=True)
