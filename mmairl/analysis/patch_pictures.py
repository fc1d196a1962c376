"""Pictures of patch features: principal components as colors, and the attention of a ViT."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from mmpretrain.models.backbones.vision_transformer import VisionTransformer
from PIL import Image
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as T
from torchvision.utils import make_grid

from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.data.preprocess import normalize
from mmairl.evaluation.sets import with_views
from mmairl.models.layers import layer_outputs
from mmairl.registry import DATASETS

STEP = 32  # sides of images become multiples of this number, which most patch sizes divide


def whole_images(cfg: Config, count: int, size: int) -> Iterator[Tensor]:
    """Yield the first test images without cropping, in [0, 1], with a shorter side of about `size`.

    Images that cannot be read are skipped.
    """
    dataset = DATASETS.build(with_views(cfg.evaluation.test, None))
    for index in range(min(count, len(dataset))):
        with suppress(UnreadableImage):
            image = to_unit(dataset.raw(index))
            scale = size / min(image.shape[1:]) / STEP
            sides = [STEP * max(1, round(scale * side)) for side in image.shape[1:]]
            yield T.resize(image, sides, antialias=True)


@torch.no_grad()
def patch_picture(
    backbones: Mapping[str, nn.Module], images: Sequence[Tensor], cfg: Config
) -> Image.Image:
    """Return a picture with a row for each image.

    A row shows the image, followed by the patch features of each backbone as colors. For a ViT of
    mmpretrain, the mean attention of the class token over the heads of the last layer follows.
    """
    normal = cfg.model.data_preprocessor
    inputs = [normalize(image[None], normal.mean, normal.std) for image in images]
    columns = [[image[:3] for image in images]]
    for backbone in backbones.values():
        maps = [layer_outputs(backbone, x, [-1])[0].features[0] for x in inputs]
        columns.append(component_colors(maps))
        if isinstance(backbone, VisionTransformer):
            columns.append([class_attention(backbone, x, like) for x, like in zip(inputs, maps)])
    side = max(image.shape[1] for image in images)
    cells = []
    for row in zip(*columns):
        for part in row:
            square = F.interpolate(part[None], (side, side), mode='nearest')[0]
            cells.append(square.expand(3, -1, -1))
    return T.to_pil_image(make_grid(cells, nrow=len(columns), padding=4, pad_value=1.0).clamp(0, 1))


def component_colors(maps: Sequence[Tensor]) -> list[Tensor]:
    """Return feature maps (C, rows, columns) as colors (3, rows, columns), as in DINOv2.

    The first principal component of all maps separates foreground and background. Its sign is
    chosen so that the borders of the images are mostly background, which is black. The colors of
    the foreground are three components that are computed from the foreground alone.
    """
    cells = torch.cat([features.flatten(1).T for features in maps]).numpy()
    border = []
    for features in maps:
        inner = torch.ones(features.shape[1:])
        inner[1:-1, 1:-1] = 0
        border.append(inner.flatten().bool())
    first = PCA(1).fit_transform(cells)[:, 0]
    foreground = first * np.sign(first[torch.cat(border)].mean()) < 0
    colors = np.zeros((len(cells), 3), np.float32)
    if foreground.sum() > 3:
        values = PCA(3).fit_transform(cells[foreground])
        low, high = np.quantile(values, [0.02, 0.98], axis=0)
        colors[foreground] = ((values - low) / np.maximum(high - low, 1e-6)).clip(0, 1)
    parts = torch.from_numpy(colors).split([features[0].numel() for features in maps])
    return [part.T.unflatten(1, features.shape[1:]) for part, features in zip(parts, maps)]


def class_attention(backbone: VisionTransformer, images: Tensor, like: Tensor) -> Tensor:
    """Return the attention (1, rows, columns) of the class token to each patch in the last layer.

    It is the mean over the heads, divided by its maximum. `like` has the rows and columns.
    """
    attention = backbone.layers[-1].attn
    outputs: list[Tensor] = []
    keep = attention.qkv.register_forward_hook(lambda module, inputs, out: outputs.append(out))
    with keep:
        backbone(images)
    query, key, _ = outputs[0].unflatten(2, (3, attention.num_heads, -1)).unbind(2)
    scores = torch.einsum('hc,nhc->hn', query[0, 0], key[0]) * attention.head_dims**-0.5
    weights = scores.softmax(dim=1).mean(0)[-like[0].numel() :]
    return (weights / weights.max()).view(1, *like.shape[1:])
