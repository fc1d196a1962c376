"""mmengine's runners with loops that resume exactly and checkpoints that hold what that takes."""

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from mmengine._strategy import BaseStrategy
from mmengine.fileio import join_path
from mmengine.hooks import Hook
from mmengine.runner import FlexibleRunner
from mmengine.runner import Runner as PlainRunner
from mmengine.runner.base_loop import BaseLoop
from mmengine.runner.checkpoint import save_checkpoint
from mmengine.runner.utils import _get_batch_size
from torch import nn
from torch.utils.data import DataLoader

from mmairl.data.training import TrainingImages
from mmairl.engine.checkpoint import Checkpointed
from mmairl.engine.fast import lay_out, make_fast
from mmairl.engine.loops import EpochLoop, IterLoop
from mmairl.engine.preemption import deaf
from mmairl.errors import UserError
from mmairl.network import network_of
from mmairl.registry import DATASETS


class ExactRun(Checkpointed):
    """What our runners have in common: loops, data and checkpoints.

    Trains through `EpochLoop` or `IterLoop`, on images that draw their own random numbers. A loop that a config names by its
    type is used as it is.
    """

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, BaseLoop) or 'type' in loop:
            return super().build_train_loop(loop)
        settings = dict(loop)
        kind = EpochLoop if settings.pop('by_epoch') else IterLoop
        return kind(self, self._build_train_dataloader(), **settings)

    def register_default_hooks(self, hooks: dict[str, Hook | dict | None] | None = None) -> None:
        """A hook that a config sets to None is left out; mmengine takes that for the six that it knows itself."""
        known = ('runtime_info', 'timer', 'sampler_seed', 'logger', 'param_scheduler', 'checkpoint')
        kept = {name: hook for name, hook in (hooks or {}).items() if hook is not None or name in known}
        super().register_default_hooks(kept)

    def _build_train_dataloader(self) -> DataLoader:
        if isinstance(self._train_dataloader, DataLoader):
            return self._train_dataloader
        dataset = DATASETS.build(self._train_dataloader['dataset'])
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        dataset = TrainingImages(dataset)
        own = self._randomness_cfg.get('diff_rank_seed', False)
        loader = self.build_dataloader({**self._train_dataloader, 'dataset': dataset}, self.seed, own)
        loader.generator = torch.Generator()  # else each start of the workers draws from the run's own
        loader.worker_init_fn = partial(deaf, then=loader.worker_init_fn)
        return loader


class Runner(ExactRun, PlainRunner):
    """The runner of ordinary runs: one process, or several with the whole model each."""

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        return make_fast(super().build_model(model), self.cfg.get('fast'))

    def _init_model_weights(self) -> None:
        """In the default layout: random numbers are drawn in the order in which a weight lies in memory."""
        self.model.to(memory_format=torch.contiguous_format)
        super()._init_model_weights()
        lay_out(self.model, self.cfg.get('fast'))

    def resume(self, filename: str, *args, map_location: str = 'cpu', **kwargs) -> None:
        """From the host's memory: a GPU has no room for a second copy, and counts of steps belong where torch puts them."""
        super().resume(filename, *args, map_location=map_location, **kwargs)

    def prepare(self) -> None:
        """Build what is left to build, which `train` finds done."""
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)

    def _weights(self) -> OrderedDict[str, Any]:
        model = network_of(self)
        return model.state_dict()

    def _optimizer_state(self) -> dict[str, Any]:
        return self.optim_wrapper.state_dict()


class StrategyRunner(ExactRun, FlexibleRunner):
    """The runner of runs with a strategy, which builds model and optimizer and holds them in parts.

    It differs from mmengine's where that differs from mmengine's own older runner: the network is built before the data, so
    that the same seed draws the same weights, accumulation knows the run's last iteration, and hooks see every checkpoint.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.model = make_fast(
            self.strategy.build_model(self.model), self.strategy.without_compiling(self.cfg.get('fast'))
        )

    def build_strategy(self, strategy: dict, **kwargs) -> BaseStrategy:
        from mmairl.sharding.strategy import ZeroStrategy  # wants DeepSpeed

        if (kind := strategy.get('type')) not in ('ZeroStrategy', 'mmairl.ZeroStrategy', ZeroStrategy):
            raise UserError(
                f"strategy.type='{kind}' is not one that keeps LARS, the teacher and the queue right when it cuts the weights "
                "up; set strategy=dict(type='ZeroStrategy', zero_optimization=dict(stage=2))"
            )
        return super().build_strategy(strategy, **kwargs)

    @property
    def _log_dir(self) -> str:
        return self.log_dir  # by this name for mmengine's hooks

    def prepare(self) -> None:
        """Build all that the strategy builds, which `train` finds done."""
        self.strategy.prepare(
            self.model,
            optim_wrapper=self.optim_wrapper,
            param_scheduler=self.param_schedulers,
            dispatch_kwargs=dict(
                epoch_length=len(self.train_dataloader),
                max_epochs=self.max_epochs,
                max_iters=self.max_iters,
                train_micro_batch_size_per_gpu=_get_batch_size(self.train_dataloader),
            ),
        )
        self.model, self.optim_wrapper = self.strategy.model, self.strategy.optim_wrapper
        self.param_schedulers = getattr(self.strategy, 'param_schedulers', None)

    def load_checkpoint(self, filename: str, **how: Any) -> dict[str, Any]:
        return FlexibleRunner.load_checkpoint(self, filename, **how)  # by the strategy

    def load_or_resume(self) -> None:
        self.strategy.take = self.start.take
        super().load_or_resume()
        self.optim_wrapper.initialize_count_status(self.model.module, self.iter, self.max_iters)

    def save_checkpoint(
        self,
        out_dir: str,
        filename: str,
        file_client_args: dict | None = None,
        *,
        save_optimizer: bool = True,
        save_param_scheduler: bool = True,
        meta: dict[str, int] | None = None,
        by_epoch: bool = True,
        backend_args: dict | None = None,
        **_: Any,
    ) -> None:
        """mmengine's way to a checkpoint, for stores other than a disk."""
        place = dict(epoch=self.epoch + by_epoch, iter=self.iter + (not by_epoch))
        checkpoint = self.snapshot({**(meta or {}), **place}, save_optimizer, save_param_scheduler)
        if checkpoint is not None:
            save_checkpoint(
                checkpoint, join_path(out_dir, filename, backend_args=backend_args), backend_args=backend_args
            )

    def _weights(self) -> OrderedDict[str, Any]:
        return self.strategy.weights.whole()

    def _optimizer_state(self) -> dict[str, Any] | None:
        return self.optim_wrapper.state_dict()
