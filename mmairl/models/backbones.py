"""Backbones that mmpretrain lacks, and functions that pool features or list the stages and blocks of a backbone."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from mmengine.model import BaseModule
from mmpretrain.models.backbones.resnet import Bottleneck
from mmpretrain.models.backbones.resnet import ResNet as ResNetOfMMPretrain
from mmpretrain.models.backbones.resnet_cifar import ResNet_CIFAR
from mmpretrain.models.backbones.vision_transformer import (
    VisionTransformer as VisionTransformerOfMMPretrain,
)
from torch import Tensor, nn

from mmairl.errors import explained
from mmairl.registry import MODELS


def pooled(features: Tensor | tuple) -> Tensor:
    """Return one vector per image from the output of a backbone.

    If the backbone returns the outputs of several stages, only the last one is used. Feature maps are averaged over space.
    """
    last = features[-1] if isinstance(features, tuple | list) else features
    return last.mean(dim=(2, 3)) if last.ndim == 4 else last


@MODELS.register_module()
class ResNet(ResNetOfMMPretrain):
    """mmpretrain's ResNet, which can also have 200 layers, like the deepest network in BYOL's paper.

    Args:
        depth: 18, 34, 50, 101, 152 or 200. The other arguments are those of `mmpretrain.ResNet`.
    """

    arch_settings = {**ResNetOfMMPretrain.arch_settings, 200: (Bottleneck, (3, 24, 36, 3))}


@MODELS.register_module()
class SoloLearnResNet(ResNet_CIFAR):
    """solo-learn's ResNet for small images: `mmpretrain.ResNet_CIFAR` with a padding of 2 pixels in the stem."""

    def _make_stem_layer(self, in_channels: int, base_channels: int) -> None:
        super()._make_stem_layer(in_channels, base_channels)
        self.conv1.padding = (2, 2)


@MODELS.register_module()
class VisionTransformer(VisionTransformerOfMMPretrain):
    """mmpretrain's ViT with DINOv2's register tokens.

    Args:
        registers: Number of register tokens. The parameter `cls_token` contains the class token and then these tokens.
        **settings: The arguments of `mmpretrain.VisionTransformer`.
    """

    def __init__(self, *, registers: int = 0, **settings: Any) -> None:
        self.num_extra_tokens = 1 + registers
        super().__init__(**settings)
        self.cls_token = nn.Parameter(torch.zeros(1, 1 + registers, self.embed_dims))


@MODELS.register_module()
class RotaryVisionTransformer(BaseModule):
    """timm's DINOv3 ViT, which has rotary position embeddings.

    If the side of an image is not a multiple of the patch size, the pixels beyond the last complete patch are cropped.

    Args:
        embed_dims: Width of the tokens.
        num_layers: Number of blocks.
        num_heads: Attention heads per block.
        feedforward_channels: Hidden width of each block's MLP.
        registers: Number of register tokens.
        patch_size: Side of a patch in pixels.
        in_channels: Channels of the images.
        qkv_bias: Whether queries, keys and values have a bias.
        gated: Whether the MLPs have gates (SwiGLU).
        out_type: `'cls_token'` for the class token of the last layer, or `'featmap'` for a map of its patch features.

    Raises:
        UserError: If timm is not installed.
    """

    def __init__(
        self,
        embed_dims: int,
        num_layers: int,
        num_heads: int,
        feedforward_channels: int,
        registers: int = 4,
        patch_size: int = 16,
        in_channels: int = 3,
        qkv_bias: bool = False,
        gated: bool = False,
        out_type: str = 'cls_token',
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        requirement = 'RotaryVisionTransformer requires the package timm'
        with explained(requirement, 'pip install timm', (ImportError,), code='missing-timm'):
            from timm.layers import LayerNorm
            from timm.models.eva import Eva
        self.out_type = out_type
        self.patch = patch_size
        self.vit = Eva(
            img_size=14 * patch_size,
            dynamic_img_size=True,
            patch_size=patch_size,
            in_chans=in_channels,
            num_classes=0,
            global_pool='token',
            embed_dim=embed_dims,
            depth=num_layers,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            mlp_ratio=feedforward_channels / embed_dims,
            swiglu_mlp=gated,
            # With a value above 0, timm makes the gate a separate layer, as in DINOv3's weights.
            swiglu_align_to=8 if gated else 0,
            norm_layer=partial(LayerNorm, eps=1e-5),
            init_values=1e-5,
            use_abs_pos_emb=False,
            use_rot_pos_emb=True,
            rope_type='dinov3',
            rope_temperature=100,
            rope_rotate_half=True,
            num_reg_tokens=registers,
            use_fc_norm=False,
        )

    def forward(self, images: Tensor) -> tuple[Tensor]:
        rows, columns = (side // self.patch for side in images.shape[2:])
        whole = images[:, :, : rows * self.patch, : columns * self.patch]
        tokens = self.vit.forward_features(whole)
        if self.out_type == 'cls_token':
            return (tokens[:, 0],)
        patches = tokens[:, -rows * columns :]
        return (patches.transpose(1, 2).unflatten(2, (rows, columns)),)


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
    """Return the student's parameters, grouped by part of the model. The backbone is divided into its stages.

    The backbone's parameters that belong to no stage are in the group `stem` if they precede the first stage, and otherwise
    in the group `top`.
    """
    parts: dict[str, list[nn.Parameter]] = {}
    for name, child in model.named_children():
        if name == 'backbone':
            parts.update(_backbone_parameters(child))
        elif name != 'teacher' and any(True for _ in child.parameters()):
            parts[name] = list(child.parameters())
    return parts


def _backbone_parameters(backbone: nn.Module) -> dict[str, list[nn.Parameter]]:
    stage_of = {}
    for stage, modules in stages(backbone).items():
        for module in modules:
            stage_of.update((id(weight), stage) for weight in module.parameters())
    parts: dict[str, list[nn.Parameter]] = {}
    outside = 'stem'
    for weight in backbone.parameters():
        stage = stage_of.get(id(weight))
        parts.setdefault(stage or outside, []).append(weight)
        if stage:
            outside = 'top'
    return parts
