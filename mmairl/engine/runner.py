"""A runner based on mmengine's. Its runs resume exactly, even from a checkpoint inside an epoch."""

import json
import logging
from contextlib import suppress
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, get_world_size, is_main_process, master_only
from mmengine.hooks import LoggerHook
from mmengine.runner import Runner as PlainRunner
from mmengine.runner import checkpoint as platform
from mmengine.runner.base_loop import BaseLoop
from mmengine.utils import apply_to
from torch import nn
from torch.utils.data import DataLoader

from mmairl.checkpoints.load import require_same_keys
from mmairl.config import python_text
from mmairl.data.preprocess import float32_precision
from mmairl.data.training_images import TrainingImages, require_a_batch
from mmairl.data.workers import explained_deaths, safe
from mmairl.engine.checkpoint import (
    NOTE,
    RunStart,
    choose_start,
    describe_run,
    write_snapshot,
)
from mmairl.engine.checks import check_built_run
from mmairl.engine.curves import CONFIG
from mmairl.engine.hooks.monitor import HealthHook
from mmairl.engine.hooks.non_finite import NonFiniteHook, require_finite
from mmairl.engine.logging import keep_run
from mmairl.engine.loops import EpochLoop, IterLoop
from mmairl.engine.prepare import lock, prepare
from mmairl.engine.resume import fresh_groups, patience, position, restore_randomness, restore_run
from mmairl.engine.speed import lay_out, make_fast
from mmairl.engine.strategy import strategy_of
from mmairl.errors import building
from mmairl.hardware import cores, unusable_gpu
from mmairl.io import explained_disk_errors, write_text
from mmairl.models.processes import network_of
from mmairl.randomness import random_state
from mmairl.registry import DATASETS, RUNNERS
from mmairl.signals import obey_parent_only

# Each run of this process takes the next number, so that its name is unique.
RUNS = count()
# The beginnings of warnings that concern only mmengine's own code.
OWN_WARNINGS = ('"FileClient" will be', '"HardDiskBackend" is the alias')
# Short runs are logged and checked at least this number of times.
LOGGED = 20


@RUNNERS.register_module()
class Runner(PlainRunner):
    """Train in one or several processes. With a `strategy`, each process holds a part of the model or the optimizer.

    The loop is `EpochLoop` or `IterLoop` unless the config sets another type. Each image has its own random seed in each
    epoch. Therefore, neither the number of data workers nor a resume changes the results of a run.

    Call `from_cfg`. Its `runner_type='mmairl.Runner'` makes the training scripts of OpenMMLab's packages use this class.
    """

    start = RunStart()
    lock: IO[str] | None = None
    random_states: tuple[dict, ...] = ()

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'Runner':
        """Build a runner and every object that its config describes, so that mistakes in the config raise here.

        Args:
            cfg: The config. Keys that follow from other keys are set in place, such as the batch size per process.

        Raises:
            UserError: If the config, the data or the checkpoint to resume from is invalid, or if another run uses the work
                dir.
        """
        prepare(cfg)
        # Runs with the same name would share mmengine's visualizer and log. mmengine's default name is the time in seconds,
        # and two runs may start in the same second.
        cfg.setdefault('experiment_name', f'{Path(cfg.filename or "run").stem}_{next(RUNS)}')
        held = lock(cfg.work_dir)
        start = choose_start(cfg)
        keep_run(cfg, start.run)
        with building('the run'):
            runner = super().from_cfg(cfg)
            runner.start = start
            runner.lock = held
            _ = runner.train_loop
            runner.optim_wrapper = runner.build_optim_wrapper(runner.optim_wrapper)
        if runner.strategy:
            runner.strategy.shard_optimizer(runner.optim_wrapper, runner.model)
        return runner

    @cached_property
    def strategy(self):
        return strategy_of(self.cfg)

    def build_logger(self, *args: Any, **kwargs: Any) -> logging.Logger:
        """Build the logger. Unless the log level is DEBUG, the terminal shows only warnings and the line of progress."""
        logger = super().build_logger(*args, **kwargs)
        # mmengine warns about its own file client, and users cannot act on the warning.
        logger.addFilter(lambda record: not record.getMessage().startswith(OWN_WARNINGS))
        terminal = logger.handlers[0]
        if terminal.level > logging.DEBUG:
            terminal.setLevel(max(terminal.level, logging.WARNING))
        return logger

    @master_only
    def _log_env(self, env_cfg: dict) -> None:
        """Write the config to the folder of the log, from which pages read it. The log describes only this start."""
        text = json.dumps(self.cfg.to_dict(), indent=1, default=str)
        write_text(Path(self.log_dir) / CONFIG, text)

    @master_only
    def dump_config(self) -> None:
        """Write the config to the work dir like mmengine, unless the run was started from that file."""
        source = Path(self.cfg.filename or f'{self.timestamp}.py')
        path = Path(self.work_dir) / source.name
        if path.resolve() != source.resolve():
            write_text(path, python_text(self.cfg))

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        fast = dict(self.cfg.get('fast') or {})
        if self.strategy:
            fast.pop('compile', None)  # Compilation has not been tested with sharded models.
        return make_fast(super().build_model(model), fast)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        if self.strategy:
            return self.strategy.shard(model)
        return super().wrap_model(model_wrapper_cfg, model)

    def _init_model_weights(self) -> None:
        """Initialize the weights in the default memory layout.

        Torch assigns random numbers in memory order, so another layout would give other weights for the same seed.
        """
        if self.strategy:
            return  # The strategy's `shard` has initialized the weights.
        self.model.to(memory_format=torch.contiguous_format)
        with building('the initial weights'):
            super()._init_model_weights()
        lay_out(self.model, self.cfg.get('fast'))

    def _build_train_dataloader(self) -> DataLoader:
        if isinstance(self._train_dataloader, DataLoader):
            return self._train_dataloader
        dataset = self._train_dataloader['dataset']
        if isinstance(dataset, dict):
            dataset = DATASETS.build(dataset)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        dataset = TrainingImages(dataset, workers=bool(self._train_dataloader.get('num_workers')))
        diff_rank_seed = self._randomness_cfg.get('diff_rank_seed', False)
        options = {**self._train_dataloader, 'dataset': dataset}
        if not torch.cuda.is_available():
            # Without a GPU, torch would warn about pinned memory twice per epoch.
            options['pin_memory'] = False
        loader = self.build_dataloader(options, self.seed, diff_rank_seed)
        # Without its own generator, the loader would draw from torch's global generator whenever workers start, and so change
        # later random numbers of the run.
        loader.generator = torch.Generator()
        loader.worker_init_fn = partial(obey_parent_only, then=loader.worker_init_fn)
        require_a_batch(loader)
        return safe(loader)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, BaseLoop) or 'type' in loop:
            return super().build_train_loop(loop)
        options = dict(loop)
        kind = EpochLoop if options.pop('by_epoch') else IterLoop
        return kind(self, self._build_train_dataloader(), **options)

    def build_param_scheduler(self, scheduler: Any) -> Any:
        with building('param_scheduler'):
            return super().build_param_scheduler(scheduler)

    def scale_lr(self, optim_wrapper: Any, auto_scale_lr: dict | None = None) -> None:
        super().scale_lr(optim_wrapper, auto_scale_lr)
        # The schedules, which are built next, change the groups.
        self.groups = fresh_groups(optim_wrapper.optimizer)

    def load_or_resume(self) -> None:
        """Check the run, which is completely built now, and load its checkpoint."""
        check_built_run(self)
        for hook in self.hooks:
            if isinstance(hook, LoggerHook | HealthHook | NonFiniteHook):
                hook.interval = min(hook.interval, max(1, self.max_iters // LOGGED))
        self.log_summary()
        super().load_or_resume()

    def train(self) -> nn.Module:
        precision = (self.cfg.get('fast') or {}).get('precision')
        try:
            with (
                explained_disk_errors(self.work_dir),
                explained_deaths(),
                float32_precision(precision),
            ):
                model = super().train()
                self.log_unreadable()
                return model
        except BaseException:
            # `after_run` restores signal handlers and finishes writing checkpoints.
            for hook in self.hooks:
                # If the disk is full, `after_run` may fail, too. The user must still see the original error.
                with suppress(Exception):
                    hook.after_run(self)
            raise
        finally:
            if self.lock:
                self.lock.close()

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load the weights of a checkpoint.

        Raises:
            UserError: If names or shapes of tensors differ between the checkpoint and the model.
        """
        checkpoint = self.start.take(filename)
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        weights = checkpoint.get('state_dict', checkpoint)
        require_same_keys(weights, network_of(self).state_dict(), filename)
        platform.load_state_dict(network_of(self), weights, strict=False, logger='current')
        self._has_loaded = True
        self.logger.info(f'loaded {filename}')
        return checkpoint

    def resume(self, filename: str, *_: Any, **__: Any) -> None:
        """Restore a run from a checkpoint. `resume.py` explains what happens to changed settings."""
        checkpoint = self.load_checkpoint(filename)
        restore_run(self, checkpoint, filename)
        self.random_states = checkpoint.get('random_states', ())
        if is_main_process():
            # From now on, this checkpoint counts as the newest, even if later checkpoints of the run exist.
            write_text(Path(self.work_dir) / NOTE, str(Path(filename).expanduser().absolute()))
        self.logger.info(f'resumed after epoch {self.epoch}, iteration {self.iter}')

    def restore_randomness(self) -> None:
        """Continue the random numbers of a resumed run. The loops call this method before their first step."""
        if self.iter:
            restore_randomness(self, self.random_states)

    def snapshot(
        self, meta: dict[str, int], save_optimizer: bool = True, save_param_scheduler: bool = True
    ) -> dict[str, Any] | None:
        """Copy the content of a checkpoint to host memory, so that training can continue while it is written.

        All processes must call this method together, because each may hold a part of the model. The first process returns
        the content of the checkpoint; the other processes return None.
        """
        model = network_of(self)
        require_finite(
            self, 'model', [part for part in model.state_dict().values() if torch.is_tensor(part)]
        )
        weights = self.strategy.weights(model) if self.strategy else model.state_dict()
        checkpoint: dict[str, Any] = dict(state_dict=weights)
        if save_optimizer:
            checkpoint['optimizer'] = self.optim_wrapper.state_dict()
            checkpoint['random_states'] = all_gather_object(random_state())
        if not is_main_process():
            return None
        checkpoint.update(
            meta={**self._origin, **meta},
            message_hub=self.message_hub.state_dict(),
            place=position(self.train_dataloader),
            patience=patience(self),
        )
        if save_param_scheduler and self.param_schedulers is not None:
            states = [schedule.state_dict() for schedule in self.param_schedulers]
            checkpoint['param_schedulers'] = states
        self.call_hook('before_save_checkpoint', checkpoint=checkpoint)
        metadata = getattr(checkpoint['state_dict'], '_metadata', None)
        checkpoint = apply_to(
            checkpoint, torch.is_tensor, lambda tensor: tensor.detach().to('cpu', copy=True)
        )
        checkpoint['state_dict']._metadata = metadata
        return checkpoint

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """The description of the run in its checkpoints, cached because formatting the config takes longer than a step."""
        return describe_run(self)

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
        """Write a checkpoint when a hook of mmengine requests one. All processes must call this method together."""
        progress = dict(epoch=self.epoch + bool(by_epoch), iter=self.iter + (not by_epoch))
        progress.update(meta or {})
        checkpoint = self.snapshot(progress, save_optimizer, save_param_scheduler)
        if checkpoint is not None:
            write_snapshot(checkpoint, Path(out_dir) / filename)

    def log_summary(self) -> None:
        """Print the device, the batch layout and the folder of the run, and log them."""
        loader = self.train_dataloader
        device = next(self.model.parameters()).device.type
        unusable = unusable_gpu()
        processes = get_world_size()
        steps = self.optim_wrapper._accumulative_counts
        line = (
            f'{processes} x {device}{f", though there is a GPU ({unusable})" if unusable else ""}, '
            f'{loader.num_workers} data workers on {cores()} cores; '
            f'total batch {self.cfg.total_batch_size} = {loader.batch_size} images x {processes} processes '
            f'x {steps} accumulated steps; log and config in {self.log_dir}'
        )
        self.logger.info(line)
        if is_main_process():
            print(line, flush=True)

    def log_unreadable(self) -> None:
        """Log the unreadable images that any process has skipped."""
        dataset = self.train_dataloader.dataset
        if not isinstance(dataset, TrainingImages):
            return
        met = torch.cat(all_gather_object(dataset.met())).unique(dim=0)
        if len(met) and is_main_process():
            listed = '\n  '.join(['', *dataset.names_with_reasons(met)])
            self.logger.warning(
                f'{len(met)} unreadable images were skipped; fix or remove them:{listed}'
            )
