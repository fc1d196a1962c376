"""Detect the architecture of a ResNet or a plain ViT from its weights, and return it as the `backbone=` of a config."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.registry import init_default_scope
from torch import Tensor

from mmairl.checkpoints.load import first_few, warn
from mmairl.errors import UserError

# The number of attention heads of released ViTs by their width. An exception is MoCo v3's ViT of width 384, which has 12.
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}
PATCHES = 'patch_embed.projection.weight'


def backbone_of(
    weights: Mapping[str, Tensor], path: str = 'the checkpoint', heads: int | None = None
) -> dict[str, Any]:
    """Return the `backbone=` of a config for weights whose tensors have the names that mmairl uses.

    Args:
        weights: Tensors of a ResNet, or of a ViT with a class token and position embeddings.
        path: The file, for messages.
        heads: Number of attention heads of a ViT, which cannot be derived from the tensors. Default: one for 64 channels, with
            a warning.

    Raises:
        UserError: 'unknown-network' if the weights belong to any other network.
    """
    try:
        if PATCHES in weights:
            return _vit_of(weights, path, heads)
        return resnet_of(weights, path)
    # A tensor is missing, or it has another number of dimensions.
    except (KeyError, ValueError, IndexError) as error:
        raise _unknown(weights, path) from error


def _unknown(weights: Mapping[str, Tensor], path: str) -> UserError:
    return UserError(
        f'{path}: the weights are not those of a ResNet or a plain ViT (keys: {first_few(weights)}); give a config with the '
        'backbone of this checkpoint, or the name timm:NAME of a released model',
        code='unknown-network',
    )


def tensors_of(network: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a network, which is described as the `backbone=` of a config. A checkpoint must have their keys."""
    # This import registers mmpretrain's backbones. The import takes seconds, so it is not at the top of the file.
    import mmairl.models  # noqa: F401
    from mmairl.registry import MODELS

    init_default_scope('mmairl')
    with torch.random.fork_rng(devices=[]):
        return MODELS.build(network).state_dict()


def heads_of(weights: Mapping[str, Tensor], project: str) -> int | None:
    """Return the number of attention heads of a released ViT, or None if its width is unknown.

    Args:
        weights: The tensors of any network.
        project: The project that trained the network, or the name of its architecture.
    """
    if PATCHES not in weights:
        return None
    width = len(weights[PATCHES])
    is_moco = project.lower().replace(' ', '').startswith('mocov3')
    return 12 if is_moco and width == 384 else HEADS.get(width)


def _count_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    """Return the number of layers: how many different numbers follow the prefix in the keys."""
    below = (key.removeprefix(prefix) for key in weights if key.startswith(prefix))
    return len({key.partition('.')[0] for key in below})


def _in_channels(channels: int) -> dict[str, int]:
    """Return the config entry for the number of channels. Without the entry, networks take 8-bit RGB images."""
    return {} if channels == 3 else dict(in_channels=channels)


def _vit_of(weights: Mapping[str, Tensor], path: str, heads: int | None) -> dict[str, Any]:
    width, channels, patch, _ = weights[PATCHES].shape
    positions = weights['pos_embed'].shape[1] - weights['cls_token'].shape[1]
    if heads is None:
        heads = max(1, width // 64)
        warn(
            f'{path}: the number of attention heads is unknown, and {heads} heads of {width // heads} dimensions are used; '
            'give a config if the network has another number'
        )
    arch = dict(
        embed_dims=width,
        num_layers=_count_layers(weights, 'layers.'),
        num_heads=heads,
        feedforward_channels=weights['layers.0.ffn.layers.0.0.bias'].shape[0],
    )
    return dict(
        type='mmpretrain.VisionTransformer',
        arch=arch,
        img_size=math.isqrt(positions) * patch,
        patch_size=patch,
        **_in_channels(channels),
        qkv_bias='layers.0.attn.qkv.bias' in weights,
        layer_scale_init_value=float('layers.0.attn.gamma1.weight' in weights),
    )


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict[str, Any]:
    """Return the `backbone=` of a config for a ResNet's weights.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    from mmairl.models.backbones import Bottleneck, ResNet

    stages = tuple(_count_layers(weights, f'layer{number}.') for number in (1, 2, 3, 4))
    bottleneck = 'layer1.0.conv3.weight' in weights
    for depth, (block, blocks) in ResNet.arch_settings.items():
        if blocks == stages and (block is Bottleneck) == bottleneck and 'conv1.weight' in weights:
            stem, channels, side, _ = weights['conv1.weight'].shape
            return dict(
                type='mmpretrain.ResNet_CIFAR' if side == 3 else 'ResNet',
                depth=depth,
                stem_channels=stem,
                base_channels=weights['layer1.0.conv1.weight'].shape[0],
                **_in_channels(channels),
            )
    raise _unknown(weights, path)
