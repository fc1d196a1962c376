"""mmengine's runner with loops that resume exactly and checkpoints that hold what that takes."""

import time
from collections import OrderedDict
from functools import cached_property, partial
from typing import Any

import mmengine
import torch
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner as PlainRunner
from mmengine.runner.base_loop import BaseLoop
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from mmairl.data.seeded import Seeded
from mmairl.engine.fast import lay_out, make_fast
from mmairl.engine.loops import EpochLoop, IterLoop
from mmairl.engine.preemption import deaf
from mmairl.registry import DATASETS

copied = partial(tree_map_only, Tensor, lambda tensor: tensor.detach().to('cpu', copy=True))


class Runner(PlainRunner):
    """Trains through `EpochLoop` or `IterLoop`, on images that draw their own random numbers.

    A loop that a config names by its type is used as it is.
    """

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        if isinstance(loop, BaseLoop) or 'type' in loop:
            return super().build_train_loop(loop)
        settings = dict(loop)
        kind = EpochLoop if settings.pop('by_epoch') else IterLoop
        return kind(self, self._build_train_dataloader(), **settings)

    def _build_train_dataloader(self) -> DataLoader:
        if isinstance(self._train_dataloader, DataLoader):
            return self._train_dataloader
        dataset = Seeded(DATASETS.build(self._train_dataloader['dataset']))
        if hasattr(dataset, 'full_init'):
            dataset.full_init()
        own = self._randomness_cfg.get('diff_rank_seed', False)
        loader = self.build_dataloader({**self._train_dataloader, 'dataset': dataset}, self.seed, own)
        loader.generator = torch.Generator()  # else each start of the workers draws from the run's own
        loader.worker_init_fn = partial(deaf, then=loader.worker_init_fn)
        return loader

    def build_model(self, model: nn.Module | dict) -> nn.Module:
        return make_fast(super().build_model(model), self.cfg.get('fast'))

    def _init_model_weights(self) -> None:
        """In the default layout: random numbers are drawn in the order in which a weight lies in memory."""
        self.model.to(memory_format=torch.contiguous_format)
        super()._init_model_weights()
        lay_out(self.model, self.cfg.get('fast'))

    def snapshot(self, meta: dict[str, int], save_optimizer: bool, save_param_scheduler: bool) -> dict[str, Any]:
        """What mmengine writes into a checkpoint, copied to the host's memory: training may go on while it is written."""
        model = self.model.module if is_model_wrapper(self.model) else self.model
        weights = model.state_dict()
        checkpoint = dict(meta={**meta, **self._origin()}, state_dict=OrderedDict(copied(dict(weights))))
        checkpoint['state_dict']._metadata = weights._metadata
        checkpoint['message_hub'] = self.message_hub.state_dict()
        if save_optimizer:
            checkpoint['optimizer'] = copied(self.optim_wrapper.state_dict())
        if save_param_scheduler and self.param_schedulers is not None:
            checkpoint['param_schedulers'] = [copied(schedule.state_dict()) for schedule in self.param_schedulers]
        self.call_hook('before_save_checkpoint', checkpoint=checkpoint)
        return checkpoint

    def _origin(self) -> dict[str, Any]:
        found = dict(
            cfg=self._config_text,
            seed=self.seed,
            experiment_name=self.experiment_name,
            time=time.strftime('%Y%m%d_%H%M%S'),
            mmengine_version=mmengine.__version__,
        )
        metainfo = getattr(self.train_dataloader.dataset, 'metainfo', None)
        return found if metainfo is None else {**found, 'dataset_meta': metainfo}

    @cached_property
    def _config_text(self) -> str:
        return self.cfg.pretty_text  # formatting it takes longer than a step
