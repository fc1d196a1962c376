"""Fork a run: continue from its exact state after an epoch, with changed options.

The original run is the trunk, and the new run is a branch. The config and the seed determine every iteration of a run. Up to
the fork point, trunk and branch therefore have the same weights, optimizer state, queue, schedules, order of images and random
numbers. After the fork point, they differ only because of the changed options. Without a change, the branch equals the
uninterrupted trunk bit for bit.

=====================================  =============================================================================
changed key                            effect
=====================================  =============================================================================
loss, ``symmetric``, temperature,      the change applies from the fork point on
views, batch norm, weight decay,
teacher momentum, precision, length
of the run
learning rate, schedules               the branch follows its own schedules, starting at the iteration of the fork point
``model.queue``                        a shorter queue keeps the newest keys of the trunk; a longer queue is filled up with
                                       random keys; if the branch has no queue, the keys are dropped
the keys in RESETS: optimizer class,   the optimizer state (momentum) starts at zero
``inside`` of LARS, parameter groups
the keys in ORDER: data set, sampler,  error, because trunk and branch would see different images
batch size, seed
a key that changes the shape of a      error, because the trunk has no weights of this shape
weight
=====================================  =============================================================================
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from torch import Tensor, nn

import mmairl
from mmairl.checkpoints.load import load_checkpoint
from mmairl.config import override
from mmairl.engine.checkpoint import (
    RUN,
    RunStart,
    StoredCheckpoint,
    checkpoint_folder,
    checkpoints_in,
    choose_start,
    require_resumable,
    run_in,
    settings,
)
from mmairl.engine.curves import read_run_config, read_scalars
from mmairl.engine.health import QUANTITIES, advice, state
from mmairl.engine.resume import config_changes
from mmairl.errors import UserError
from mmairl.models.queue import KeyQueue

# If one of these keys changes, trunk and branch would see different images. Keys of views are an exception and may change.
ORDER = (
    'randomness.seed',
    'randomness.diff_rank_seed',
    'total_batch_size',
    'optim_wrapper.accumulative_counts',
    'train_dataloader.batch_sampler',
    'train_dataloader.dataset',
    'train_dataloader.drop_last',
    'train_dataloader.sampler',
)
# If one of these keys changes, the trunk's optimizer state is not valid for the branch.
RESETS = (
    'optim_wrapper.constructor',
    'optim_wrapper.optimizer.inside',
    'optim_wrapper.optimizer.type',
    'optim_wrapper.paramwise_cfg',
)


@dataclass(frozen=True)
class Fork:
    """A fork point: the point of a finished or running run (the trunk) from which another run (the branch) continues.

    Attributes:
        trunk: The work dir of the trunk.
        epoch: The fork point is the end of this epoch, where the trunk must have a checkpoint. The first epoch is 1.
        path: A checkpoint of the trunk to use instead of `epoch`, for example a checkpoint inside an epoch.

    Example:
        >>> Fork.parse('work_dirs/demo@6')
        Fork(trunk=PosixPath('work_dirs/demo'), epoch=6, path=None)
    """

    trunk: Path
    epoch: int = 0
    path: Path | None = None

    @classmethod
    def parse(cls, text: str) -> 'Fork':
        parts = re.fullmatch(r'(.+)@([1-9]\d{0,8})', text)
        if parts is None:
            raise UserError(
                f"--fork: expected RUN@EPOCH ('{text}'); give a work dir and an epoch, such as work_dirs/demo@6",
                code='bad-fork',
            )
        return cls(Path(parts[1]), int(parts[2]))

    def config(self, options: Mapping[str, Any] | None = None, start: int = -1) -> Config:
        """Return the trunk's config with options merged in. The config file in its work dir is parsed, not executed.

        Args:
            options: Values by dotted key.
            start: Index of the config to read. A run that was resumed has one config per start. Default: the last config.
        """
        values = read_run_config(self.trunk, start)
        if not values:
            raise UserError(
                f'{self.trunk}: no */vis_data/config.py; give the work dir of a training run',
                code='no-run-config',
            )
        # The branch has its own folder and name, and it divides the total batch among its own processes.
        for key in ('work_dir', 'experiment_name', 'load_from', 'resume', 'launcher'):
            values.pop(key, None)
        if 'total_batch_size' in values:
            values['train_dataloader'].pop('batch_size', None)
        cfg = Config(values)
        override(cfg, options or {}, str(self.trunk))
        return cfg

    def checkpoint(self) -> tuple[Path, dict[str, Any]]:
        """Return the path and the content of the trunk's checkpoint at the fork point.

        Raises:
            UserError: If the trunk has no such checkpoint, or if the checkpoint is not complete.
        """
        path = self.path or self._epoch_end()
        checkpoint = load_checkpoint(path)
        require_resumable(checkpoint, path)
        return path, checkpoint

    def _epoch_end(self) -> Path:
        ends = {}
        for checkpoint in checkpoints_of_run(self.trunk):
            if checkpoint.steps and checkpoint.iteration % checkpoint.steps == 0:
                ends[checkpoint.iteration // checkpoint.steps] = checkpoint.path
        if self.epoch in ends:
            return ends[self.epoch]
        known = ', '.join(map(str, ends)) or 'none'
        raise UserError(
            f"--fork: {self.trunk} has no checkpoint at the end of epoch '{self.epoch}'; choose an epoch that has one "
            f'({known}), or train the original run with default_hooks.checkpoint.max_keep_ckpts=-1',
            code='no-fork-point',
        )


def checkpoints_of_run(work_dir: Path) -> list[StoredCheckpoint]:
    """Return the checkpoints of the run in a work dir, at most one per iteration. Their tensors are not read."""
    values = {**read_run_config(work_dir), 'work_dir': str(work_dir)}
    stored = checkpoints_in(checkpoint_folder(Config(values)), run_in(work_dir))
    if not stored:
        raise UserError(
            f'{work_dir}: the folder has no checkpoint of a run; give the work dir of a training run',
            code='no-checkpoint',
        )
    return list({checkpoint.iteration: checkpoint for checkpoint in stored}.values())


def start_branch(cfg: Config, fork: Fork) -> RunStart:
    """Return how a branch starts, and set `cfg.load_from` and `cfg.resume` to match.

    If the branch has already written checkpoints, it resumes from its newest checkpoint. Otherwise it starts at the fork point.

    Args:
        cfg: The complete config of the branch. Its `work_dir` must differ from the trunk's.
        fork: The fork point.

    Raises:
        UserError: If the branch cannot continue the trunk. The message gives the reason.
    """
    work_dir = Path(cfg.work_dir)
    if work_dir.resolve() == fork.trunk.resolve():
        raise UserError(
            f"--work-dir: this is the folder of the original run ('{work_dir}'); give the new run another folder",
            code='fork-in-trunk',
        )
    path, checkpoint = fork.checkpoint()
    meta = checkpoint['meta']
    require_same_code(checkpoint, path)
    changes = config_changes(meta['settings'], settings(cfg))
    changed = [key for key, *_ in changes]
    require_same_order(changed)
    steps = cfg.optim_wrapper.get('accumulative_counts', 1)
    if meta['iter'] % steps:
        raise UserError(
            f'--fork: {path} was saved in the middle of an optimizer step of {steps} iterations; choose another epoch',
            code='inside-a-step',
        )
    origin = dict(
        run=meta['run'],
        epoch=fork.epoch,
        iter=meta['iter'],
        changes={key: now for key, _, now, _ in changes},
    )
    if (work_dir / RUN).is_file():
        cfg.update(resume=True, load_from=None)
        start = choose_start(cfg)
        if start.resume and start.fork == origin:
            return start
        if start.resume:
            raise UserError(
                f"--work-dir: the folder contains another run or fork ('{Path(start.path).parent}'); give an empty folder",
                code='other-fork',
            )
    if any(key.startswith(RESETS) for key in changed):
        checkpoint['optimizer'] = None
    reason = collapse_before(fork.trunk, meta['iter'])
    if reason:
        message = f'the original run (the trunk) was unhealthy at the fork point: {reason}'
        print_log(message, 'current', level=30)
    cfg.update(resume=True, load_from=str(path))
    return RunStart(
        secrets.token_hex(8), str(path), checkpoint, resume=True, fork=origin, forks=True
    )


def require_same_code(checkpoint: dict[str, Any], path: Path) -> None:
    """Raise unless the checkpoint is complete and was written by this version of mmairl."""
    meta = checkpoint['meta']
    missing = [part for part in ('random_states', 'place') if part not in checkpoint]
    missing += [part for part in ('settings', 'mmairl_version') if part not in meta]
    if missing:
        raise UserError(
            f"--fork: {path} has no '{missing[0]}', which an exact fork requires; fork a run of this version of mmairl",
            code='not-a-training-checkpoint',
        )
    if meta['mmairl_version'] != mmairl.__version__:
        raise UserError(
            f"--fork: {path} was written by mmairl '{meta['mmairl_version']}', but this is version {mmairl.__version__}; train "
            'both runs with the same version',
            code='other-code',
        )


def require_same_order(changed: list[str]) -> None:
    """Raise if a changed key means that trunk and branch would see different images."""
    for key in changed:
        if key.startswith(ORDER) and 'views' not in key.split('.'):
            raise UserError(
                f"--fork: '{key}' changes the order of the images, so the two runs would see different images; keep the "
                'value of the original run, or train from scratch',
                code='fork-changes-order',
            )


@contextmanager
def naming_changed_keys(start: RunStart | None) -> Iterator[None]:
    """Return a context in which an error about weights also lists the model keys that the branch has changed."""
    try:
        yield
    except UserError as error:
        if start is None or not start.forks:
            raise
        changed = [key for key in start.fork['changes'] if key.startswith('model.')]
        raise UserError(
            f"--fork: '{', '.join(changed)}' changes the shapes of the model ({error}); train from scratch",
            code='fork-changes-shapes',
        ) from error


def fit_to_branch(checkpoint: dict[str, Any], model: nn.Module) -> None:
    """Adapt the trunk's queue, stored in a checkpoint, to the length of the branch's queue.

    A shorter queue keeps the newest keys, and a longer queue is filled up with random keys. If the branch has no queue, the
    stored queue is dropped.
    """
    weights = checkpoint['state_dict']
    queue = getattr(model, 'queue', None)
    if queue is None:
        for key in [key for key in weights if key.startswith('queue.')]:
            del weights[key]
    stored = weights.get('queue.vectors')
    if not isinstance(queue, KeyQueue) or not isinstance(stored, Tensor):
        return
    if len(stored) == queue.length or stored.shape[1:] != queue.vectors.shape[1:]:
        return
    position, filled = weights['queue._extra_state'].tolist()
    count = min(filled, queue.length)
    newest = stored.roll(-position, 0)[len(stored) - count :]
    weights['queue.vectors'] = torch.cat([newest, queue.vectors[count:].cpu()])
    weights['queue._extra_state'] = torch.tensor([count % queue.length, count])


def collapse_before(work_dir: Path, iteration: int) -> str:
    """Return advice if a run had collapsed or diverged by the given iteration, and '' otherwise.

    The decision rests on the last value of each health curve that the run logged up to that iteration.
    """
    curves = read_scalars(work_dir)
    for quantity in QUANTITIES:
        steps, values = curves.get(f'health_{quantity.name}', ([], []))
        measured = [value for step, value in zip(steps, values) if step <= iteration]
        if measured and state(quantity, measured[-1]) == 'bad':
            text = advice(quantity, measured[-1])
            if text.startswith(('collapse', 'the run has diverged')):
                return text
    return ''
