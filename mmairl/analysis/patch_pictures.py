"""Pictures of patch features: their principal components as colors, and the attention of a ViT's class token."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from mmpretrain.models.backbones.vision_transformer import VisionTransformer
from PIL import Image
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as T

from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import normalize
from mmairl.errors import UserError
from mmairl.evaluation.sets import with_views
from mmairl.models.layers import layer_outputs, patch_size
from mmairl.registry import DATASETS

STEP = 32  # sides are multiples of it, which the patch sizes of most networks divide
GAP = 4  # pixels between pictures


def whole_images(cfg: Config, count: int, size: int) -> Iterator[Tensor]:
    """Yield the first test images uncropped, as floats, with a shorter side of about `size` pixels."""
    dataset = DATASETS.build(with_views(cfg.evaluation.test, None))
    for index in range(min(count, len(dataset))):
        with suppress(UnreadableImage):
            image = dataset[index]['inputs'][0]
            sides = image.shape[1:]
            scale = size / min(sides)
            rounded = []
            for side in sides:
                steps = max(1, round(scale * side / STEP))
                rounded.append(STEP * steps)
            floats = T.to_dtype(image, torch.float32, scale=True)
            yield T.resize(floats, rounded, antialias=True)


@torch.no_grad()
def patch_picture(
    backbones: Mapping[str, nn.Module],
    images: Sequence[Tensor],
    cfg: Config,
) -> Image.Image:
    """Return a picture with a row per image: the image, the components of each backbone, and the attention heads of ViTs."""
    if not images:
        raise UserError(
            'analyze: no test image can be read; check evaluation.test', code='no-images'
        )
    normal = cfg.model.data_preprocessor
    inputs = []
    rows = []
    for image in images:
        inputs.append(normalize(image[None], normal.mean, normal.std))
        rows.append([image[:3]])
    for backbone in backbones.values():
        maps = []
        for x in inputs:
            [last] = layer_outputs(backbone, x, [-1])
            maps.append(last.features[0])
        for row, x, colors in zip(rows, inputs, component_colors(maps)):
            row.append(colors)
            if isinstance(backbone, VisionTransformer):
                row += class_attention(backbone, x)[:, None]
    strips = [_strip(row) for row in rows]
    width = max(strip.shape[2] for strip in strips)
    padded = []
    for strip in strips:
        missing = width - strip.shape[2]
        padded.append(F.pad(strip, (0, missing), value=1.0))
    whole = torch.cat(padded, dim=1).clamp(0, 1)
    return T.to_pil_image((255 * whole).byte())


def _strip(row: Sequence[Tensor]) -> Tensor:
    """Return pictures next to each other, in RGB at the size of the first, with gaps to the right and below."""
    size = row[0].shape[1:]
    framed = []
    for shown in row:
        resized = F.interpolate(shown[None], size, mode='nearest')[0]
        colors = resized.expand(3, -1, -1)
        framed.append(F.pad(colors, (0, GAP, 0, GAP), value=1.0))
    return torch.cat(framed, dim=2)


def component_colors(maps: Sequence[Tensor]) -> list[Tensor]:
    """Return maps (C, rows, columns) as colors (3, rows, columns), with one fit for all maps, as DINOv2 does.

    The first component separates foreground and background; its sign is such that the borders of the images are background.
    Three components of the foreground are red, green and blue. The background is black.
    """
    cells = torch.cat([features.flatten(1).T for features in maps])
    is_border = []
    for features in maps:
        inner = torch.ones_like(features[0])
        inner[1:-1, 1:-1] = 0
        is_border.append(inner.flatten().bool())
    first = PCA(1).fit_transform(cells)[:, 0]
    sign = np.sign(first[torch.cat(is_border)].mean())
    foreground = sign * first < 0
    colors = np.zeros((len(cells), 3), np.float32)
    if foreground.sum() > 3:
        values = PCA(3).fit_transform(cells[foreground])
        low, high = np.quantile(values, [0.02, 0.98], axis=0)
        shares = (values - low) / np.maximum(high - low, 1e-6)
        colors[foreground] = shares.clip(0, 1)
    counts = [features[0].numel() for features in maps]
    pictures = []
    for part, features in zip(torch.from_numpy(colors).split(counts), maps):
        _, *sides = features.shape
        pictures.append(part.T.unflatten(1, sides))
    return pictures


def class_attention(backbone: VisionTransformer, images: Tensor) -> Tensor:
    """Return how much the class token attends to each patch in the last layer, (heads, rows, columns), at most 1."""
    attention = backbone.layers[-1].attn
    outputs: list[Tensor] = []
    hook = attention.qkv.register_forward_hook(
        lambda module, inputs, output: outputs.append(output)
    )
    with hook:
        backbone(images)
    parts = outputs[0].unflatten(2, (3, attention.num_heads, -1))
    query, key, _ = parts.unbind(2)
    scores = torch.einsum('bhc,bnhc->bhn', query[:, 0], key)
    weights = (scores * attention.head_dims**-0.5).softmax(dim=2)[0]
    patch = patch_size(backbone)
    rows, columns = (ceil(side / patch) for side in images.shape[2:])
    patches = weights[:, -rows * columns :]
    largest = patches.amax(dim=1, keepdim=True)
    return (patches / largest).unflatten(1, (rows, columns))
