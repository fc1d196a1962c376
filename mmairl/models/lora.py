"""LoRA: train low-rank additions to the frozen weights of linear layers (Hu et al. 2022)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from mmairl.errors import UserError


class LowRank(nn.Module):
    """Adds the product of two trained matrices to a weight. At first, the product is 0.

    Args:
        weight: The weight.
        rank: Rank of the product.
    """

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.up = nn.Parameter(torch.zeros(rows, rank))
        self.down = nn.Parameter(torch.empty(rank, columns))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def add_adapters(network: nn.Module, rank: int) -> None:
    """Freeze a network, and let only low-rank additions to the weights of its linear layers learn.

    The state dict holds the merged weights under the names that they have without adapters, and in addition the parts of the
    adapters, with which a run resumes exactly. A state dict without these parts is loaded as the frozen weights.
    """
    network.requires_grad_(False)
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UserError(
            f"model.backbone.lora: the network has no linear layers to adapt ('{type(network).__name__}'); remove lora",
            code='no-linear-layers',
        )
    for layer in layers:
        register_parametrization(layer, 'weight', LowRank(layer.weight, rank))
        layer.register_state_dict_post_hook(_merge)
        layer.register_load_state_dict_pre_hook(_start)


def _merge(layer: nn.Module, state: dict[str, Tensor], prefix: str, _: Any) -> None:
    state[f'{prefix}weight'] = layer.weight.detach()


def _start(layer: nn.Module, state: dict[str, Tensor], prefix: str, *_: Any) -> None:
    merged = state.pop(f'{prefix}weight', None)
    own = layer.parametrizations.state_dict(prefix=f'{prefix}parametrizations.')
    own[f'{prefix}parametrizations.weight.original'] = merged
    for name, value in own.items():
        state.setdefault(name, value)
