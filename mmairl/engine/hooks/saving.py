"""When a checkpoint is written and which older one goes, so that an interrupted run goes on as if nothing had happened."""

import re
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_gather_object, barrier, get_rank, get_world_size, is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.runner import Runner

from mmairl.checkpoints.load import not_finite, run_of
from mmairl.checkpoints.pickles import portable_checkpoint, write_checkpoint
from mmairl.data.sampler import ResumableSampler
from mmairl.engine.checkpoint import trust_mmengine_checkpoints
from mmairl.engine.runner import images_per_epoch, images_per_step, sampler_of
from mmairl.errors import Diverged, UserError
from mmairl.io import BackgroundWriter, write_text
from mmairl.models.processes import network_of
from mmairl.randomness import random_state, set_random_state
from mmairl.registry import HOOKS


@HOOKS.register_module()
class ExactCheckpointHook(CheckpointHook):
    """mmengine's CheckpointHook for runs that must survive.

    It adds every process's random state and the sampler's place, writes beside, flushes and renames, in the background while
    training goes on, and removes an old checkpoint after the new one is there, not before. A checkpoint that falls between two
    optimizer steps waits for the next one, since gradients half summed up are in no checkpoint. With `backend_args`, for stores
    other than a disk, mmengine's own way is taken.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        trust_mmengine_checkpoints()  # for mmengine's own runner, whose reader refuses what it has written itself
        if not re.fullmatch(r'[^/\\{}]*\{\}[^/\\{}]*\.pth', self.filename_tmpl):
            raise UserError(
                f"default_hooks.checkpoint.filename_tmpl='{self.filename_tmpl}' is not a plain file name with one {{}} for the "
                "step; set one such as 'epoch_{}.pth'"
            )
        if '://' in str(kwargs.get('out_dir')):
            raise UserError(
                f'default_hooks.checkpoint.out_dir={kwargs["out_dir"]} is no folder, and no run could go on from there; give a '
                'folder, and copy checkpoints from it'
            )
        self.writer = BackgroundWriter()
        self.due: int | None = None
        self.saved: str | None = None  # the last checkpoint of finite weights
        self.states: list[dict] = []  # no run goes on from what is saved before there are any: the best weights
        self.resumed: dict[str, Any] = {}

    def before_train(self, runner: Runner) -> None:
        info = runner.message_hub.runtime_info
        self._keep_own_names(info)
        super().before_train(runner)
        self.note = Path(runner.work_dir) / 'last_checkpoint'  # as OpenMMLab's tools know it, wherever checkpoints go
        start = getattr(runner, 'start', None)
        if start and start.resume and is_main_process():
            self._keep_own_checkpoints(info, Path(start.path), start.run)
        self.kept = deque(info['kept_checkpoints'])
        if is_main_process():  # what a killed process was writing, and what it would have removed next
            folder = Path(self.out_dir)
            left_over = [*folder.glob('.*.pth.*.tmp'), *self.note.parent.glob('.last_checkpoint.*.tmp')]
            for path in [*left_over, *(folder / name for name in info['outdated_checkpoints'])]:
                path.unlink(missing_ok=True)
        if not runner.iter:
            return  # a run of its own, also where `load_from` alone has given it weights
        if len(self.resumed) == 2:
            from mmairl.engine.resume import resuming

            with resuming('the checkpoint'):
                self._take_up(runner, **self.resumed)
        else:
            runner.logger.warning('the checkpoint holds no random state: the run goes on, but not as if uninterrupted')

    def _keep_own_names(self, info: dict[str, Any]) -> None:
        """Keep the names of files that this hook can have written; others that a checkpoint names are not ours to remove."""
        from mmairl.engine.resume import forget_files

        forget_files(info)  # mmengine's own runner has not done so
        ours = re.escape(self.filename_tmpl).replace(r'\{\}', r'\d{1,18}') + r'|iter_\d{1,18}\.pth'
        for key in ('kept_checkpoints', 'outdated_checkpoints'):
            noted = info.get(key) if isinstance(info.get(key), list) else []
            info[key] = [name for name in noted if isinstance(name, str) and re.fullmatch(ours, name)]

    def _keep_own_checkpoints(self, info: dict[str, Any], path: Path, run: str | None) -> None:
        """Keep the names of checkpoints that are in this run's folder and that this run has written."""
        folder = Path(self.out_dir)
        here = path.resolve().parent == folder.resolve()
        for key in ('kept_checkpoints', 'outdated_checkpoints'):
            names = info[key] if here else []
            info[key] = [name for name in names if name == path.name or run_of(folder / name) == run]

    def _take_up(self, runner: Runner, random_states: list[dict], place: dict[str, int]) -> None:
        """Be at the same point of the same order of images, with the same random numbers to come."""
        now = images_per_step(runner.train_dataloader)
        if now != place['images_per_step']:
            raise UserError(
                f'the checkpoint was made with {place["images_per_step"]} images an iteration and this run has {now}; keep '
                f'total_batch_size / accumulative_counts at {place["images_per_step"]}, with any number of processes'
            )
        images = images_per_epoch(runner.train_dataloader)
        if place.get('images', images) != images:
            raise UserError(
                f'the checkpoint was made with {place["images"]} images and this run has {images}, so that epochs have other '
                'lengths; take the same images, or start from its weights alone by load_from without resume'
            )
        steps = len(runner.train_dataloader)
        if place.get('steps', steps) != steps:
            raise UserError(
                f'the checkpoint was made with epochs of {place["steps"]} iterations and this run has {steps}; keep '
                'train_dataloader.drop_last, and the number of processes, which an epoch is shared by'
            )
        sampler = sampler_of(runner.train_dataloader)
        if 'seed' in place and hasattr(sampler, 'seed'):
            sampler.seed = place['seed']
        if isinstance(sampler, ResumableSampler) and 'seed' in place:
            sampler.by_sum = place.get('order_by_sum', True)
        if len(random_states) == get_world_size():
            set_random_state(random_states[get_rank()])
            return
        runner.logger.warning(
            f'resumed with {get_world_size()} processes after {len(random_states)}: batches and views are the same; what a '
            'process draws for itself (the shuffle of ShuffleBN, views made on the device) and the last bits of sums are not'
        )

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        self.writer.check()
        if self.due is not None and runner.optim_wrapper.should_update():
            self._save_checkpoint_with_step(runner, self.due, dict(epoch=runner.epoch, iter=runner.iter + 1))
        super().after_train_iter(runner, batch_idx, data_batch, outputs)

    def _save_checkpoint(self, runner: Runner) -> None:
        if runner.optim_wrapper.should_update():
            super()._save_checkpoint(runner)
        else:
            self.due = (runner.epoch if self.by_epoch else runner.iter) + 1

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict[str, int]) -> None:
        self.due = None
        if self.backend_args or not hasattr(runner, 'snapshot'):  # a store, or mmengine's own runner
            self._require_finite(network_of(runner).state_dict())  # before mmengine removes an older one
            self.states = all_gather_object(random_state())
            super()._save_checkpoint_with_step(runner, step, meta)
        else:
            self.save_as(runner, self.filename_tmpl.format(step), meta)

    def save_as(self, runner: Runner, name: str, meta: dict[str, int]) -> Path:
        """Begin to write a checkpoint under this name; all processes call it together."""
        self.states = all_gather_object(random_state())
        path = Path(self.out_dir) / name
        self.last_ckpt = str(path)
        self.kept = deque([*(other for other in self.kept if other != name), name])
        too_many = len(self.kept) - self.max_keep_ckpts if self.max_keep_ckpts > 0 else 0
        outdated = [self.kept.popleft() for _ in range(too_many)]
        runner.message_hub.update_info_dict(
            dict(last_ckpt=self.last_ckpt, kept_checkpoints=list(self.kept), outdated_checkpoints=outdated)
        )
        checkpoint = runner.snapshot(meta, self.save_optimizer, self.save_param_scheduler)
        if is_main_process():
            self.writer.start(partial(self._write, checkpoint, path, outdated))
        self.saved = self.last_ckpt
        return path

    def _write(self, checkpoint: dict[str, Any], path: Path, outdated: list[str]) -> None:
        write_checkpoint(checkpoint, path)
        write_text(self.note, str(path))
        for name in outdated:
            path.with_name(name).unlink(missing_ok=True)

    def _require_finite(self, weights: dict[str, torch.Tensor]) -> None:
        """End a run whose weights are lost, before a checkpoint of them takes the place of a good one."""
        if wrong := not_finite(weights):
            last = f'go on from {self.saved} with --resume' if self.saved else 'start again'
            raise Diverged(
                f'{len(wrong)} tensors of the network are not finite, the first {wrong[0]}: no checkpoint is written; '
                f'lower the learning rate and {last}'
            )

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._require_finite(checkpoint['state_dict'])
        sampler = sampler_of(runner.train_dataloader)
        loader = runner.train_dataloader
        place = dict(images_per_step=images_per_step(loader), images=images_per_epoch(loader), steps=len(loader))
        if hasattr(sampler, 'seed'):
            place['seed'] = sampler.seed
        if isinstance(sampler, ResumableSampler):
            place['order_by_sum'] = sampler.by_sum
        checkpoint.update(random_states=self.states, place=place)
        if not hasattr(runner, 'snapshot'):  # mmengine's own runner writes what it is given
            checkpoint.update(portable_checkpoint(checkpoint))

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self.resumed = {key: checkpoint[key] for key in ('random_states', 'place') if key in checkpoint}

    def after_train(self, runner: Runner) -> None:
        self.writer.finish()
        barrier()  # whatever another process does next may read the last checkpoint
        super().after_train(runner)

    def after_run(self, runner: Runner) -> None:
        self.writer.finish()  # of a run that ended early, too
