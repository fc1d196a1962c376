"""NYUv2 depth as in BYOL: Laina et al.'s up-projections, reverse Huber loss and augmentation, which mmseg lacks."""

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
    """Double the size of a feature map (Laina et al. 2016).

    Insert zeros, then add a branch of 5x5 and 3x3 convolutions to a shortcut of a 5x5 convolution.
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
    """Predict depth in meters from the last stage's features by up-projections and a 3x3 convolution.

    This is a decode head for mmseg's DepthEstimator.

    Args:
        in_channels: Width of the last stage.
        channels: Width of each up-projection.
        norm_cfg: Config of the norms. Default: mmairl's SyncBN.
        init_cfg: Initialization of the head.
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
        """Return depth at the input's size. It is above 0, because the metrics divide by it."""
        depth = F.interpolate(self(features), metas[0]['img_shape'][:2], mode='bilinear')
        return depth.clamp_min(1e-3)


def reverse_huber(depth: Tensor, truth: Tensor) -> Tensor:
    """Return the berHu loss: |e| up to c = max |e| / 5 over the batch, and (e^2 + c^2) / 2c above.

    Pixels without depth (0) do not count.
    """
    error = (depth - truth)[truth > 0].abs()
    if not len(error):
        return depth.sum() * 0
    c = (error.max() / 5).detach().clamp_min(1e-6)
    return torch.where(error <= c, error, (error.square() + c.square()) / (2 * c)).mean()


@TRANSFORMS.register_module()
class NYUAugmentation:
    """BYOL's augmentation of an image and its depth: center crop, flip, brightness, saturation, hue and grayscale.

    Args:
        crop: Width and height of the crop.
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
        """Jitter the colors of an image whose channels are in mmcv's order: blue, green, red."""
        x = torch.from_numpy(image[:, :, ::-1].copy()).permute(2, 0, 1).float() / 255
        x = (x + np.random.uniform(-0.1255, 0.1255)).clamp(0, 1)
        x = T.adjust_saturation(x, np.random.uniform(0.5, 1.5))
        x = T.adjust_hue(x, np.random.uniform(-0.2, 0.2))
        if np.random.rand() < 0.3:
            x = T.rgb_to_grayscale(x, num_output_channels=3)
        rgb = (x * 255).round().byte().permute(1, 2, 0).numpy()
        return np.ascontiguousarray(rgb[:, :, ::-1])
