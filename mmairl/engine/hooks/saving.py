"""The checkpoint hook. It decides when a checkpoint is written and which older checkpoints are removed."""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.dist import barrier, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmairl.engine.checkpoint import NOTE, write_snapshot
from mmairl.registry import HOOKS


@HOOKS.register_module()
class ExactCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for `mmairl.Runner`, with three differences.

    - A checkpoint is written in the background, to a temporary file that is flushed and renamed.
    - An outdated checkpoint is removed only after the new one is complete.
    - With gradient accumulation, a checkpoint is written at the end of the optimizer step, because it does not hold
      accumulated gradients.

    Args:
        args: Positional arguments of mmengine's CheckpointHook.
        kwargs: Keyword arguments of mmengine's CheckpointHook.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.thread = ThreadPoolExecutor(1, 'checkpoint')
        self.writing: Future | None = None
        self.due: int | None = None

    def before_train(self, runner: Runner) -> None:
        folder = Path(runner.work_dir).resolve()
        info = runner.message_hub.runtime_info
        for key in [key for key in info if key.startswith('best_ckpt')]:
            # mmengine would remove the best checkpoint of another run from which this run continues.
            if Path(info[key]).resolve().parent != folder:
                del info[key]
        super().before_train(runner)
        # The names of the run's checkpoints, beginning with the oldest.
        self.kept: list[str] = info.get('kept_checkpoints', [])

    def after_train_iter(self, runner: Runner, **details: Any) -> None:
        if self.writing is not None and self.writing.done():
            self.finish()
        if self.due is not None and runner.optim_wrapper.should_update():
            meta = dict(epoch=runner.epoch, iter=runner.iter + 1)
            self._save_checkpoint_with_step(runner, self.due, meta)
        super().after_train_iter(runner, **details)

    def _save_checkpoint(self, runner: Runner) -> None:
        if runner.optim_wrapper.should_update():
            super()._save_checkpoint(runner)
        else:
            self.due = (runner.epoch if self.by_epoch else runner.iter) + 1

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, int]) -> None:
        self.due = None
        self.save_as(runner, self.filename_tmpl.format(step), meta)

    def save_as(self, runner: Runner, name: str, meta: dict[str, int]) -> Path:
        """Start to write a checkpoint with this name. All processes must call this method together."""
        path = Path(self.out_dir) / name
        kept = [*(other for other in self.kept if other != name), name]
        runner.message_hub.update_info('kept_checkpoints', kept)
        checkpoint = runner.snapshot(meta, self.save_optimizer)
        self.last_ckpt = str(path)
        runner.message_hub.update_info('last_ckpt', self.last_ckpt)
        keep = self.max_keep_ckpts if self.max_keep_ckpts > 0 else len(kept)
        self.kept = kept[-keep:]
        # At most one checkpoint waits in memory.
        self.finish()
        if is_main_process():
            # OpenMMLab's tools look for this file in the work dir.
            note = Path(runner.work_dir) / NOTE
            job = partial(write_snapshot, checkpoint, path, note, kept[:-keep])
            self.writing = self.thread.submit(job)
        return path

    def finish(self) -> None:
        """Wait until the last checkpoint is complete. Raise an error if it could not be written."""
        writing, self.writing = self.writing, None
        if writing is not None:
            writing.result()

    def after_val_epoch(self, runner: Runner, metrics: dict[str, float]) -> None:
        # With `last_ckpt`, mmengine would write the newest checkpoint again, and a run that resumes from it would validate
        # a second time in a state that already includes the validation.
        last, self.last_ckpt = self.last_ckpt, None
        super().after_val_epoch(runner, metrics)
        self.last_ckpt = last

    def after_train(self, runner: Runner) -> None:
        self.finish()
        # After training, any process may read the last checkpoint, so all processes wait until it is complete.
        barrier()
        super().after_train(runner)

    def after_run(self, runner: Runner) -> None:
        # `after_train` is not called if the run failed, so writing may not have finished.
        self.finish()
