"""Create, write and find the checkpoints of a run, and choose the checkpoint from which a run starts.

`hooks/saving.py` decides when a checkpoint is written and which older checkpoints are removed. `engine/resume.py` restores a
run.
"""

import hashlib
import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import mmengine
import torch
from mmengine.config import Config
from mmengine.dist import broadcast_object_list, get_world_size, is_main_process
from mmengine.fileio import register_handler
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader, Runner
from mmengine.runner import checkpoint as platform
from mmengine.utils import apply_to
from torch import Tensor

import mmairl
from mmairl.checkpoints.load import (
    DamagedCheckpoint,
    Device,
    load_checkpoint,
    meta_of,
)
from mmairl.checkpoints.pickles import PlainPickles, write_checkpoint
from mmairl.checkpoints.released import download_once
from mmairl.config import flat, python_text, read_plain_yaml
from mmairl.errors import UserError
from mmairl.hardware import processor
from mmairl.io import output, read_text, write_text

# A resume requires these parts of a checkpoint, and these values in its part 'meta'.
REQUIRED = ('meta', 'state_dict', 'optimizer')
REQUIRED_META = {'epoch': int, 'iter': int, 'run': str | None}
# This file in a work dir holds the name of the run that wrote the checkpoints.
RUN = 'run_id'
# This file in a work dir holds the path of the newest checkpoint. The name is OpenMMLab's.
NOTE = 'last_checkpoint'
# The config sections that affect the trained weights.
SECTIONS = (
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


def snapshot(
    runner: Runner,
    weights: dict[str, Tensor],
    meta: dict[str, Any],
    optimizer: dict | None,
    schedules: bool,
) -> dict[str, Any]:
    """Copy the content of a checkpoint to host memory, so that training can continue while the checkpoint is written.

    Args:
        runner: The run. Its hooks add to the checkpoint in `before_save_checkpoint`.
        weights: The state dict of the whole model.
        meta: The description of the run.
        optimizer: The state dict of the whole optimizer, or None to leave it out.
        schedules: Include the state of the parameter schedulers.
    """
    checkpoint = dict(meta=meta, state_dict=weights, message_hub=runner.message_hub.state_dict())
    if optimizer is not None:
        checkpoint['optimizer'] = optimizer
    if schedules and runner.param_schedulers is not None:
        checkpoint['param_schedulers'] = [
            schedule.state_dict() for schedule in runner.param_schedulers
        ]
    runner.call_hook('before_save_checkpoint', checkpoint=checkpoint)
    metadata = getattr(checkpoint['state_dict'], '_metadata', None)
    checkpoint = apply_to(
        checkpoint, torch.is_tensor, lambda tensor: tensor.detach().to('cpu', copy=True)
    )
    checkpoint['state_dict']._metadata = metadata
    checkpoint['meta']['time'] = time.strftime('%Y%m%d_%H%M%S')
    return checkpoint


def describe_run(runner: Runner) -> dict[str, Any]:
    """Return the description of a run for its checkpoints: config, seed, versions and machine.

    These values of a checkpoint's `meta` do not change during a run.
    """
    origin = dict(
        cfg=python_text(runner.cfg),
        settings=settings(runner.cfg),
        seed=runner.seed,
        experiment_name=runner.experiment_name,
        run=runner.start.run,
        mmairl_version=mmairl.__version__,
        mmengine_version=mmengine.__version__,
        machine=describe_machine(),
    )
    if runner.start.fork:
        origin['fork'] = runner.start.fork
    metainfo = getattr(runner.train_dataloader.dataset, 'metainfo', None)
    if metainfo is not None:
        origin['dataset_meta'] = metainfo
    return origin


def describe_machine() -> dict[str, Any]:
    """Return the properties of the machine and the software on which the last bits of a run's results depend."""
    return dict(
        processor=processor(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else '',
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        processes=get_world_size(),
    )


def settings(cfg: Config) -> dict[str, str]:
    """Return the settings that affect the trained weights, as a dictionary from dotted keys to text.

    A checkpoint stores them, and a resume compares them with the current settings.
    """
    return {
        key: str(value) for key, value in flat(cfg.to_dict()).items() if key.startswith(SECTIONS)
    }


def write_snapshot(
    checkpoint: dict[str, Any], path: Path, note: Path | None = None, outdated: Sequence[str] = ()
) -> None:
    """Write a checkpoint, then write its path to the file `note`, then remove outdated checkpoints.

    Because of this order, a complete checkpoint exists at any time.
    """
    write_checkpoint(checkpoint, path)
    if note is not None:
        write_text(note, str(path))
    for name in outdated:
        path.with_name(name).unlink(missing_ok=True)


def newest_checkpoint(
    folder: Path, run: str | None = None, note: Path | None = None
) -> tuple[Path, dict] | None:
    """Return the path and the content of the newest complete checkpoint of a run, or None if there is none.

    The checkpoint whose path is in the file `last_checkpoint` counts as the newest. The others are ordered by modification
    time. Damaged checkpoints and checkpoints of another run are skipped with a warning. Files that are not training
    checkpoints, and mmengine's `best_*.pth`, are skipped without a warning.

    Args:
        folder: The folder of the checkpoints.
        run: The name of the run. Default: any run.
        note: The `last_checkpoint` file. Default: the one in the folder.

    Raises:
        UserError: If there are damaged checkpoints, but no other checkpoint of the run, or if loading a file would run code.
    """
    note = note or folder / NOTE
    last = Path(read_text(note).strip()).name if note.is_file() else None
    saved = [
        path
        for path in folder.glob('*.pth')
        if path.is_file() and not path.name.startswith('best_')
    ]
    saved.sort(key=lambda path: (path.name == last, path.stat().st_mtime_ns), reverse=True)
    damaged = False
    for path in saved:
        try:
            checkpoint = load_checkpoint(path)
        except DamagedCheckpoint as error:
            damaged = True
            _warn(f'{error}; now trying the previous checkpoint')
            continue
        except UserError as error:
            if error.code != 'no-dictionary':
                raise
            continue
        if missing_part(checkpoint):
            continue
        if run is None or checkpoint['meta'].get('run') == run:
            return path, checkpoint
        _warn(
            f'{path} is from an earlier run in this folder and is ignored; to resume from it, pass it to --resume'
        )
    if damaged:
        raise UserError(
            f'{folder}: no checkpoint of the run can be read; start again without --resume',
            code='all-checkpoints-damaged',
        )
    return None


@dataclass(frozen=True)
class StoredCheckpoint:
    """A training checkpoint on disk, without its tensors.

    Attributes:
        path: The file.
        meta: The description of the run, from the checkpoint's `meta`.
        steps: The number of iterations in an epoch, or 0 if it is unknown.
    """

    path: Path
    meta: dict[str, Any]
    steps: int = 0

    @property
    def iteration(self) -> int:
        return self.meta['iter']


def checkpoints_in(folder: Path, run: str | None) -> list[StoredCheckpoint]:
    """Return the checkpoints of a run in a folder, sorted by iteration. Their tensors are not read."""
    stored = []
    for path in folder.glob('*.pth'):
        meta = meta_of(path)
        # The part 'place' describes the order of the images. Files that only hold weights lack this part.
        place = meta_of(path, 'place')
        if meta and place and meta.get('run') == run and type(meta.get('iter')) is int:
            stored.append(StoredCheckpoint(path, meta, place.get('steps', 0)))
    return sorted(stored, key=lambda checkpoint: checkpoint.iteration)


def missing_part(checkpoint: dict[str, Any]) -> str | None:
    """Return the name of a part that a resume requires but the checkpoint lacks, or None if no part is missing."""
    for part in REQUIRED:
        if not isinstance(checkpoint.get(part), dict):
            return part
    for key, kind in REQUIRED_META.items():
        if not isinstance(checkpoint['meta'].get(key), kind):
            return key
    return None


def require_resumable(checkpoint: dict[str, Any], path: str | Path) -> None:
    """Raise if a checkpoint lacks a part that a resume requires."""
    missing = missing_part(checkpoint)
    if missing:
        raise UserError(
            f"{path}: not a training checkpoint, because it has no '{missing}'; give a checkpoint that a training run wrote",
            code='not-a-training-checkpoint',
        )


def run_in(work_dir: Path) -> str | None:
    """Return the name of the run in a work dir, or None if there is no name, as in work dirs of early versions."""
    path = work_dir / RUN
    return read_text(path).strip() if path.is_file() else None


@dataclass
class RunStart:
    """How a run starts: from scratch, with the weights of a checkpoint, or resumed from a checkpoint.

    Attributes:
        run: The name of the run.
        path: The checkpoint to start from.
        checkpoint: The content of that checkpoint. It is None after a call of `take`.
        resume: Restore the whole run, not only the weights.
        fork: For a branch of another run, the fork point and the changed settings; see `fork.py`.
        forks: Whether this start creates a branch of another run. False if it resumes an existing branch.
    """

    run: str | None = None
    path: str | None = None
    checkpoint: dict[str, Any] | None = None
    resume: bool = False
    fork: dict[str, Any] | None = None
    forks: bool = False

    def take(self, path: str | Path) -> dict[str, Any]:
        """Return the content of the checkpoint at `path`, and keep no reference to it, so that its memory is freed early."""
        checkpoint, self.checkpoint = self.checkpoint, None
        if checkpoint is None or str(path) != self.path:
            return load_checkpoint(path)
        return checkpoint

    def begin(self, work_dir: Path) -> None:
        """Write the name of the run to its work dir, so that `--resume` without a path ignores checkpoints of earlier runs."""
        if not is_main_process():
            return
        output(work_dir / NOTE)  # `output` raises if this path is a folder.
        if self.run is not None and self.run != run_in(work_dir):
            (work_dir / NOTE).unlink(missing_ok=True)
            write_text(work_dir / RUN, self.run)
        if self.resume and not self.forks:
            # From now on, this checkpoint counts as the newest, even if later checkpoints of the run exist.
            write_text(work_dir / NOTE, str(Path(self.path).expanduser().absolute()))


def choose_start(cfg: Config) -> RunStart:
    """Read the checkpoint that a run starts from, and set `cfg.load_from` and `cfg.resume` to match.

    The previous values of `cfg.resume` and `cfg.load_from` determine the start:

    | resume | load_from | start |
    |---|---|---|
    | False | set | start with the weights in `load_from` |
    | False | not set | start from scratch |
    | True | set | resume from `load_from` |
    | True | not set | resume from the newest checkpoint of the run in the work dir; without one, start from scratch |
    | 'auto' | set | resume from the newest checkpoint of the run; without one, start with the weights in `load_from` |
    | 'auto' | not set | resume from the newest checkpoint of the run; without one, start from scratch |
    | 'again' | set | resume from the newest checkpoint of the run that wrote `load_from`; without one, from `load_from` |
    """
    newest = None
    if cfg.get('resume') and (cfg.resume in ('auto', 'again') or not cfg.get('load_from')):
        newest = _find_newest(cfg)
    start = RunStart(
        path=cfg.get('load_from') and str(cfg.load_from), resume=bool(cfg.get('resume'))
    )
    if start.path:
        start.checkpoint = newest[1] if newest else load_checkpoint(start.path)
    if start.resume:
        require_resumable(start.checkpoint, start.path)
        start.run = start.checkpoint['meta'].get('run')
        start.fork = start.checkpoint['meta'].get('fork')
    else:
        start.run = secrets.token_hex(8)
    return start


def _find_newest(cfg: Config) -> tuple[Path, dict] | None:
    """Find the newest checkpoint of the run, and set `cfg.load_from` and `cfg.resume` to match.

    The first process returns the path and the content of the checkpoint; the other processes return None.
    """
    work_dir = Path(cfg.work_dir)
    again = cfg.resume == 'again'
    newest = None
    if is_main_process():
        run = load_checkpoint(cfg.load_from)['meta'].get('run') if again else run_in(work_dir)
        newest = newest_checkpoint(checkpoint_folder(cfg), run, work_dir / NOTE)
    path = [newest and str(newest[0])]
    broadcast_object_list(path)
    cfg.resume = again or path[0] is not None
    cfg.load_from = path[0] or cfg.get('load_from')
    if not cfg.resume:
        print_log(
            f'{work_dir} has no checkpoint of this run; starting at step 0',
            logger='current',
        )
    return newest


def checkpoint_folder(cfg: Config) -> Path:
    """Return the folder of a run's checkpoints."""
    work_dir = Path(cfg.work_dir)
    out_dir = (cfg.get('default_hooks', {}).get('checkpoint') or {}).get('out_dir')
    # mmengine's CheckpointHook appends the name of the work dir to `out_dir`.
    return work_dir if out_dir is None else Path(out_dir) / work_dir.name


def trust_mmengine_checkpoints() -> None:
    """Make mmengine read checkpoints, pickles and YAML files with the functions of this package.

    mmengine's own functions would run code that such a file contains.
    """
    read_plain_yaml()
    register_handler(['pkl', 'pickle'])(PlainPickles)
    CheckpointLoader.register_scheme('', load_checkpoint, force=True)
    # mmengine's loaders of several URL schemes call `load_url`. Replacing this function changes all of these loaders.
    platform.load_url = _load_from_address


def _load_from_address(
    url: str, model_dir: str | None = None, map_location: Device = None, progress: bool = True
) -> dict:
    """Download a checkpoint into torch's cache, one file per URL, and read it. mmengine calls this function."""
    name = Path(urlparse(url).path)
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    file = download_once(url, f'{name.stem}-{digest}{name.suffix}', model_dir, progress=progress)
    return load_checkpoint(file, map_location)


def _warn(message: str) -> None:
    print_log(message, logger='current', level=logging.WARNING)
