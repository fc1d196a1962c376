"""Extract class tokens and feature maps from selected layers of a backbone."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from mmpretrain.models.backbones.resnet import ResNet
from mmpretrain.models.backbones.vision_transformer import VisionTransformer
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import RotaryVisionTransformer


class LayerOutput(NamedTuple):
    """The output of one layer for a batch of images.

    Attributes:
        token: Class tokens of shape (B, C), or None if the network has no class token.
        features: Feature maps of shape (B, C, rows, columns).
    """

    token: Tensor | None
    features: Tensor


def layer_outputs(backbone: nn.Module, images: Tensor, layers: Sequence[int]) -> list[LayerOutput]:
    """Return the outputs of the selected layers for a batch of images.

    The layers of a ResNet are its stages, and the layers of a ViT are its blocks. Layers are numbered like the items of a list,
    so -1 is the last layer. As in DINO, a ViT's final norm is applied to the output of every layer. If a ViT has learned
    position embeddings, they are interpolated to the size of the images.

    Raises:
        UserError: If a layer does not exist, if the network has no spatial features, or if images are smaller than a patch.
    """
    if isinstance(backbone, VisionTransformer):
        read = _vit_outputs
        count = len(backbone.layers)
    elif isinstance(backbone, RotaryVisionTransformer):
        read = _rotary_outputs
        count = len(backbone.vit.blocks)
    elif isinstance(backbone, ResNet):
        read = _resnet_outputs
        count = backbone.num_stages
    else:
        raise UserError(
            f"model.backbone: its layers have no spatial features ('{type(backbone).__name__}'); set a ResNet or a ViT",
            code='no-spatial-features',
        )
    for layer in layers:
        if not -count <= layer < count:
            raise UserError(
                f"layers: out of range ('{layer}'); for {type(backbone).__name__}, set layers from {-count} to {count - 1}",
                code='unknown-layer',
            )
    patch = patch_size(backbone)
    if min(images.shape[2:]) < patch:
        raise UserError(
            f"images are smaller than a patch of {patch} x {patch} pixels ('{tuple(images.shape[2:])}'); set a larger size",
            code='image-below-patch',
        )
    return read(backbone, images, [layer % count for layer in layers])


def patch_size(backbone: nn.Module) -> int:
    """Return the side of a ViT's patches in pixels, or 1 for a network without patches."""
    if isinstance(backbone, RotaryVisionTransformer):
        return backbone.patch
    if isinstance(backbone, VisionTransformer):
        return backbone.patch_embed.projection.kernel_size[0]
    return 1


def _vit_outputs(
    backbone: VisionTransformer, images: Tensor, layers: list[int]
) -> list[LayerOutput]:
    backbone.out_type = 'raw'
    backbone.out_indices = sorted(set(layers))
    tokens = dict(zip(backbone.out_indices, backbone(images)))
    rows, columns = (-(-side // patch_size(backbone)) for side in images.shape[2:])
    outputs = []
    for layer in layers:
        x = tokens[layer]
        if backbone.final_norm and layer < len(backbone.layers) - 1:
            x = backbone.ln1(x)
        patches = x[:, -rows * columns :].transpose(1, 2).unflatten(2, (rows, columns))
        outputs.append(LayerOutput(x[:, 0] if backbone.num_extra_tokens else None, patches))
    return outputs


def _rotary_outputs(
    backbone: RotaryVisionTransformer, images: Tensor, layers: list[int]
) -> list[LayerOutput]:
    rows, columns = (side - side % backbone.patch for side in images.shape[2:])
    outputs = backbone.vit.forward_intermediates(
        images[:, :, :rows, :columns],
        indices=layers,
        return_prefix_tokens=True,
        norm=True,
        intermediates_only=True,
    )
    in_order = dict(zip(sorted(set(layers)), outputs))
    return [LayerOutput(in_order[layer][1][:, 0], in_order[layer][0]) for layer in layers]


def _resnet_outputs(backbone: ResNet, images: Tensor, layers: list[int]) -> list[LayerOutput]:
    backbone.out_indices = sorted(set(layers))
    maps = dict(zip(backbone.out_indices, backbone(images)))
    return [LayerOutput(None, maps[layer]) for layer in layers]


def joined_map(outputs: Sequence[LayerOutput]) -> Tensor:
    """Resize the maps of several layers to the size of the largest one, and concatenate their channels."""
    size = max((output.features.shape[2:] for output in outputs), key=lambda shape: shape[0])
    maps = [nn.functional.interpolate(output.features, size, mode='bilinear') for output in outputs]
    return torch.cat(maps, dim=1)


def pooled_layers(outputs: Sequence[LayerOutput], pooling: str) -> Tensor:
    """Pool the outputs of several layers to one vector per image.

    DINO uses the class tokens of the last four layers of small ViTs, and DINOv2 adds the mean patch feature.

    Args:
        outputs: The outputs of the layers, in order.
        pooling: 'cls' concatenates the class tokens of all layers, 'mean' averages the patch features of the last layer,
            and 'both' concatenates the results of 'cls' and 'mean'.
    """
    parts = []
    if pooling != 'mean':
        parts += [output.token for output in outputs]
        if parts[0] is None:
            raise UserError(
                f"Classifier.pooling: the backbone has no class token ('{pooling}'); set pooling='mean'",
                code='no-class-token',
            )
    if pooling != 'cls':
        parts.append(outputs[-1].features.mean(dim=(2, 3)))
    return torch.cat(parts, dim=1)


def pooled_blocks(layers: int, pooling: str) -> int:
    """Return how many vectors `pooled_layers` concatenates for each image."""
    return layers * (pooling != 'mean') + (pooling != 'cls')
