"""mmengine's runner with loops that resume exactly and checkpoints that hold what that takes."""

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner as PlainRunner
from mmengine.runner.base_loop import BaseLoop
from torch import nn
from torch.utils.data import DataLoader

from mmairl.data.training import TrainingImages, require_a_batch
from mmairl.data.workers import safe
from mmairl.engine.checkpoint import Checkpointed
from mmairl.engine.distributed import network_of
from mmairl.engine.fast import lay_out, make_fast
from mmairl.engine.loops import EpochLoop, IterLoop
from mmairl.engine.preemption import obey_parent_only
from mmairl.registry import DATASETS


class Runner(Checkpointed, PlainRunner):
    """One process, several with the whole model each, or, with a `strategy`, several with a part of it.

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
        loader.worker_init_fn = partial(obey_parent_only, then=loader.worker_init_fn)
        require_a_batch(loader)
        return safe(loader)

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        fast = dict(self.cfg.get('fast') or {})
        if self.cfg.get('strategy'):
            fast.pop('compile', None)  # untried with weights that are put together in each forward pass
        return make_fast(super().build_model(model), fast)

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        if not self.cfg.get('strategy'):
            return super().wrap_model(model_wrapper_cfg, model)
        from mmairl.sharding.zero import shard  # torch's sharding takes a second to import

        return shard(model, self.cfg.strategy)

    def _init_model_weights(self) -> None:
        """In the default layout: random numbers are drawn in the order in which a weight lies in memory."""
        if self.cfg.get('strategy'):
            return  # done before the weights were cut up
        self.model.to(memory_format=torch.contiguous_format)
        super()._init_model_weights()
        lay_out(self.model, self.cfg.get('fast'))

    def prepare(self) -> None:
        """Build what is left to build, which `train` finds done."""
        self.optim_wrapper = self.build_optim_wrapper(self.optim_wrapper)
        if self.cfg.get('strategy'):
            from mmairl.sharding.zero import shard_optimizer

            shard_optimizer(self.optim_wrapper)

    def _weights(self) -> OrderedDict[str, Any]:
        if self.cfg.get('strategy'):
            from mmairl.sharding.zero import whole_weights

            return whole_weights(self.model)
        return network_of(self).state_dict()
