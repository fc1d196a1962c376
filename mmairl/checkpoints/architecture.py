"""Detect the architecture of a backbone from its weights, and return it as the `backbone=` of a config."""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from mmengine.registry import init_default_scope
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmairl.checkpoints.load import first_few, require_same_keys, warn
from mmairl.errors import UserError, building

# The number of attention heads of released ViTs by their width. An exception is MoCo v3's ViT of width 384, which has 12.
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}


def backbone_of(
    weights: Mapping[str, Tensor],
    path: str = 'the checkpoint',
    heads: int | None = None,
    norm_eps: float | None = None,
) -> dict[str, Any]:
    """Return the `backbone=` of a config for weights whose tensors have the names that mmairl uses.

    Args:
        weights: Tensors of a ResNet, of a ViT with a class token, or of DINOv3's ViT.
        path: The file, for messages.
        heads: Number of attention heads of a ViT, which cannot be derived from the tensors. Default: the number that released
            ViTs of the same width have.
        norm_eps: Epsilon of a ViT's layer norms. Default: 1e-6.

    Raises:
        UserError: 'unknown-network' if the weights belong to any other network, 'incomplete-network' if a tensor is missing,
            'other-network' if a tensor has an unexpected number of dimensions.
    """
    if 'vit.cls_token' in weights:
        return _dinov3_of(weights, path, heads)
    if 'cls_token' in weights:
        return _vit_of(weights, path, heads, norm_eps)
    return resnet_of(weights, path)


class _WithoutValues(TorchFunctionMode):
    """Create parameters on the meta device, so that they take no memory.

    `torch.device('meta')` cannot be used as a context, because mmpretrain's ResNet computes its drop rates with tensors and
    must read their values. This class affects only the functions that create parameters.
    """

    def __torch_function__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones) and kwargs.get('device') is None:
            kwargs['device'] = 'meta'
        return func(*args, **kwargs)


@lru_cache(64)
def _tensors_of(network: str) -> Mapping[str, Tensor]:
    """Return the tensors of a network on the meta device. The network is given as the JSON text of its config."""
    # This import registers mmpretrain's backbones. The import takes seconds, so it is not at the top of the file.
    import mmairl.models  # noqa: F401
    from mmairl.registry import MODELS

    init_default_scope('mmairl')
    with building('the network to which the weights belong'), _WithoutValues():
        return MODELS.build(json.loads(network)).state_dict()


def require_complete(weights: Mapping[str, Tensor], network: Mapping[str, Any], path: str) -> None:
    """Raise an error unless the weights are exactly the tensors of a network.

    Raises:
        UserError: 'incomplete-network' if the only fault is that tensors are missing, 'other-network' for any other fault.
    """
    kind = network['type'].removeprefix('mmpretrain.')
    name = f'a {kind}-{network["depth"]}' if 'depth' in network else f'a {kind}'
    require_same_keys(weights, _tensors_of(json.dumps(network, sort_keys=True)), path, name)


def _shape(weights: Mapping[str, Tensor], key: str, ndim: int, path: str) -> torch.Size:
    """Return the shape of a tensor.

    Raises:
        UserError: 'incomplete-network' if the tensor is missing, 'other-network' if it does not have `ndim` dimensions.
    """
    if key not in weights:
        raise UserError(
            f"{path}: '{key}' is missing; give a file with the whole backbone",
            code='incomplete-network',
        )
    shape = weights[key].shape
    if len(shape) != ndim:
        raise UserError(
            f"{path}: '{key}' must have {ndim} dimensions ('{tuple(shape)}'); give a config with the backbone of this "
            'checkpoint',
            code='other-network',
        )
    return shape


def _count_layers(weights: Mapping[str, Tensor], prefix: str) -> int:
    """Return the number of layers: how many different numbers follow the prefix in the keys."""
    matches = (re.match(rf'{re.escape(prefix)}(\d+)\.', key) for key in weights)
    return len({match[1] for match in matches if match})


def _in_channels(channels: int) -> dict[str, int]:
    """Return the config entry for the number of channels, or an empty dictionary if images have three channels."""
    return {} if channels == 3 else dict(in_channels=channels)


def _usual_heads(positions: Tensor, tokens: int, path: str) -> int:
    """Return the number of attention heads that released ViTs of the same width have.

    Log a warning if no released ViT has this width, or if the weights look like those of MoCo v3's ViT of width 384, which
    has twice as many heads as other ViTs of this width.
    """
    width = positions.shape[2]
    # MoCo v3's position embeddings are sines and cosines. The first patch has the position 0, so its row has only zeros and
    # ones. Other projects learn their position embeddings.
    is_moco = width == 384 and set(positions[0, tokens].tolist()) == {0, 1}
    heads = 12 if is_moco else HEADS.get(width, max(1, width // 64))
    if is_moco or width not in HEADS:
        warn(
            f'{path}: the number of attention heads is unknown, and {heads} heads of {width // heads} dimensions are used; '
            'give a config if the network has another number'
        )
    return heads


def _dinov3_of(weights: Mapping[str, Tensor], path: str, heads: int | None) -> dict[str, Any]:
    width, channels, patch, _ = _shape(weights, 'vit.patch_embed.proj.weight', 4, path)
    # The heads of the ViT with 7 billion weights have 128 dimensions, and those of all smaller ViTs have 64.
    head_width = 128 if width == 4096 else 64
    return dict(
        type='RotaryVisionTransformer',
        embed_dims=width,
        num_layers=_count_layers(weights, 'vit.blocks.'),
        num_heads=heads or max(1, width // head_width),
        feedforward_channels=_shape(weights, 'vit.blocks.0.mlp.fc2.weight', 2, path)[1],
        registers=_shape(weights, 'vit.reg_token', 3, path)[1],
        patch_size=patch,
        **_in_channels(channels),
        qkv_bias='vit.blocks.0.attn.q_bias' in weights,
        gated='vit.blocks.0.mlp.fc1_g.weight' in weights,
    )


def _vit_of(
    weights: Mapping[str, Tensor], path: str, heads: int | None, norm_eps: float | None
) -> dict[str, Any]:
    if 'pos_embed' not in weights:
        raise UserError(
            f"{path}: the ViT has no position embedding and is not DINOv3's; give weights of DINO, DINOv2, DINOv3 or DeiT, or "
            'a config with the backbone of this checkpoint',
            code='unknown-network',
        )
    width, channels, patch, _ = _shape(weights, 'patch_embed.projection.weight', 4, path)
    tokens = _shape(weights, 'cls_token', 3, path)[1]
    positions = _shape(weights, 'pos_embed', 3, path)[1]
    gated = 'layers.0.ffn.w3.weight' in weights
    if gated:
        inner = _shape(weights, 'layers.0.ffn.w3.weight', 2, path)[1] * 3 // 2
    else:
        inner = _shape(weights, 'layers.0.ffn.layers.0.0.bias', 1, path)[0]
    arch = dict(
        embed_dims=width,
        num_layers=_count_layers(weights, 'layers.'),
        num_heads=heads or _usual_heads(weights['pos_embed'], tokens, path),
        feedforward_channels=inner,
    )
    network = dict(
        type='VisionTransformer',
        arch=arch,
        registers=tokens - 1,
        img_size=math.isqrt(max(0, positions - tokens)) * patch,
        patch_size=patch,
        **_in_channels(channels),
        qkv_bias='layers.0.attn.qkv.bias' in weights,
        layer_scale_init_value=float('layers.0.attn.gamma1.weight' in weights),
        layer_cfgs=dict(ffn_type='swiglu_fused' if gated else 'origin'),
    )
    if norm_eps not in (None, 1e-6):
        network['norm_cfg'] = dict(type='LN', eps=norm_eps)
    return network


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict[str, Any]:
    """Return the `backbone=` of a config for a ResNet's weights.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    stages = tuple(_count_layers(weights, f'layer{number}.') for number in (1, 2, 3, 4))
    if 'conv1.weight' not in weights or not any(stages):
        raise UserError(
            f'{path}: the weights are not those of a ResNet or ViT with a known layout (keys: {first_few(weights)}); give a '
            'config with the backbone of this checkpoint',
            code='unknown-network',
        )
    if 0 in stages:
        raise UserError(
            f"{path}: the ResNet has no 'layer{stages.index(0) + 1}'; give a file with the whole backbone",
            code='incomplete-network',
        )
    stem_channels, channels, _, side = _shape(weights, 'conv1.weight', 4, path)
    return dict(
        type='mmpretrain.ResNet_CIFAR' if side == 3 else 'ResNet',
        depth=_depth(stages, 'layer1.0.conv3.weight' in weights, path),
        stem_channels=stem_channels,
        base_channels=_shape(weights, 'layer1.0.conv1.weight', 4, path)[0],
        **_in_channels(channels),
    )


def _depth(stages: tuple[int, ...], bottleneck: bool, path: str) -> int:
    """Return the depth of a ResNet, such as 50, according to its number of blocks per stage and their kind."""
    from mmairl.models.backbones import Bottleneck, ResNet

    for depth, (block, blocks) in ResNet.arch_settings.items():
        if blocks == stages and (block is Bottleneck) == bottleneck:
            return depth
    raise UserError(
        f"{path}: no known ResNet has these blocks per stage ('{stages}'); give a config with the backbone of this checkpoint",
        code='unknown-network',
    )
