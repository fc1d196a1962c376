"""Strategies: what each process of a run holds, when it is not the whole model and optimizer."""

import os
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast
from mmengine.optim import OptimWrapper
from torch import Tensor, nn

from mmairl.errors import UserError, closest
from mmairl.registry import STRATEGIES


class Strategy:
    """Divide the model and the optimizer of a run over its processes."""

    def complete(self, cfg: Config) -> None:
        """Set keys of the config that follow from the strategy."""

    def shard(self, model: nn.Module) -> nn.Module:
        """Initialize the model and return it ready for training."""
        raise NotImplementedError

    def shard_optimizer(self, wrapper: OptimWrapper, model: nn.Module) -> None:
        """Divide the wrapped optimizer in place."""
        raise NotImplementedError

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict of an ordinary run, in the first process; all processes call this."""
        raise NotImplementedError


def strategy_of(cfg: Config) -> Strategy | None:
    """Return the strategy that a config names, or None."""
    if not cfg.get('strategy'):
        return None
    kind = STRATEGIES.get(str(cfg.strategy.get('type')))
    if kind is None or not issubclass(kind, Strategy):
        raise UserError(
            f"strategy.type: is not a strategy of mmairl ('{cfg.strategy.get('type')}'); "
            "set 'ZeroStrategy' or 'DeepSpeedStrategy'",
            code='unknown-strategy',
        )
    return STRATEGIES.build(cfg.strategy)


def require_known(zero: dict[str, Any], known: Iterable[str]) -> None:
    """Raise for a key of `strategy.zero_optimization` that is not known, and for an offload to other than the CPU."""
    for key, value in zero.items():
        if key not in known:
            raise UserError(
                f"strategy.zero_optimization: has no key '{key}'{closest(key, known)}",
                code='unknown-key',
            )
        if key.startswith('offload') and (value or {}).get('device', 'cpu') != 'cpu':
            raise UserError(
                f"strategy.zero_optimization.{key}.device: is not supported ('{value['device']}'); set 'cpu'",
                code='unsupported-offload',
            )


def initialize(model: nn.Module, device: torch.device | str) -> None:
    """Initialize a model on this device, with the same weights in all processes, and join a group if there is none."""
    if not dist.is_initialized():  # sharding requires a group, even of one process
        os.environ.setdefault('LOCAL_RANK', '0')
        backend = 'nccl' if get_device() == 'cuda' else 'gloo'
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    model.to(device, memory_format=torch.contiguous_format)
    model.init_weights()
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            broadcast(value)
