"""Extract class tokens and feature maps from selected layers of a backbone."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from mmpretrain.models.backbones.resnet import ResNet
from mmpretrain.models.backbones.vision_transformer import VisionTransformer
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import extra_tokens, patch_map, patch_size


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

    The layers of a ResNet are its stages, and the layers of a ViT of mmpretrain or timm are its blocks. Layers are numbered
    like the items of a list, so -1 is the last layer. As in DINO, a ViT's final norm is applied to the output of every layer.
    Learned position embeddings are interpolated to the size of the images.

    Raises:
        UserError: If a layer does not exist, or if the network has no spatial features.
    """
    if isinstance(backbone, VisionTransformer):
        read, count = _mmpretrain_outputs, len(backbone.layers)
    elif isinstance(backbone, ResNet):
        read, count = _resnet_outputs, backbone.num_stages
    elif hasattr(backbone, 'num_prefix_tokens'):
        read, count = _timm_outputs, len(backbone.blocks)
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
    chosen = [layer % count for layer in layers]
    in_order = sorted(set(chosen))
    outputs = dict(zip(in_order, read(backbone, images, in_order)))
    return [outputs[layer] for layer in chosen]


def _mmpretrain_outputs(
    backbone: nn.Module, images: Tensor, layers: list[int]
) -> Iterator[LayerOutput]:
    backbone.out_type = 'raw'
    backbone.out_indices = layers
    for layer, x in zip(layers, backbone(images)):
        if backbone.final_norm and layer < len(backbone.layers) - 1:
            x = backbone.ln1(x)
        token = x[:, 0] if extra_tokens(backbone) else None
        yield LayerOutput(token, patch_map(x, backbone, images))


def _timm_outputs(backbone: nn.Module, images: Tensor, layers: list[int]) -> Iterator[LayerOutput]:
    patch = patch_size(backbone)
    rows, columns = (side - side % patch for side in images.shape[2:])
    outputs = backbone.forward_intermediates(
        images[:, :, :rows, :columns],
        indices=layers,
        return_prefix_tokens=True,
        norm=True,
        intermediates_only=True,
    )
    for patches, extra in outputs:
        yield LayerOutput(extra[:, 0] if extra_tokens(backbone) else None, patches)


def _resnet_outputs(
    backbone: nn.Module, images: Tensor, layers: list[int]
) -> Iterator[LayerOutput]:
    backbone.out_indices = layers
    for output in backbone(images):
        yield LayerOutput(None, output)


def joined_map(outputs: Sequence[LayerOutput]) -> Tensor:
    """Resize the maps of several layers to the size of the largest one, and concatenate their channels."""
    maps = [output.features for output in outputs]
    size = max(one.shape[2:] for one in maps)
    resized = [nn.functional.interpolate(one, size, mode='bilinear') for one in maps]
    return torch.cat(resized, dim=1)


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
