"""Depth estimation on NYUv2 as in BYOL: the up-projections and the loss of Laina et al. (2016), and the augmentation.

mmseg has no implementation of these components.
"""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as T

from mmairl.registry import MODELS, TRANSFORMS


class UpProjection(nn.Module):
    """Doubles the height and width of a feature map (Laina et al. 2016).

    First, zeros are inserted between the pixels. Then the outputs of two branches are added. One branch has a 5x5 and a 3x3
    convolution, and the other branch (the shortcut) has a 5x5 convolution.
    """

    def __init__(self, in_channels: int, out_channels: int, norm_cfg: dict) -> None:
        super().__init__()

        def normed(inputs: int, kernel: int) -> tuple[nn.Module, nn.Module]:
            convolution = nn.Conv2d(inputs, out_channels, kernel, padding=kernel // 2, bias=False)
            return convolution, build_norm_layer(norm_cfg, out_channels)[1]

        self.branch = nn.Sequential(
            *normed(in_channels, 5), nn.ReLU(inplace=True), *normed(out_channels, 3)
        )
        self.shortcut = nn.Sequential(*normed(in_channels, 5))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.new_zeros(*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3])
        wide[:, :, ::2, ::2] = x
        return F.relu(self.branch(wide) + self.shortcut(wide))


@MODELS.register_module()
class UpProjectionHead(BaseModule):
    """A decode head for mmseg's DepthEstimator. It predicts depth in meters from the features of the last stage.

    The head consists of up-projections and a 3x3 convolution.

    Args:
        in_channels: Number of channels of the last stage.
        channels: Number of output channels of each up-projection.
        norm_cfg: Config of the norm layers. Default: mmairl's SyncBN.
        init_cfg: Config that initializes the head.
    """

    num_classes = out_channels = 1
    align_corners = False

    def __init__(
        self,
        in_channels: int,
        channels: tuple[int, ...],
        norm_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        norm_cfg = norm_cfg or dict(type='mmairl.SyncBN')
        widths = (in_channels, *channels)
        self.blocks = nn.Sequential(*(UpProjection(*pair, norm_cfg) for pair in pairwise(widths)))
        self.depth = nn.Conv2d(channels[-1], 1, 3, padding=1)

    def forward(self, features: tuple[Tensor, ...]) -> Tensor:
        return self.depth(self.blocks(features[-1]))

    def loss(
        self,
        features: tuple[Tensor, ...],
        samples: list,
        train_cfg: dict,
    ) -> dict[str, Tensor]:
        truth = torch.stack([sample.gt_depth_map.data for sample in samples])
        depth = F.interpolate(self(features), truth.shape[2:], mode='bilinear')
        return dict(loss_depth=reverse_huber(depth, truth.to(depth)))

    def predict(
        self,
        features: tuple[Tensor, ...],
        metas: list[dict],
        test_cfg: dict,
    ) -> Tensor:
        """Return the depth of each pixel of the input image. The depth is above 0, because metrics divide by it."""
        depth = F.interpolate(self(features), metas[0]['img_shape'][:2], mode='bilinear')
        return depth.clamp_min(1e-3)


def reverse_huber(depth: Tensor, truth: Tensor) -> Tensor:
    """Return the mean reverse Huber (berHu) loss of the pixels whose true depth is known (above 0).

    The loss of an error e is |e| if |e| <= c, and (e^2 + c^2) / 2c otherwise. The threshold c is a fifth of the largest
    error in the batch.
    """
    error = (depth - truth)[truth > 0].abs()
    if not len(error):
        return depth.sum() * 0
    c = (error.max() / 5).detach().clamp_min(1e-6)
    return torch.where(error <= c, error, (error.square() + c.square()) / (2 * c)).mean()


@TRANSFORMS.register_module()
class NYUAugmentation:
    """BYOL's augmentation of an image and its depth map. Both are cropped at the center. Half of the pairs are mirrored.

    The brightness, saturation and hue of the image also change at random, and some images become gray.

    Args:
        crop: (width, height) of the crop.
    """

    def __init__(self, crop: tuple[int, int]) -> None:
        self.crop = crop

    def __call__(self, results: dict) -> dict:
        image = self._center(results['img'])
        depth = self._center(results['gt_depth_map'])
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
            depth = depth[:, ::-1]
        results['img'] = self._colored(image)
        results['gt_depth_map'] = np.ascontiguousarray(depth)
        results['img_shape'] = results['img'].shape[:2]
        return results

    def _center(self, array: np.ndarray) -> np.ndarray:
        width, height = self.crop
        top = (array.shape[0] - height) // 2
        left = (array.shape[1] - width) // 2
        return array[top : top + height, left : left + width]

    def _colored(self, image: np.ndarray) -> np.ndarray:
        """Change the colors of an image at random. Its channels are in mmcv's order: blue, green, red."""
        rgb = image[:, :, ::-1].copy()
        x = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255
        x = (x + np.random.uniform(-0.1255, 0.1255)).clamp(0, 1)
        x = T.adjust_saturation(x, np.random.uniform(0.5, 1.5))
        x = T.adjust_hue(x, np.random.uniform(-0.2, 0.2))
        if np.random.rand() < 0.3:
            x = T.rgb_to_grayscale(x, num_output_channels=3)
        rgb = (x * 255).round().byte().permute(1, 2, 0).numpy()
        return np.ascontiguousarray(rgb[:, :, ::-1])
