"""The life of a checkpoint: what it holds, and which one a run starts from; engine/resume.py takes it up.

It is read once, when the run chooses where to start, by `weights.load.load_checkpoint`. hooks/checkpoint.py decides when one
is written and which older one goes. What mmengine reads by itself, such as the `Pretrained` weights of a detector, comes
through `load_checkpoint` as well.
"""

import hashlib
import logging
import secrets
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import mmengine
import torch
from mmengine.config import Config
from mmengine.dist import broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend, get_file_backend, register_handler
from mmengine.logging import print_log
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as platform
from mmengine.runner.checkpoint import load_state_dict
from mmengine.utils import apply_to

import mmairl
from mmairl.checkpoints.load import DamagedCheckpoint, Device, fetched, load_checkpoint
from mmairl.checkpoints.pickles import PlainPickles, portable_checkpoint, write_checkpoint
from mmairl.config import flat, read_plain_yaml
from mmairl.errors import UserError
from mmairl.io import output, read_text, write_text
from mmairl.models.processes import network_of

NEEDED = ('meta', 'state_dict', 'optimizer')  # of a checkpoint that a run goes on from
NOTED = {'epoch': int, 'iter': int, 'run': str | None}  # in its meta
RUN = 'run_id'  # the file in a work dir that says whose checkpoints are the current run's
# The keys that training depends on.
SECTIONS = ('model', 'train_dataloader', 'total_batch_size', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'fast',
            'randomness', 'custom_hooks', 'default_hooks.momentum', 'strategy')  # fmt: skip
copied = partial(apply_to, expr=torch.is_tensor, apply_func=lambda tensor: tensor.detach().to('cpu', copy=True))


@dataclass
class Start:
    """The start of a run: afresh, with the weights of a checkpoint, or where a checkpoint was made; it has been read."""

    run: str | None = None
    path: str | None = None
    checkpoint: dict[str, Any] | None = None
    resume: bool = False

    def take(self, path: str | Path) -> dict[str, Any]:
        """The checkpoint, once; it is not kept for the rest of the run."""
        checkpoint, self.checkpoint = self.checkpoint, None
        return load_checkpoint(path) if checkpoint is None or str(path) != self.path else checkpoint

    def begin(self, work_dir: Path) -> None:
        """Note whose the checkpoints in the work dir are from now on, so that `--resume` never takes an earlier run's."""
        if not is_main_process():
            return
        if self.run is not None and self.run != run_in(work_dir):
            (work_dir / 'last_checkpoint').unlink(missing_ok=True)
            write_text(work_dir / RUN, self.run)
        if self.resume:  # a later one, which this run has turned back from, is the newest no more
            write_text(work_dir / 'last_checkpoint', self.path)


def choose_start(cfg: Config) -> Start:
    """Read what a run starts from, before anything is built; sets `cfg.load_from` and `cfg.resume` to what was found.

    `resume=True` with `load_from` goes on from that file. `resume=True` alone goes on from the newest checkpoint of the run in
    the work dir; `resume='auto'` does too, and where there is none keeps to `load_from`, as the first start did.
    `resume='again'` goes on from the newest of the run in `load_from`, which an earlier start has gone on from.
    """
    work_dir, newest, again = Path(cfg.work_dir), None, cfg.get('resume') == 'again'
    if cfg.get('resume') and (cfg.resume in ('auto', 'again') or not cfg.get('load_from')):
        if is_main_process():
            run = load_checkpoint(cfg.load_from)['meta'].get('run') if again else run_in(work_dir)
            out_dir = (cfg.get('default_hooks', {}).get('checkpoint') or {}).get('out_dir')
            folder = work_dir if out_dir is None else Path(out_dir) / work_dir.name  # as mmengine's hook has it
            newest = newest_checkpoint(folder, run, work_dir / 'last_checkpoint')
        path = [newest and str(newest[0])]
        broadcast_object_list(path)
        cfg.resume = again or path[0] is not None
        cfg.load_from = path[0] or cfg.get('load_from')
        if not cfg.resume:
            print_log(f'{work_dir} holds no checkpoint of this run: starting from the beginning', logger='current')
    start = Start(path=cfg.get('load_from') and str(cfg.load_from), resume=bool(cfg.get('resume')))
    if start.path:
        start.checkpoint = newest[1] if newest else load_checkpoint(start.path)
        if start.resume and (lacking := _lacking(start.checkpoint)):
            raise UserError(f'{start.path} cannot be resumed from: it holds no {lacking}; give a training checkpoint')
    start.run = start.checkpoint['meta'].get('run') if start.resume else secrets.token_hex(8)
    return start


def _lacking(checkpoint: dict[str, Any]) -> str | None:
    """The first part that a run cannot go on without."""
    lacking = (part for part in NEEDED if not isinstance(checkpoint.get(part), dict))
    values = (key for key, kind in NOTED.items() if not isinstance(checkpoint['meta'].get(key), kind))
    return next(lacking, None) or next(values, None)


def run_in(work_dir: Path) -> str | None:
    """The name of the run whose checkpoints a work dir holds; one from before runs had names has none."""
    path = work_dir / RUN
    return read_text(path, errors='replace').strip() if path.is_file() else None


def newest_checkpoint(folder: Path, run: str | None = None, note: Path | None = None) -> tuple[Path, dict] | None:
    """The newest whole checkpoint of the run in this folder, with its content, or None where there is none.

    Newest is what OpenMMLab's note `last_checkpoint` names, and then what was written last. Damaged ones and those of
    an earlier run are named and passed over; what is not a training checkpoint is passed over.
    """
    note = note or folder / 'last_checkpoint'
    last = Path(read_text(note, errors='replace').strip()).name if note.is_file() else None
    saved = [path for path in folder.glob('*.pth') if path.is_file() and not path.name.startswith('best_')]
    saved.sort(key=lambda path: (path.name == last, path.stat().st_mtime_ns), reverse=True)
    damaged = False
    for path in saved:
        try:
            checkpoint = load_checkpoint(path)
        except DamagedCheckpoint as error:
            damaged = True
            print_log(f'{error}; going back to the one before', logger='current', level=logging.WARNING)
            continue
        if _lacking(checkpoint):
            continue
        if run is None or checkpoint['meta'].get('run') == run:
            return path, checkpoint
        said = f'{path} is of an earlier run in this folder and is left alone; to go on from it, give it to --resume'
        print_log(said, logger='current', level=logging.WARNING)
    if damaged:
        raise UserError(f'none of the {len(saved)} checkpoints in {folder} is whole; start again without --resume')
    return None


def consolidate(src: Path, dst: Path) -> str:
    """Write a training checkpoint's weights and origin to a file of their own, and say what was done."""
    newest = newest_checkpoint(src, run_in(src)) if src.is_dir() else (src, load_checkpoint(src))
    if newest is None:
        raise UserError(f'{src} holds no checkpoint; give the work_dir of a run')
    path, checkpoint = newest
    if missing := [part for part in ('meta', 'state_dict') if part not in checkpoint]:
        raise UserError(f'{path} is no training checkpoint: it holds no {missing[0]}; give one of a run of mmairl')
    write_checkpoint(dict(meta=checkpoint['meta'], state_dict=checkpoint['state_dict']), output(dst, path))
    tensors = len(checkpoint['state_dict'])
    return f'{dst} holds {tensors} tensors of {path.name}; optimizer, schedules and random states are left out'


def trust_mmengine_checkpoints() -> None:
    """Make mmengine read files as this package does: by itself it runs code that a checkpoint, pickle or YAML holds."""
    read_plain_yaml()
    register_handler(['pkl', 'pickle'])(PlainPickles)
    CheckpointLoader.register_scheme('', load_checkpoint, force=True)
    platform.load_url = _from_address  # not a registered scheme: mmengine's own for http calls it by this name


def _from_address(url: str, model_dir: str | None = None, map_location: Device = None, progress: bool = True) -> dict:
    """Download a URL for mmengine into torch's cache, one file per URL, and read it."""
    name = Path(urlparse(url).path)
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    file = fetched(url, f'{name.stem}-{digest}{name.suffix}', model_dir, progress=progress)
    return load_checkpoint(file, map_location)


class Checkpointed:
    """The part of our runner for checkpoints: it starts from the one that was read, and collects the content of a new one."""

    start = Start()

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Put a checkpoint's weights into the network; PreflightHook refuses what does not fit."""
        checkpoint = self.start.take(filename)
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        load_state_dict(network_of(self), checkpoint.get('state_dict', checkpoint), strict=False, logger='current')
        self._has_loaded = True
        self.logger.info(f'loaded {filename}')
        return checkpoint

    def resume(self, filename: str, *_: Any, **__: Any) -> None:
        """Go on where a checkpoint was made; what today's config sets otherwise is applied or refused, and the log says so."""
        from mmairl.engine.resume import take_up  # which a new run does not need

        take_up(self, self.load_checkpoint(filename), filename, settings(self.cfg))
        self.logger.info(f'resumed after epoch {self.epoch}, iteration {self.iter}')

    def snapshot(self, meta: dict[str, int], save_optimizer: bool, save_param_scheduler: bool) -> dict[str, Any] | None:
        """Copy the content of a checkpoint to the host's memory: training may go on while it is written.

        All processes call it together, since each may hold a part; the first has the whole, the others None.
        """
        weights, optimizer = self._weights(), self.optim_wrapper.state_dict() if save_optimizer else None
        if not is_main_process():
            return None
        checkpoint = dict(meta={**meta, **self._origin}, state_dict=weights, message_hub=self.message_hub.state_dict())
        if save_optimizer:
            checkpoint['optimizer'] = optimizer
        if save_param_scheduler and self.param_schedulers is not None:
            checkpoint['param_schedulers'] = [schedule.state_dict() for schedule in self.param_schedulers]
        self.call_hook('before_save_checkpoint', checkpoint=checkpoint)
        metadata = getattr(checkpoint['state_dict'], '_metadata', None)
        checkpoint = copied(checkpoint)  # what hooks have added, too
        checkpoint['state_dict']._metadata = metadata
        checkpoint['meta']['time'] = time.strftime('%Y%m%d_%H%M%S')
        return checkpoint

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: dict[str, int] | None = None,
        by_epoch: bool = True,
        backend_args: dict | None = None,
    ) -> None:
        """Write a checkpoint for a hook of mmengine's, with the content and the writer of our own; all processes call it."""
        now = dict(epoch=self.epoch + bool(by_epoch), iter=self.iter + (not by_epoch))
        checkpoint = self.snapshot({**now, **(meta or {})}, save_optimizer, save_param_scheduler)
        if checkpoint is None:
            return
        backend = get_file_backend(out_dir, backend_args=backend_args)
        path = backend.join_path(out_dir, filename)
        if isinstance(backend, LocalBackend) and not file_client_args:
            write_checkpoint(checkpoint, path)
        else:
            platform.save_checkpoint(portable_checkpoint(checkpoint), path, file_client_args, backend_args)

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """Describe the run in a checkpoint's meta, once: formatting its config takes longer than a step."""
        origin = dict(
            cfg=self.cfg.pretty_text,
            settings=settings(self.cfg),
            seed=self.seed,
            experiment_name=self.experiment_name,
            run=self.start.run,
            mmairl_version=mmairl.__version__,
            mmengine_version=mmengine.__version__,
        )
        metainfo = getattr(self.train_dataloader.dataset, 'metainfo', None)
        return origin if metainfo is None else {**origin, 'dataset_meta': metainfo}


def settings(cfg: Config) -> dict[str, str]:
    """Return the settings that training depends on, by dotted keys and as text, which a resume compares."""
    return {key: str(value) for key, value in flat(cfg.to_dict()).items() if key.startswith(SECTIONS)}
