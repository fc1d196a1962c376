"""Pictures of patch features: principal components as colors, and the attention of a ViT."""

from collections.abc import Mapping, Sequence

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

from mmairl.data.preprocess import normalize
from mmairl.models.layers import layer_outputs


@torch.no_grad()
def patch_picture(backbones: Mapping[str, nn.Module], images: Tensor, cfg: Config) -> Image.Image:
    """Return a picture with a row for each image (N, C, H, W) in [0, 1].

    A row shows the image, followed by the patch features of each backbone as colors. For a ViT of
    mmpretrain, the mean attention of the class token over the heads of the last layer follows.
    """
    normal = cfg.model.data_preprocessor
    inputs = normalize(images, normal.mean, normal.std)
    columns = [images[:, :3]]
    for backbone in backbones.values():
        maps = layer_outputs(backbone, inputs, [-1])[0].features
        columns.append(component_colors(maps))
        if isinstance(backbone, VisionTransformer):
            columns.append(class_attention(backbone, inputs, maps.shape[2:]))
    squares = [F.interpolate(x, images.shape[2:]).expand(-1, 3, -1, -1) for x in columns]
    cells = torch.stack(squares, dim=1).flatten(0, 1)
    grid = make_grid(cells, nrow=len(columns), padding=4, pad_value=1.0)
    return T.to_pil_image(grid.clamp(0, 1))


def component_colors(maps: Tensor) -> Tensor:
    """Return feature maps (N, C, rows, columns) as colors (N, 3, rows, columns), as in DINOv2.

    The first principal component of all maps separates foreground and background. Its sign is
    chosen so that the borders of the images are mostly background, which is black. The colors of
    the foreground are three components that are computed from the foreground alone.
    """
    cells = maps.permute(0, 2, 3, 1)
    flat = cells.flatten(0, 2).numpy()
    first = PCA(1).fit_transform(flat).reshape(cells.shape[:3])
    inner = first[:, 1:-1, 1:-1]
    border = first.sum() - inner.sum()
    foreground = first * np.sign(border) < 0
    colors = np.zeros((*first.shape, 3), np.float32)
    if foreground.sum() > 3:
        values = PCA(3).fit_transform(cells.numpy()[foreground])
        low, high = np.quantile(values, [0.02, 0.98], axis=0)
        scaled = (values - low) / np.maximum(high - low, 1e-6)
        colors[foreground] = scaled.clip(0, 1)
    return torch.from_numpy(colors).permute(0, 3, 1, 2)


def class_attention(backbone: VisionTransformer, images: Tensor, grid: Sequence[int]) -> Tensor:
    """Return the attention (N, 1, rows, columns) of the class token to each patch of the grid.

    It is the mean over the heads of the last layer, divided by its maximum.
    """
    attention = backbone.layers[-1].attn
    outputs: list[Tensor] = []
    with attention.qkv.register_forward_hook(lambda module, inputs, out: outputs.append(out)):
        backbone(images)
    query, key, _ = outputs[0].unflatten(2, (3, attention.num_heads, -1)).unbind(2)
    scores = torch.einsum('nhc,nphc->nhp', query[:, 0], key)
    weights = (scores * attention.head_dims**-0.5).softmax(2)
    rows, columns = grid
    weights = weights.mean(1)[:, -rows * columns :]
    weights = weights / weights.amax(1, keepdim=True)
    return weights.view(-1, 1, rows, columns)
