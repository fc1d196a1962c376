"""The stages and blocks of a backbone, in the order in which an image passes them."""

from collections.abc import Iterator
from itertools import pairwise

from torch import nn


def stages(backbone: nn.Module) -> dict[str, list[nn.Module]]:
    """The modules of each stage: `layer1`, `stage2` and the like, or else the quarters of each list of blocks.

    >>> list(stages(nn.ModuleDict(dict(layers=nn.ModuleList(nn.Linear(1, 1) for _ in range(12))))))
    ['layers_0-2', 'layers_3-5', 'layers_6-8', 'layers_9-11']
    """
    children = dict(backbone.named_children())
    numbered = [name for name, child in children.items() if name[-1].isdigit() and any(True for _ in child.children())]
    if numbered:
        return {name: [children[name]] for name in numbered}
    found = {}
    for name, child in children.items():
        if isinstance(child, nn.ModuleList | nn.Sequential) and len(child) >= 4:
            ends = [-(-quarter * len(child) // 4) for quarter in range(5)]
            for first, end in pairwise(ends):
                found[f'{name}_{first}-{end - 1}' if end - first > 1 else f'{name}_{first}'] = list(child[first:end])
    return found


def blocks(backbone: nn.Module) -> Iterator[nn.Module]:
    """The blocks that the backbone's stages, or a transformer's one list, are made of."""
    for part in backbone.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from part.children()


def parameters_by_stage(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """A network's parameters by part, and its backbone's by stage, with `stem` before the stages and `top` behind them."""
    parts: dict[str, list[nn.Parameter]] = {}
    for name, child in model.named_children():
        if name == 'backbone':
            modules = [(stage, module) for stage, modules in stages(child).items() for module in modules]
            stage_of = {id(weight): stage for stage, module in modules for weight in module.parameters()}
            around = 'stem'
            for weight in child.parameters():
                stage = stage_of.get(id(weight))
                parts.setdefault(stage or around, []).append(weight)
                around = 'top' if stage else around
        elif name != 'teacher' and any(True for _ in child.parameters()):
            parts[name] = list(child.parameters())
    return parts
