"""The checkpoint hook. It decides when a checkpoint is written and which older checkpoints are removed."""

import re
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_gather_object, barrier, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmairl.checkpoints.load import not_finite
from mmairl.checkpoints.pickles import portable_checkpoint
from mmairl.engine.checkpoint import (
    NOTE,
    checkpoints_in,
    trust_mmengine_checkpoints,
    write_snapshot,
)
from mmairl.engine.resume import (
    drop_file_names,
    position,
    restore_position,
    restore_randomness,
    resuming,
)
from mmairl.errors import Diverged, UserError
from mmairl.io import BackgroundWriter
from mmairl.models.processes import network_of
from mmairl.randomness import random_state
from mmairl.registry import HOOKS


@HOOKS.register_module()
class ExactCheckpointHook(CheckpointHook):
    """Save checkpoints from which a run resumes exactly.

    Unlike mmengine's hook, it

    - saves the random state of every process and the position in the order of the images,
    - writes in the background, to a temporary file that is flushed and renamed,
    - removes an outdated checkpoint only after the new one is complete,
    - waits for the end of the optimizer step, because a checkpoint does not hold accumulated gradients.

    mmengine writes the file itself in two cases: if `backend_args` is set, and in mmengine's own runner.

    Args:
        args: Positional arguments of mmengine's CheckpointHook.
        kwargs: Keyword arguments of mmengine's CheckpointHook.

    Raises:
        UserError: If `filename_tmpl` is not a plain file name, or `out_dir` is a URL.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Without this call, mmengine's own runner could not read the checkpoints of this hook.
        trust_mmengine_checkpoints()
        if not re.fullmatch(r'[^/\\{}]*\{\}[^/\\{}]*\.pth', self.filename_tmpl):
            raise UserError(
                'default_hooks.checkpoint.filename_tmpl: expected a file name with one {} for the step and the suffix .pth '
                f"('{self.filename_tmpl}'); set for example 'epoch_{{}}.pth'",
                code='bad-file-name',
            )
        if '://' in str(kwargs.get('out_dir')):
            raise UserError(
                f"default_hooks.checkpoint.out_dir: a run cannot resume from a URL ('{kwargs['out_dir']}'); set a folder",
                code='not-a-folder',
            )
        self.writer = BackgroundWriter()
        self.due: int | None = None
        # The path of the last checkpoint. Its weights are finite.
        self.saved: str | None = None
        # The random states of all processes, for the next checkpoint.
        self.states: list[dict] = []
        # The names of the run's checkpoints, beginning with the oldest.
        self.kept: deque[str] = deque()
        # The parts of the loaded checkpoint that this hook restores.
        self.resumed: dict[str, Any] = {}

    def before_train(self, runner: Runner) -> None:
        # Our runner has already dropped file names of a checkpoint, but mmengine's own runner has not.
        drop_file_names(runner.message_hub.runtime_info)
        super().before_train(runner)
        # OpenMMLab's tools look for `last_checkpoint` in the work dir, even if checkpoints are in another folder.
        self.note = Path(runner.work_dir) / NOTE
        start = getattr(runner, 'start', None)
        if start and is_main_process():
            self._remove_leftovers()
            if start.resume and start.run and self.max_keep_ckpts > 0:
                self.kept.extend(self._own_checkpoints(start.run, runner.iter))
                # A process that was killed may have left outdated checkpoints.
                for name in self._outdated():
                    (Path(self.out_dir) / name).unlink(missing_ok=True)
        # The iteration is 0 unless the run was resumed, even if it starts with weights from `load_from`.
        if runner.iter:
            self._restore(runner)

    def _restore(self, runner: Runner) -> None:
        if len(self.resumed) < 2:
            runner.logger.warning(
                'the checkpoint has no random state, so this run will differ from an uninterrupted run'
            )
            return
        with resuming('the checkpoint'):
            restore_position(runner.train_dataloader, self.resumed['place'])
            restore_randomness(runner, self.resumed['random_states'])

    def _remove_leftovers(self) -> None:
        """Remove temporary files that a killed process has left."""
        folder = Path(self.out_dir)
        for path in (*folder.glob('.*.pth.*.tmp'), *self.note.parent.glob(f'.{NOTE}.*.tmp')):
            path.unlink(missing_ok=True)

    def _own_checkpoints(self, run: str, iteration: int) -> list[str]:
        """Return the names of the run's checkpoints up to an iteration, beginning with the oldest.

        The hook may remove these files, so only names in the form that this hook gives to checkpoints are returned.
        """
        names = re.escape(self.filename_tmpl).replace(r'\{\}', r'\d{1,18}') + r'|iter_\d{1,18}\.pth'
        return [
            stored.path.name
            for stored in checkpoints_in(Path(self.out_dir), run)
            if stored.iteration <= iteration and re.fullmatch(names, stored.path.name)
        ]

    def _outdated(self) -> list[str]:
        """Shorten the list of checkpoint names to the newest `max_keep_ckpts`, and return the names that were dropped."""
        outdated = []
        while 0 < self.max_keep_ckpts < len(self.kept):
            outdated.append(self.kept.popleft())
        return outdated

    def after_train_iter(self, runner: Runner, **details: object) -> None:
        self.writer.check()
        if self.due is not None and runner.optim_wrapper.should_update():
            self._save_checkpoint_with_step(
                runner, self.due, dict(epoch=runner.epoch, iter=runner.iter + 1)
            )
        super().after_train_iter(runner, **details)

    def _save_checkpoint(self, runner: Runner) -> None:
        if runner.optim_wrapper.should_update():
            super()._save_checkpoint(runner)
        else:
            self.due = (runner.epoch if self.by_epoch else runner.iter) + 1

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, int]) -> None:
        self.due = None
        if self.backend_args or not hasattr(runner, 'snapshot'):
            # mmengine removes an older checkpoint before it writes the new one, so the weights must be checked first.
            self._require_finite(network_of(runner).state_dict())
            self.states = all_gather_object(random_state())
            super()._save_checkpoint_with_step(runner, step, meta)
        else:
            self.save_as(runner, self.filename_tmpl.format(step), meta)

    def save_as(self, runner: Runner, name: str, meta: dict[str, int]) -> Path:
        """Start to write a checkpoint with this name, and return its path. All processes must call this method together."""
        self.states = all_gather_object(random_state())
        path = Path(self.out_dir) / name
        self.last_ckpt = str(path)
        self.kept = deque([*(other for other in self.kept if other != name), name])
        outdated = self._outdated()
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        checkpoint = runner.snapshot(meta, self.save_optimizer, self.save_param_scheduler)
        if is_main_process():
            self.writer.start(partial(write_snapshot, checkpoint, path, self.note, outdated))
        self.saved = self.last_ckpt
        return path

    def _require_finite(self, weights: dict[str, torch.Tensor]) -> None:
        """Raise if a weight is not finite, so that the checkpoint does not replace a good one."""
        invalid = not_finite(weights)
        if invalid:
            advice = f'resume from {self.saved} with --resume' if self.saved else 'start again'
            raise Diverged(
                f"model: {len(invalid)} tensors are not finite ('{invalid[0]}'), so no checkpoint is written; lower the "
                f'learning rate and {advice}',
                code='weights-not-finite',
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._require_finite(checkpoint['state_dict'])
        checkpoint.update(random_states=self.states, place=position(runner.train_dataloader))
        # mmengine's own runner writes this dictionary unchanged, so it must be readable without mmairl.
        if not hasattr(runner, 'snapshot'):
            checkpoint.update(portable_checkpoint(checkpoint))

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.resumed = {
            key: checkpoint[key] for key in ('random_states', 'place') if key in checkpoint
        }

    def after_train(self, runner: Runner) -> None:
        self.writer.finish()
        # After training, any process may read the last checkpoint, so all processes wait until it is complete.
        barrier()
        super().after_train(runner)

    def after_run(self, runner: Runner) -> None:
        # `after_train` is not called if the run failed, so writing may not have finished.
        self.writer.finish()
