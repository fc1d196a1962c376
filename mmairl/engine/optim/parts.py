"""Parameter groups by depth, and sets of gradients that are clipped together."""

from collections.abc import Iterator
from itertools import count

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.models.backbones import blocks, patch_projection
from mmairl.registry import OPTIM_WRAPPER_CONSTRUCTORS


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecayConstructor(DefaultOptimWrapperConstructor):
    """Build an optimizer whose learning rates fall toward the input of the backbone.

    In a backbone of L blocks, the rate of block ``l`` is multiplied by ``decay^(L + 1 - l)``. The parameters before the first
    block have ``l = 0``, and those after the last block, and of all other parts, have ``l = L + 1``. Vectors (biases, gains of
    norms and of layer scale) have no weight decay.

    The keys of `optim_wrapper.paramwise_cfg` are ``layer_decay`` (default: 1) and ``patch_embed``, a further factor of the
    rate of a ViT's patch embedding (default: 1).

    Example:
        >>> optim_wrapper = dict(
        ...     constructor='LayerDecayConstructor', paramwise_cfg=dict(layer_decay=0.9, patch_embed=0.2)
        ... )
    """

    def __init__(self, optim_wrapper_cfg: dict, paramwise_cfg: dict | None = None) -> None:
        # Without these settings, mmengine would not call `add_params`.
        super().__init__(optim_wrapper_cfg, paramwise_cfg or dict(layer_decay=1.0))

    def add_params(self, params: list[dict], module: nn.Module, **_: object) -> None:
        decay = self.paramwise_cfg.get('layer_decay', 1.0)
        embedding = patch_projection(module.backbone)
        embedded = set() if embedding is None else set(map(id, embedding.parameters()))
        depths, top = depths_of(module.backbone)
        groups: dict[tuple, list[Tensor]] = {}
        for name, weight in module.named_parameters():
            if not weight.requires_grad:
                continue
            part = name.partition('.')[0]
            # The token that replaces masked patches enters the backbone at its input.
            depth = 0 if part == 'masking' else depths.get(id(weight), top)
            factor = decay ** (top - depth)
            if id(weight) in embedded:
                factor *= self.paramwise_cfg.get('patch_embed', 1.0)
            part = 'backbone' if part == 'masking' else part
            groups.setdefault((part, factor, weight.ndim > 1), []).append(weight)
        for (part, factor, decays), weights in groups.items():
            group = dict(params=weights, part=part, lr=self.base_lr * factor)
            params.append(group if decays else dict(group, weight_decay=0.0))


def depths_of(backbone: nn.Module) -> tuple[dict[int, int], int]:
    """Return the depth of each of the backbone's parameters, by id, and the depth after the last block."""
    depths: dict[int, int] = {}
    depth = 0
    for depth, block in zip(count(1), blocks(backbone)):
        depths.update((id(weight), depth) for weight in block.parameters())
    before = True
    for weight in backbone.parameters():
        before = before and id(weight) not in depths
        depths.setdefault(id(weight), 0 if before else depth + 1)
    return depths, depth + 1


def clipped_together(optimizer: Optimizer, per: str) -> Iterator[list[Tensor]]:
    """Yield the sets of parameters whose gradients are clipped by their common norm.

    Args:
        optimizer: The optimizer.
        per: 'all' for one set, 'part' for one set per part of the model (the backbone, each projector), or 'tensor'. The parts
            are those of `LayerDecayConstructor`.
    """
    sets: dict[object, list[Tensor]] = {}
    for group in optimizer.param_groups:
        for weight in group['params']:
            if weight.grad is not None:
                key = {'all': 0, 'part': group.get('part'), 'tensor': id(weight)}[per]
                sets.setdefault(key, []).append(weight)
    yield from sets.values()
