"""Strategies that split the model and the optimizer of a run over its processes."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import broadcast
from torch import Tensor, nn

from mmairl.errors import UserError, closest, explained
from mmairl.io import read_text
from mmairl.registry import STRATEGIES


class Strategy:
    """Base class of strategies.

    A subclass defines `shard(model)` and `shard_optimizer(wrapper, model)`. `shard` initializes the model, splits its weights
    if the strategy requires it, and returns the model. `shard_optimizer` splits the optimizer in the wrapper in place.
    """

    def complete(self, cfg: Config) -> None:
        """Set config keys whose values follow from the strategy."""

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict that the model would have without a strategy.

        All processes must call this method together. Only the result in the first process must be complete.
        """
        return model.state_dict()


def strategy_of(cfg: Config) -> Strategy | None:
    """Return the strategy that a config describes, or None if it has no strategy."""
    if not cfg.get('strategy'):
        return None
    kind = STRATEGIES.get(str(cfg.strategy.get('type')))
    if kind is None or not issubclass(kind, Strategy):
        raise UserError(
            f"strategy.type: unknown strategy ('{cfg.strategy.get('type')}'); "
            "set 'ZeroStrategy' or 'DeepSpeedStrategy'",
            code='unknown-strategy',
        )
    return STRATEGIES.build(cfg.strategy)


def require_supported(where: str, section: dict[str, Any], known: Sequence[str]) -> None:
    """Raise if a section has a key that is not in `known`, or if it offloads to a device other than the CPU."""
    for key, value in section.items():
        if key not in known:
            raise UserError(
                f"{where}: unsupported key ('{key}'){closest(key, known)}; remove it, or set the corresponding key of mmairl "
                '(docs/how-to/strategies.md)',
                code='unsupported-key',
            )
        if key.startswith('offload') and (value or {}).get('device', 'cpu') != 'cpu':
            raise UserError(
                f"{where}.{key}.device: unsupported device ('{value['device']}'); set 'cpu'",
                code='unsupported-offload',
            )


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


def read_config(config: str | dict | None) -> dict[str, Any]:
    """Return a DeepSpeed config as a dictionary. The argument may be the path of a JSON file."""
    if not isinstance(config, str):
        return config or {}
    with explained(
        f"strategy: the file cannot be read ('{config}')",
        'give a DeepSpeed config in JSON',
        code='bad-json',
    ):
        return dict(json.loads(read_text(Path(config))))
