"""Strategies that split the model and the optimizer of a run over its processes."""

import os
import re
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import broadcast
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.registry import STRATEGIES

KINDS = dict(zero='ZeroStrategy', deepspeed='DeepSpeedStrategy')


class Strategy:
    """Base class of strategies.

    A subclass defines `shard_optimizer(wrapper, model)`, which splits the optimizer in the wrapper in place.

    Args:
        stage: The stage of ZeRO.

    Raises:
        UserError: If the strategy has no such stage.
    """

    stages: tuple[int, ...] = ()

    def __init__(self, stage: int) -> None:
        if stage not in self.stages:
            raise UserError(
                f"strategy.stage: {type(self).__name__} has the stages {', '.join(map(str, self.stages))} ('{stage}'); set one "
                'of them, or use ZeroStrategy (--strategy zero3)',
                code='unknown-stage',
            )
        self.stage = stage

    def complete(self, cfg: Config) -> None:
        """Set config keys whose values follow from the strategy."""

    def shard(self, model: nn.Module) -> nn.Module:
        """Initialize the model, split it if the strategy splits models, and return it."""
        initialize(model, get_device())
        return model

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict that the model would have without a strategy.

        All processes must call this method together. Only the result in the first process must be complete.
        """
        return model.state_dict()


def strategy_named(name: str) -> ConfigDict:
    """Return the config of the strategy that `--strategy NAME` selects.

    >>> strategy_named('deepspeed2_offload')
    {'type': 'DeepSpeedStrategy', 'stage': 2, 'offload': True}
    """
    match = re.fullmatch(r'(zero|deepspeed)(\d)(_offload)?', name)
    if match is None:
        raise UserError(
            f"--strategy: unknown strategy ('{name}'); use zero1, zero2, zero3, deepspeed1, deepspeed2, deepspeed1_offload or "
            'deepspeed2_offload',
            code='unknown-strategy',
        )
    kind, stage, offload = match.groups()
    strategy = ConfigDict(type=KINDS[kind], stage=int(stage))
    if offload:
        strategy.offload = True
    return strategy


def strategy_of(cfg: Config) -> Strategy | None:
    """Return the strategy that a config describes, or None if it has no strategy."""
    return STRATEGIES.build(cfg.strategy) if cfg.get('strategy') else None


def initialize(model: nn.Module, device: torch.device | str) -> None:
    """Initialize a model on this device, with the same weights in all processes."""
    # Sharding requires a process group, even if there is only one process.
    if not dist.is_initialized():
        os.environ.setdefault('LOCAL_RANK', '0')
        backend = 'nccl' if get_device() == 'cuda' else 'gloo'
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model.to(device, memory_format=torch.contiguous_format)
    model.init_weights()
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            broadcast(value)
