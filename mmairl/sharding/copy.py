"""Plain copies of a part of a model whose weights are in shards, for hooks that evaluate it beside training."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn


class PlainCopy:
    """What `copy.deepcopy` does with a part of a sharded model: a plain module with whole float32 weights in every process.

    Made before the engine starts, which ties parameters to its own state. All processes copy together.
    """

    def __init__(self, part: nn.Module, whole: Callable[[nn.Module], dict[str, Tensor]]) -> None:
        self.part, self.whole, self.empty = part, whole, copy.deepcopy(part)
        for module in self.empty.modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    module._parameters[name] = nn.Parameter(weight.detach().to('meta'), weight.requires_grad)
        part.__deepcopy__ = self

    @torch.no_grad()
    def __call__(self, memo: dict) -> nn.Module:
        found = copy.deepcopy(self.empty, memo)
        values = self.whole(self.part)
        for owner, module in found.named_modules():
            for name, weight in module._parameters.items():
                if weight is not None:
                    value = values[f'{owner}.{name}' if owner else name]
                    module._parameters[name] = nn.Parameter(value, weight.requires_grad)
        for own, theirs in zip(found.buffers(), self.part.buffers()):
            own.data = theirs.detach().clone()
        return found
