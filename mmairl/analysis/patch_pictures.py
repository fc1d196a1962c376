"""Pictures of a backbone's patch features: their principal components as colors, and the attention of a ViT's class token."""

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

# Images are resized so that their sides are multiples of this number. It is a multiple of most networks' patch sizes.
STEP = 32
# Pictures are separated by this number of pixels.
GAP = 4


def whole_images(cfg: Config, count: int, size: int) -> Iterator[Tensor]:
    """Yield the first test images without cropping, as floats, resized to a shorter side of about `size` pixels.

    Images that cannot be read are skipped.
    """
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
    """Return a picture with a row for each image.

    A row shows the image, followed by the patch features of each backbone as colors. For a ViT, these colors are followed by
    the attention of each head.
    """
    if not images:
        raise UserError(
            'analyze: no test image can be read; check the files of evaluation.test',
            code='no-images',
        )
    normal = cfg.model.data_preprocessor
    inputs = []
    rows = []
    for image in images:
        inputs.append(normalize(image[None], normal.mean, normal.std))
        rows.append([image[:3] if len(image) >= 3 else image[:1]])
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
    """Join pictures in one row, in RGB, with a gap to the right of and below each picture.

    All pictures are resized to the size of the first one.
    """
    size = row[0].shape[1:]
    framed = []
    for shown in row:
        resized = F.interpolate(shown[None], size, mode='nearest')[0]
        colors = resized.expand(3, -1, -1)
        framed.append(F.pad(colors, (0, GAP, 0, GAP), value=1.0))
    return torch.cat(framed, dim=2)


def component_colors(maps: Sequence[Tensor]) -> list[Tensor]:
    """Return feature maps (C, rows, columns) as colors (3, rows, columns), as in DINOv2.

    Principal components are computed from all maps at once. The first component separates foreground and background. Its
    sign is chosen so that the borders of the images are mostly background. The background is black. The red, green and blue
    values of the foreground are three components that are computed from the foreground alone.
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
    """Return the attention (heads, rows, columns) of the class token to each patch in the last layer.

    The values of each head are divided by their maximum.
    """
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
