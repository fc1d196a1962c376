"""Backbones that mmpretrain lacks, and functions that read the outputs, stages and blocks of any backbone."""

import inspect
import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from mmengine.model import initialize
from mmpretrain.models.backbones.resnet import Bottleneck
from mmpretrain.models.backbones.resnet import ResNet as ResNetOfMMPretrain
from torch import Tensor, nn

from mmairl.errors import UserError, explained
from mmairl.models.lora import add_adapters
from mmairl.registry import MODELS

PROBED = 4  # a backbone is checked by two calls on at most this many images
TOLERANCE = 1e-3  # largest difference between two calls, relative to the largest feature


class Features(NamedTuple):
    """The features of a batch of images.

    Attributes:
        pooled: One vector per image, of shape (B, C).
        patches: A feature map of shape (B, C, rows, columns), or None if the backbone returns only pooled features.
    """

    pooled: Tensor
    patches: Tensor | None


def features(backbone: nn.Module, images: Tensor) -> Features:
    """Return the pooled features and the patch features of a batch of images.

    The backbone may return pooled features, a feature map, tokens (of mmpretrain, timm or torchvision), or a tuple whose last
    item is one of these. A backbone with the argument `mask`, such as the ViT of mmpretrain's MAE, is called without a mask.

    Raises:
        UserError: If the output contains anything but such features.
    """
    takes_mask = 'mask' in inspect.signature(backbone.forward).parameters
    output = last_output(backbone(images, mask=None) if takes_mask else backbone(images))
    patches = output if output.ndim == 4 else None
    if output.ndim == 3:
        patches = patch_map(output, backbone, images)
    return Features(pooled(output, backbone), patches)


def require_features(backbone: nn.Module, images: Tensor) -> None:
    """Raise unless a backbone returns one vector for each of some images, and the same vectors again.

    Other outputs, such as the permutation of patches of a masked model, would be scored silently.
    """
    images = images[:PROBED]
    name = type(backbone).__name__
    remedy = (
        'model.backbone(images) must return floating-point features, a map or tokens; wrap the '
        'network in a class whose forward does'
    )
    with explained(f'{name}: its output cannot be pooled', remedy, code='not-features'):
        first, second = (features(backbone, images).pooled.float() for _ in range(2))
        apart = (first - second).abs().max() / first.abs().max()
    fault = ''
    if first.ndim != 2 or len(first) != len(images):
        fault = f'its features of {len(images)} images have the shape {tuple(first.shape)}'
    elif apart > TOLERANCE:  # NaN is allowed here: it means that the pre-training diverged
        fault = 'its features of the same images differ between two calls'
    if fault:
        raise UserError(f'{name}: {fault}; {remedy}', code='not-features')


def pooled(output: Tensor | Sequence[Tensor], backbone: nn.Module | None = None) -> Tensor:
    """Return one vector per image from the output of a backbone.

    Maps are averaged over space. Of tokens, the result is the class token, or the mean if the backbone has no class token.
    """
    last = last_output(output)
    if last.ndim == 4:
        return last.mean(dim=(2, 3))
    if last.ndim == 3:
        return last[:, 0] if backbone is None or extra_tokens(backbone) else last.mean(dim=1)
    return last


def last_output(output: Tensor | Sequence[Tensor]) -> Tensor:
    """Return the output of the last stage of a backbone, after checking that it is a tensor of features."""
    stages = output if isinstance(output, tuple | list) else [output]
    for stage in stages:
        if not (isinstance(stage, Tensor) and stage.is_floating_point() and 2 <= stage.ndim <= 4):
            kind = f'{stage.dtype}, {stage.ndim} axes' if isinstance(stage, Tensor) else type(stage)
            raise UserError(
                f"model.backbone: expected pooled features, a map or tokens in floating point ('{kind}'); return only these",
                code='not-features',
            )
    return stages[-1]


def extra_tokens(backbone: nn.Module) -> int:
    """Return the number of tokens (class token and registers) that precede the patch tokens."""
    if hasattr(backbone, 'class_token') and not hasattr(backbone, 'num_prefix_tokens'):
        return 1  # torchvision's ViT
    return getattr(backbone, 'num_prefix_tokens', getattr(backbone, 'num_extra_tokens', 0))


def patch_projection(backbone: nn.Module) -> nn.Conv2d | None:
    """Return the convolution that embeds the patches of a ViT, or None for a network without patches."""
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            return part if part.kernel_size == part.stride != (1, 1) else None
    return None


def patch_size(backbone: nn.Module) -> int:
    """Return the side of a ViT's patches in pixels, or 1 for a network without patches."""
    projection = patch_projection(backbone)
    return 1 if projection is None else projection.kernel_size[0]


def patch_map(tokens: Tensor, backbone: nn.Module, images: Tensor) -> Tensor:
    """Return the patch tokens of images as a feature map. The backbone may have cropped or padded incomplete patches."""
    patches = tokens[:, extra_tokens(backbone) :].transpose(1, 2)
    count = patches.shape[2]
    size = patch_size(backbone)
    height, width = images.shape[2:]
    for rounded in (math.floor, math.ceil):
        rows = rounded(height / size)
        columns = rounded(width / size)
        if rows * columns == count:
            return patches.unflatten(2, (rows, columns))
    raise UserError(
        f'model.backbone: {count} patch tokens do not fit images of {height} x {width} pixels with patches of {size} '
        f"pixels ('{type(backbone).__name__}'); set the attribute num_prefix_tokens of the backbone",
        code='unknown-tokens',
    )


@MODELS.register_module()
class ResNet(ResNetOfMMPretrain):
    """mmpretrain's ResNet, which can also have 200 layers, like the deepest network in BYOL's paper.

    Args:
        depth: 18, 34, 50, 101, 152 or 200. The other arguments are those of `mmpretrain.ResNet`.
    """

    arch_settings = {**ResNetOfMMPretrain.arch_settings, 200: (Bottleneck, (3, 24, 36, 3))}


@MODELS.register_module('TimmBackbone')
def timm_backbone(
    name: str,
    tokens: bool = False,
    drop_path: float = 0.0,
    lora: int = 0,
    init_cfg: dict | None = None,
    **settings: Any,
) -> nn.Module:
    """Return a network of timm without its classifier. Its weights keep timm's names.

    Args:
        name: Name of the network in timm, such as `'vit_small_patch16_224'`.
        tokens: Whether the network returns the tokens of a ViT, or the map of another network, instead of pooled features.
        drop_path: Rate of stochastic depth in every block of a ViT. With timm's own `drop_path_rate`, the rate rises linearly
            from 0.
        lora: Rank of low-rank adapters (LoRA). If it is not 0, only the adapters of the linear layers learn. Checkpoints hold
            the merged weights.
        init_cfg: How to initialize the weights, such as ``dict(type='PretrainedBackbone', checkpoint=CKPT)``. Default: as timm
            does.
        **settings: Further arguments of `timm.create_model`, such as `pretrained=True`, `dynamic_img_size=True` (images of
            several sizes), `reg_tokens=4` or `init_values=1e-5` (layer scale).
    """
    with explained(
        'TimmBackbone requires timm', 'pip install timm', (ImportError,), code='no-timm'
    ):
        import timm
    with explained(
        f'TimmBackbone: {name} is unknown or cannot be downloaded',
        'check the name and the connection',
        (RuntimeError, OSError),
        code='unavailable-model',
    ):
        network = timm.create_model(name, num_classes=0, **settings)
    for block in blocks(network) if drop_path else ():
        block.drop_path1 = timm.layers.DropPath(drop_path)
        block.drop_path2 = timm.layers.DropPath(drop_path)
    if lora:
        add_adapters(network, lora)
    if tokens:
        if getattr(network, 'output_fmt', '') == 'NHWC':
            raise UserError(
                f"model.backbone.tokens: the maps of '{name}' have their channels last; use another network, or tokens=False",
                code='channels-last-maps',
            )
        network.forward = network.forward_features
    # Without `init_cfg`, timm has initialized or loaded the weights, which mmengine would otherwise initialize again.
    network.init_weights = partial(initialize, network, init_cfg or [])
    return network


def stages(backbone: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the modules of each stage, from the input to the output.

    Children with a numbered name, such as `layer1` or `stage2`, are stages. In a network without such children, such as a
    ViT, each quarter of its list of blocks counts as a stage. If there is no such list either, the result is empty.

    >>> layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(12))
    >>> list(stages(nn.ModuleDict(dict(layers=layers))))
    ['layers_0-2', 'layers_3-5', 'layers_6-8', 'layers_9-11']
    """
    numbered = {}
    for name, child in backbone.named_children():
        if name[-1].isdigit() and list(child.children()):
            numbered[name] = [child]
    if numbered:
        return numbered
    quarters = {}
    for name, child in backbone.named_children():
        if not isinstance(child, nn.ModuleList | nn.Sequential) or len(child) < 4:
            continue
        ends = [-(-quarter * len(child) // 4) for quarter in range(5)]
        for first, end in pairwise(ends):
            label = f'{name}_{first}-{end - 1}' if end - first > 1 else f'{name}_{first}'
            quarters[label] = list(child[first:end])
    return quarters


def blocks(backbone: nn.Module) -> Iterator[nn.Module]:
    """Yield the blocks of a ResNet's stages, or of a transformer's list of blocks."""
    for part in backbone.children():
        if isinstance(part, nn.Sequential | nn.ModuleList):
            yield from part.children()


def parameters_by_stage(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Return the student's parameters, grouped by stage of the backbone and by part of the model.

    The backbone's parameters outside of its stages are in the group `backbone`.
    """
    stage_of = {}
    for stage, modules in stages(model.backbone).items():
        for module in modules:
            stage_of.update((id(weight), stage) for weight in module.parameters())
    parts: dict[str, list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        part = name.partition('.')[0]
        if part not in ('teacher', 'anchor'):
            parts.setdefault(stage_of.get(id(weight), part), []).append(weight)
    return parts
