"""Write a backbone as a folder in the format of the Hugging Face hub.

timm loads it by `timm.create_model('local-dir:DIR', pretrained=True)`.
"""

from pathlib import Path
from typing import Any

from mmairl.checkpoints.read import Backbone
from mmairl.checkpoints.write import unwritable, write_backbone
from mmairl.io import write_json

# Every ResNet of timm has this many channels in its stem.
STEM = 64


def write_hub(backbone: Backbone, folder: str | Path, license: str = '') -> Path:
    """Write a backbone to a folder, as `model.safetensors` and `config.json`.

    Args:
        backbone: A ResNet, a ViT or a network of timm.
        folder: The folder. It may already exist.
        license: Identifier of the license, such as 'apache-2.0'.

    Returns:
        The path of the file with the weights.

    Raises:
        UserError: 'unwritable-network' if timm has no such network.
    """
    architecture, arguments = timm_architecture(backbone.network)
    images = backbone.input
    channels = next(value.shape[1] for value in backbone.weights.values() if value.ndim == 4)
    side = backbone.network.get('img_size', images.size)
    settings = dict(
        input_size=[channels, side, side],
        mean=images.mean,
        std=images.std,
        interpolation=images.interpolation,
        crop_pct=0.875,
        license=license,
    )
    config = dict(
        architecture=architecture,
        num_classes=0,
        model_args=arguments,
        pretrained_cfg=settings,
    )
    weights = Path(folder) / 'model.safetensors'
    write_backbone(backbone, weights, 'safetensors')
    write_json(weights.with_name('config.json'), config)
    return weights


def timm_architecture(network: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the name of timm's function that creates a network, and the arguments to pass to it.

    Raises:
        UserError: 'unwritable-network' if timm has no such network.
    """
    arguments = dict(network)
    kind = arguments.pop('type')
    if kind == 'TimmBackbone':
        return arguments.pop('name'), arguments
    channels = network.get('in_channels', 3)
    if kind == 'ResNet' and network['stem_channels'] == STEM:
        width = network['base_channels']
        widths = {} if width == STEM else {'channels': [width * 2**stage for stage in range(4)]}
        return f'resnet{network["depth"]}', {'in_chans': channels, **widths}
    if kind == 'mmpretrain.VisionTransformer':
        arch = network['arch']
        return 'vit_base_patch16_224', dict(
            in_chans=channels,
            img_size=network['img_size'],
            patch_size=network['patch_size'],
            embed_dim=arch['embed_dims'],
            depth=arch['num_layers'],
            num_heads=arch['num_heads'],
            mlp_ratio=arch['feedforward_channels'] / arch['embed_dims'],
            qkv_bias=network['qkv_bias'],
            init_values=1.0 if network['layer_scale_init_value'] else None,
        )
    raise unwritable('hub', kind, 'safetensors')
