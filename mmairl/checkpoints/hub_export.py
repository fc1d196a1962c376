"""Write a backbone as a folder in the format of the Hugging Face hub.

timm loads it by `timm.create_model('local-dir:DIR', pretrained=True)`, and transformers by `AutoModel.from_pretrained(DIR)`.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.checkpoints.hub_config import CONFIG
from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.released import WEIGHTS
from mmairl.checkpoints.write import write_backbone
from mmairl.errors import UserError
from mmairl.io import write_json

# The stem of every ResNet of timm has this many channels.
STEM = 64
# This is the epsilon of timm's batch norm.
EPSILON = 1e-5
PROJECTION = 'layer1.0.downsample.0.weight'


def write_hub(backbone: Backbone, folder: str | Path, license: str = '') -> Path:
    """Write a backbone to a folder, as `model.safetensors` and `config.json`.

    Args:
        backbone: A ResNet or a ViT.
        folder: The folder. It may already exist.
        license: Identifier of the license, such as 'apache-2.0'.

    Returns:
        The path of the file with the weights.

    Raises:
        UserError: 'unwritable-network' if timm has no such network, 'not-a-folder' if the folder is an existing file.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(
            f"--to hub: the output must be a folder, but the path is a file ('{folder}'); give another path",
            code='not-a-folder',
        )
    network = backbone.network
    architecture, arguments, width = timm_architecture(network)
    weights = backbone.weights
    if network.get('stem_channels', STEM) < STEM:
        weights = with_wide_stem(weights)
    side = network.get('img_size', backbone.input.size)
    channels = network.get('in_channels', 3)
    is_resnet = 'depth' in network
    images = dict(
        input_size=[channels, side, side],
        mean=list(backbone.input.mean),
        std=list(backbone.input.std),
        interpolation=backbone.input.interpolation,
        crop_pct=0.875,
        num_classes=0,
        first_conv='conv1' if is_resnet else 'patch_embed.proj',
        classifier='fc' if is_resnet else 'head',
        **({'license': license} if license else {}),
    )
    config = dict(
        architecture=architecture,
        num_classes=0,
        num_features=width,
        global_pool='avg' if is_resnet else 'token',
        model_args=arguments,
        pretrained_cfg=images,
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_backbone(backbone, folder / WEIGHTS, 'safetensors', weights)
    write_json(folder / CONFIG, config)
    return folder / WEIGHTS


def timm_architecture(network: dict[str, Any]) -> tuple[str, dict[str, Any], int]:
    """Return the name of timm's function that creates a network, the arguments to pass to it, and the number of features.

    Raises:
        UserError: 'unwritable-network' if timm has no such network.
    """
    kind = network['type']
    arguments: dict[str, Any] = {}
    if 'in_channels' in network:
        arguments['in_chans'] = network['in_channels']
    if kind == 'ResNet' and _is_timm_resnet(network):
        width = network['base_channels']
        if width != STEM:
            arguments['channels'] = [width, 2 * width, 4 * width, 8 * width]
        return f'resnet{network["depth"]}', arguments, 8 * width * _expansion(network)
    if kind == 'VisionTransformer' and _is_timm_vit(network):
        arch = network['arch']
        arguments.update(
            img_size=network['img_size'],
            patch_size=network['patch_size'],
            embed_dim=arch['embed_dims'],
            depth=arch['num_layers'],
            num_heads=arch['num_heads'],
            mlp_ratio=arch['feedforward_channels'] / arch['embed_dims'],
            qkv_bias=network['qkv_bias'],
            init_values=1.0 if network['layer_scale_init_value'] else None,
            reg_tokens=network['registers'],
            no_embed_class=network['registers'] > 0,
        )
        return 'vit_base_patch16_224', arguments, arch['embed_dims']
    if kind == 'RotaryVisionTransformer':
        size = 'small_plus' if network['gated'] else 'small'
        bias = '_qkvb' if network['qkv_bias'] else ''
        arguments.update(
            patch_size=network['patch_size'],
            embed_dim=network['embed_dims'],
            depth=network['num_layers'],
            num_heads=network['num_heads'],
            mlp_ratio=network['feedforward_channels'] / network['embed_dims'],
            num_reg_tokens=network['registers'],
            global_pool='token',
        )
        return f'vit_{size}_patch16_dinov3{bias}', arguments, network['embed_dims']
    raise UserError(
        f"--to hub: timm does not implement this network ('{kind}'); choose another format (hub supports ResNets with a 7x7 "
        f"stem of at most {STEM} channels, DINOv3's ViTs, and other ViTs whose MLPs have no gates and whose layer norms have "
        'epsilon 1e-6)',
        code='unwritable-network',
    )


def _expansion(network: dict[str, Any]) -> int:
    """Return the number of a ResNet block's output channels, divided by the number of its inner channels."""
    return 1 if network['depth'] < 50 else 4


def _is_timm_resnet(network: dict[str, Any]) -> bool:
    """Return whether timm can represent the ResNet's stem.

    `with_wide_stem` adds channels to a stem that has fewer than 64 channels. The wider stem requires a projection in the
    shortcut of the first block. timm's network has this projection, except if the output of the block has 64 channels.
    """
    stem = network['stem_channels']
    without_projection = network['base_channels'] * _expansion(network) == STEM
    return stem == STEM or (stem < STEM and not without_projection)


def _is_timm_vit(network: dict[str, Any]) -> bool:
    has_gates = network['layer_cfgs']['ffn_type'] != 'origin'
    return not has_gates and 'norm_cfg' not in network


def with_wide_stem(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Fill up the stem of a ResNet with channels of zeros, so that it has as many channels as timm's stem.

    The features do not change. If the first block has no projection in its shortcut, a projection that selects the original
    channels is added.
    """
    kernel = weights['conv1.weight']
    width = len(kernel)
    added = STEM - width
    wide = dict(weights)
    wide['conv1.weight'] = F.pad(kernel, (0, 0, 0, 0, 0, 0, 0, added))
    for name in ('weight', 'bias', 'running_mean', 'running_var'):
        key = f'bn1.{name}'
        wide[key] = F.pad(weights[key], (0, added), value=float(name == 'running_var'))
    for key in ('layer1.0.conv1.weight', PROJECTION):
        if key in weights:
            wide[key] = F.pad(weights[key], (0, 0, 0, 0, 0, added))
    if PROJECTION not in weights:
        wide[PROJECTION] = torch.eye(width, STEM, dtype=kernel.dtype)[..., None, None]
        ones = kernel.new_ones(width)
        # The sum of this variance and epsilon is 1, which makes the batch norm the identity.
        norm = dict(weight=ones, bias=0 * ones, running_mean=0 * ones)
        norm.update(running_var=(1 - EPSILON) * ones, num_batches_tracked=torch.tensor(0))
        wide |= {f'layer1.0.downsample.1.{name}': value for name, value in norm.items()}
    return wide
