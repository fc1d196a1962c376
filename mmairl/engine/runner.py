"""A runner based on mmengine's. Its runs resume exactly, even from a checkpoint inside an epoch."""

from collections.abc import Iterator
from functools import cached_property, partial
from itertools import chain, count, repeat
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import is_main_process, master_only
from mmengine.fileio import LocalBackend, get_file_backend
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmengine.runner import Runner as PlainRunner
from mmengine.runner import checkpoint as platform
from mmengine.runner.base_loop import BaseLoop
from torch import nn
from torch.utils.data import DataLoader

from mmairl.checkpoints.pickles import portable_checkpoint
from mmairl.config import python_text, write_config
from mmairl.data.training_images import TrainingImages, require_a_batch
from mmairl.data.workers import explained_deaths, safe
from mmairl.engine.batches import batches, endless, prefetch_to_device
from mmairl.engine.checkpoint import RunStart, describe_run, settings, snapshot, write_snapshot
from mmairl.engine.fork import fit_to_branch
from mmairl.engine.resume import restore_run
from mmairl.engine.sharding import Strategy, strategy_of
from mmairl.engine.speed import lay_out, make_fast
from mmairl.errors import UserError, building
from mmairl.io import write_text
from mmairl.models.processes import network_of
from mmairl.registry import DATASETS, HOOKS
from mmairl.signals import obey_parent_only

# Each run of this process takes the next number, so that its name is unique.
RUNS = count()
# mmengine builds these hooks unless the config sets them to None.
DEFAULT_HOOKS = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')


class Runner(PlainRunner):
    """Train in one or several processes. With a `strategy`, each process holds a part of the model or the optimizer.

    The loop is `EpochLoop` or `IterLoop` unless the config sets another type. Each image has its own random seed in each
    epoch. Therefore, neither the number of data workers nor a resume changes the results of a run.

    Args:
        args: Positional arguments of mmengine's runner.
        cfg: The config of the run.
        experiment_name: Name of the run in logs. Default: the name of the config file, followed by a number.
        kwargs: Keyword arguments of mmengine's runner.
    """

    start = RunStart()

    def __init__(
        self,
        *args: Any,
        cfg: Config | None = None,
        experiment_name: str | None = None,
        **kwargs: Any,
    ) -> None:
        # Runs with the same name would share mmengine's visualizer and log. mmengine's default name is the time in seconds, and
        # two runs may start in the same second.
        name = (
            experiment_name or f'{Path(getattr(cfg, "filename", None) or "run").stem}_{next(RUNS)}'
        )
        super().__init__(*args, cfg=cfg, experiment_name=name, **kwargs)

    @cached_property
    def strategy(self) -> Strategy | None:
        return strategy_of(self.cfg)

    @master_only
    def dump_config(self) -> None:
        """Write the config to the work dir like mmengine, but replace a symbolic link instead of following it."""
        source = Path(self.cfg.filename or f'{self.timestamp}.py')
        path = Path(self.work_dir) / source.name
        if path.resolve() == source.resolve():
            return  # The run was started from the config file in its work dir, and this file must not be overwritten.
        if path.suffix == '.py':
            write_text(path, python_text(self.cfg))
        else:
            write_config(self.cfg, path)

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
        """Scale the learning rate in proportion to the number of images in an optimizer step.

        mmengine counts only the images of one iteration and ignores gradient accumulation.
        """
        if auto_scale_lr and auto_scale_lr.get('enable'):
            base = auto_scale_lr.get('base_batch_size')
            if base is None:
                raise UserError(
                    'auto_scale_lr.base_batch_size: required to scale the learning rate; set it to the total batch size that '
                    'optim_wrapper.optimizer.lr is meant for, or set auto_scale_lr.enable=False',
                    code='no-base-batch-size',
                )
            steps = (self.cfg.get('optim_wrapper') or {}).get('accumulative_counts', 1)
            auto_scale_lr = {**auto_scale_lr, 'base_batch_size': base / steps}
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def register_hook(self, hook: Hook | dict, priority: int | str | None = None) -> None:
        """Register a hook, but replace mmengine's CheckpointHook, which cannot resume exactly, by ExactCheckpointHook."""
        kind = hook.get('type') if isinstance(hook, dict) else None
        if isinstance(kind, str):
            kind = HOOKS.get(kind)
        if kind is CheckpointHook:
            hook = {**hook, 'type': 'mmairl.ExactCheckpointHook'}
        super().register_hook(hook, priority)

    def register_default_hooks(self, hooks: dict[str, Hook | dict | None] | None = None) -> None:
        """Register the default hooks, except those that the config sets to None.

        mmengine itself accepts None only for its own six hooks.
        """
        chosen = {
            name: hook
            for name, hook in (hooks or {}).items()
            if hook is not None or name in DEFAULT_HOOKS
        }
        super().register_default_hooks(chosen)

    def prepare(self) -> None:
        """Build the optimizer now instead of in `train`, so that mistakes in its config raise early.

        If the run has a strategy, also split the optimizer over the processes.
        """
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.strategy:
            self.strategy.shard_optimizer(self.optim_wrapper, self.model)

    def train(self) -> nn.Module:
        with explained_deaths():
            return super().train()

    def load_checkpoint(self, filename: str, *_: Any, **__: Any) -> dict[str, Any]:
        """Load the weights of a checkpoint. If they do not fit the model, PreflightHook raises."""
        checkpoint = self.start.take(filename)
        if self.start.forks:
            fit_to_branch(checkpoint, network_of(self))
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        weights = checkpoint.get('state_dict', checkpoint)
        platform.load_state_dict(network_of(self), weights, strict=False, logger='current')
        self._has_loaded = True
        self.logger.info(f'loaded {filename}')
        return checkpoint

    def resume(self, filename: str, *_: Any, **__: Any) -> None:
        """Restore a run from a checkpoint. `resume.py` explains what happens to changed settings."""
        restore_run(self, self.load_checkpoint(filename), filename, settings(self.cfg))
        self.logger.info(f'resumed after epoch {self.epoch}, iteration {self.iter}')

    def snapshot(
        self, meta: dict[str, int], save_optimizer: bool, save_param_scheduler: bool
    ) -> dict[str, Any] | None:
        """Copy the content of a checkpoint to host memory.

        All processes must call this method together, because each may hold a part of the model. The first process returns
        the content of the checkpoint; the other processes return None.
        """
        sharded = self.strategy
        weights = sharded.weights(self.model) if sharded else network_of(self).state_dict()
        optimizer = self.optim_wrapper.state_dict() if save_optimizer else None
        if not is_main_process():
            return None
        return snapshot(self, weights, {**meta, **self._origin}, optimizer, save_param_scheduler)

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
        checkpoint = self.snapshot(
            {**progress, **(meta or {})}, save_optimizer, save_param_scheduler
        )
        if checkpoint is None:
            return
        backend = get_file_backend(out_dir, backend_args=backend_args)
        path = backend.join_path(out_dir, filename)
        if isinstance(backend, LocalBackend) and not file_client_args:
            write_snapshot(checkpoint, Path(path))
        else:
            platform.save_checkpoint(
                portable_checkpoint(checkpoint), path, file_client_args, backend_args
            )


class EpochLoop(EpochBasedTrainLoop):
    """mmengine's loop over epochs, which can resume inside an epoch."""

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        done = self._iter - self._epoch * len(self.dataloader)
        remaining = prefetch_to_device(batches(self.dataloader, self._epoch, done))
        for index, batch in enumerate(remaining, done):
            self.run_iter(index, batch)
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1


class IterLoop(IterBasedTrainLoop):
    """mmengine's loop over iterations. After a resume, it does not read images that the run has seen in earlier epochs.

    With a ResumableSampler, it does not read the images again that the run has seen in the current epoch, either.
    """

    def __init__(self, runner: PlainRunner, dataloader: DataLoader, *args, **kwargs) -> None:
        # mmengine's constructor starts to read from the loader, but a sampler with an endless stream can be read only once.
        # The constructor therefore gets another loader, without workers and without the run's sampler.
        idle = DataLoader(dataloader.dataset, generator=dataloader.generator)
        super().__init__(runner, idle, *args, **kwargs)
        self.dataloader = dataloader

    def run(self) -> nn.Module:
        self.dataloader_iterator = RemainingBatches(self.dataloader, self._iter)
        return super().run()


class RemainingBatches:
    """Iterator that returns None for each batch that the run has already seen, and then the remaining batches.

    When a run resumes, mmengine's loop first skips the batches that the run has seen. The package onedl-mmengine, a variant
    of mmengine, calls `skip_iter` to do so. Skipping None costs nothing, whereas skipping a batch would read its images.
    """

    def __init__(self, loader: DataLoader, seen: int) -> None:
        self.batches = chain(repeat(None, seen), prefetch_to_device(endless(loader, seen)))

    def __iter__(self) -> Iterator[dict | None]:
        return self

    def __next__(self) -> dict | None:
        return next(self.batches)

    def skip_iter(self, number: int) -> None:
        for _ in range(number):
            next(self)
