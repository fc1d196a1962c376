"""A runner based on mmengine's. Its runs resume exactly, even from a checkpoint inside an epoch."""

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from mmengine.config import Config
from mmengine.dist import all_gather_object, get_world_size, is_main_process, master_only
from mmengine.hooks import Hook, LoggerHook
from mmengine.runner import Runner as PlainRunner
from mmengine.runner.base_loop import BaseLoop
from mmengine.utils import apply_to
from torch import nn
from torch.utils.data import DataLoader

import mmairl
from mmairl.checkpoints.load import load_checkpoint, require_same_keys
from mmairl.checkpoints.pickles import write_checkpoint
from mmairl.data.preprocess import float32_precision
from mmairl.data.sampler import TrainingImages, require_a_batch
from mmairl.data.workers import explained_deaths, safe
from mmairl.engine.checkpoint import NOTE, choose_start, settings
from mmairl.engine.checks import check_built_run
from mmairl.engine.curves import CONFIG
from mmairl.engine.hooks.monitor import HealthHook
from mmairl.engine.hooks.progress import AsyncRuntimeInfoHook, require_finite
from mmairl.engine.logging import keep_run
from mmairl.engine.loops import EpochLoop, IterLoop
from mmairl.engine.prepare import lock, prepare
from mmairl.engine.resume import fresh_groups, progress, restore_run
from mmairl.engine.speed import lay_out, make_fast
from mmairl.engine.strategy import Strategy, strategy_of
from mmairl.errors import building
from mmairl.io import explained_disk_errors, write_text
from mmairl.models.processes import network_of
from mmairl.randomness import random_state
from mmairl.registry import DATASETS, RUNNERS
from mmairl.signals import obey_parent_only

# Each run of this process takes the next number, so that its name is unique.
RUNS = count()
# The beginnings of warnings that concern only mmengine's own code.
OWN_WARNINGS = (
    'Dataset TrainingImages has no',
    '"FileClient" will be',
    '"HardDiskBackend" is the alias',
)
# Short runs are logged and checked at least this number of times.
LOGGED = 20


@RUNNERS.register_module()
class Runner(PlainRunner):
    """Train in one or several processes. With a `strategy`, each process holds a part of the model or the optimizer.

    The loop is `EpochLoop` or `IterLoop` unless the config sets another type. Each image has its own random seed in each
    epoch. Therefore, neither the number of data workers nor a resume changes the results of a run.

    Call `from_cfg`. With `runner_type='mmairl.Runner'`, the training scripts of OpenMMLab's packages use this class.
    """

    run_id = ''
    # The content of the checkpoint to start from, until it is loaded.
    checkpoint: dict[str, Any] | None = None
    held: IO[str] | None = None
    random_states: Sequence[dict] = ()

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
        run_id, checkpoint = choose_start(cfg)
        keep_run(cfg, run_id)
        with building('the run'):
            runner = super().from_cfg(cfg)
            runner.held = held
            runner.run_id = run_id
            runner.checkpoint = checkpoint
            runner.build()
        check_built_run(runner)
        return runner

    def build(self) -> None:
        """Build the objects that mmengine builds in `train`, in the same order."""
        _ = self.train_loop
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.strategy:
            self.strategy.shard_optimizer(self.optim_wrapper, self.model)
        # The schedules change the groups.
        self.groups = fresh_groups(self.optim_wrapper.optimizer)
        self.param_schedulers = self.build_param_scheduler(self.param_schedulers or [])
        _ = self.val_loop
        for hook in self.hooks:
            if isinstance(hook, LoggerHook | HealthHook | AsyncRuntimeInfoHook):
                hook.interval = min(hook.interval, max(1, self.max_iters // LOGGED))

    @cached_property
    def strategy(self) -> Strategy | None:
        return strategy_of(self.cfg)

    def build_logger(self, *args: Any, **kwargs: Any) -> logging.Logger:
        """Build the logger. Unless the log level is DEBUG, the terminal shows only warnings and the line of progress."""
        logger = super().build_logger(*args, **kwargs)
        logger.addFilter(lambda record: not record.getMessage().startswith(OWN_WARNINGS))
        terminal = logger.handlers[0]
        if terminal.level > logging.DEBUG:
            terminal.setLevel(max(terminal.level, logging.WARNING))
        return logger

    @master_only
    def _log_env(self, env_cfg: dict) -> None:
        """Write the config to the folder of the log, from which pages read it."""
        text = json.dumps(self.cfg.to_dict(), indent=1, default=str)
        write_text(Path(self.log_dir) / CONFIG, text)

    def register_default_hooks(self, hooks: dict[str, Any] | None = None) -> None:
        """Register the default hooks, except those that are None. mmengine accepts None only for its own hooks."""
        super().register_default_hooks({key: hook or Hook() for key, hook in (hooks or {}).items()})

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        fast = dict(self.cfg.get('fast') or {})
        if self.strategy:
            # These settings have not been tested with sharded models.
            fast.update(compile=False, channels_last=False)
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

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, BaseLoop) or 'type' in loop:
            return super().build_train_loop(loop)
        options = dict(loop)
        kind = EpochLoop if options.pop('by_epoch') else IterLoop
        return kind(self, self._build_train_dataloader(), **options)

    def _build_train_dataloader(self) -> DataLoader:
        options = dict(self._train_dataloader)
        dataset = options['dataset']
        if isinstance(dataset, dict):
            dataset = DATASETS.build(dataset)
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        options['dataset'] = TrainingImages(dataset)
        if not torch.cuda.is_available():
            # Without a GPU, torch would warn about pinned memory twice per epoch.
            options['pin_memory'] = False
        diff_rank_seed = self._randomness_cfg.get('diff_rank_seed', False)
        loader = self.build_dataloader(options, self.seed, diff_rank_seed)
        # Without its own generator, the loader would draw from torch's global generator whenever workers start, and so change
        # later random numbers of the run.
        loader.generator = torch.Generator()
        loader.worker_init_fn = partial(obey_parent_only, then=loader.worker_init_fn)
        require_a_batch(loader)
        return safe(loader)

    def train(self) -> nn.Module:
        precision = (self.cfg.get('fast') or {}).get('precision')
        disk = explained_disk_errors(self.work_dir)
        self.print_summary()
        try:
            with disk, explained_deaths(), float32_precision(precision):
                model = super().train()
        except BaseException:
            # `after_run` restores signal handlers and finishes writing checkpoints.
            for hook in self.hooks:
                # If the disk is full, `after_run` may fail, too. The user must still see the original error.
                with suppress(Exception):
                    hook.after_run(self)
            raise
        finally:
            if self.held:
                self.held.close()
        self.log_unreadable()
        return model

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load the weights of a checkpoint.

        Raises:
            UserError: If names or shapes of tensors differ between the checkpoint and the model.
        """
        checkpoint = self.checkpoint or load_checkpoint(filename)
        self.checkpoint = None
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        weights = checkpoint.get('state_dict', checkpoint)
        network = network_of(self)
        require_same_keys(weights, network.state_dict(), filename)
        network.load_state_dict(weights)
        self._has_loaded = True
        return checkpoint

    def resume(self, filename: str, *_: Any, **__: Any) -> None:
        """Restore a run from a checkpoint. `resume.py` explains what happens to changed settings."""
        checkpoint = self.load_checkpoint(filename)
        restore_run(self, checkpoint)
        self.random_states = checkpoint.get('random_states', ())
        if is_main_process():
            # From now on, this checkpoint counts as the newest, even if later checkpoints of the run exist.
            write_text(Path(self.work_dir) / NOTE, str(Path(filename).absolute()))
        self.logger.info(f'resumed after epoch {self.epoch}, iteration {self.iter}')

    def snapshot(self, meta: dict[str, int], save_optimizer: bool = True) -> dict[str, Any] | None:
        """Copy the content of a checkpoint to host memory, so that training can continue while it is written.

        All processes must call this method together, because each may hold a part of the model. The first process returns
        the content of the checkpoint; the other processes return None.
        """
        network = network_of(self)
        state = network.state_dict()
        require_finite(self, 'model', [*filter(torch.is_tensor, state.values())])
        if self.strategy:
            state = self.strategy.weights(network)
        content: dict[str, Any] = dict(state_dict=state)
        if save_optimizer:
            content['optimizer'] = self.optim_wrapper.state_dict()
            content['random_states'] = all_gather_object(random_state())
        if not is_main_process():
            return None
        content.update(progress(self), meta={**self._origin, **meta})
        self.call_hook('before_save_checkpoint', checkpoint=content)
        return apply_to(
            content, torch.is_tensor, lambda tensor: tensor.detach().to('cpu', copy=True)
        )

    @cached_property
    def _origin(self) -> dict[str, Any]:
        """The description of the run in its checkpoints."""
        # mmengine's `pretty_text` would take as long as a short run.
        lines = [f'{key} = {value!r}\n' for key, value in self.cfg.to_dict().items()]
        return dict(
            cfg=''.join(lines),
            settings=settings(self.cfg),
            groups=self.groups,
            seed=self.seed,
            experiment_name=self.experiment_name,
            run=self.run_id,
            mmairl_version=mmairl.__version__,
        )

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        *_: Any,
        meta: dict[str, int],
        save_optimizer: bool = True,
        **__: Any,
    ) -> None:
        """Write a checkpoint when a hook of mmengine requests one. All processes must call this method together."""
        checkpoint = self.snapshot(meta, save_optimizer)
        if checkpoint is not None:
            write_checkpoint(checkpoint, Path(out_dir) / filename)

    @master_only
    def print_summary(self) -> None:
        """Print the device, the batch size and the folder of the run."""
        devices = f'{get_world_size()} x {next(self.model.parameters()).device.type}'
        batch = f'total batch {self.cfg.total_batch_size}'
        print(f'{devices}; {batch}; log and config in {self.log_dir}', flush=True)

    @master_only
    def log_unreadable(self) -> None:
        """Log the unreadable images that this process has skipped."""
        dataset = self.train_dataloader.dataset
        if isinstance(dataset, TrainingImages) and len(met := dataset.met()):
            names = '\n  '.join(['', *dataset.names_with_reasons(met)])
            self.logger.warning(f'{len(met)} unreadable images were skipped; fix them:{names}')
