"""Score features by depth estimation with a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmairl.evaluation.dense_protocol import DenseProtocol
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('depth_probe')
@dataclass(frozen=True)
class DepthProbe(DenseProtocol):
    """Predict depth by a linear head on patches, as in DINOv2.

    The head predicts a weight for each of many depth bins, and the depth is the weighted mean of the
    bins' centers. The scores are the percentage of pixels whose predicted depth is within a factor
    of 1.25 of the target, the RMSE in meters, and the absolute relative error. As in mmseg, they are
    means over images.

    Args:
        bins: Number of bins between `min_depth` and `max_depth`.
        min_depth: Lower limit of scored depths in meters.
        max_depth: Upper limit of scored depths in meters.
        scored: Top, bottom, left and right of the scored pixels, such as (45, 471, 41, 601) for the
            Eigen crop of NYUv2. Default: all pixels.
    """

    bins: int = 256
    min_depth: float = 1e-3
    max_depth: float = 10.0
    scored: Sequence[int] | None = None

    metric: ClassVar = 'delta'
    unknown: ClassVar = 0

    def prepared(self, target: Tensor) -> Tensor:
        counted = (target > self.min_depth) & (target < self.max_depth)
        return torch.where(counted, target, 0)

    def width(self, classes: Sequence[str]) -> int:
        return self.bins

    def predict(self, outputs: Tensor) -> Tensor:
        """Return the depth (B, 1, H, W) of outputs (B, bins, H, W)."""
        weights = outputs.relu() + 0.1
        centers = torch.linspace(self.min_depth, self.max_depth, self.bins, device=outputs.device)
        depth = torch.einsum('bchw,c->bhw', weights, centers) / weights.sum(1)
        return depth[:, None]

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the scale-invariant log loss of AdaBins without its factor of 10."""
        counted = target > 0
        if not counted.any():
            return 0 * predicted.sum()
        error = predicted[:, 0][counted].log() - target[counted].log()
        return (error.var(correction=0) + 0.15 * error.mean().square() + 1e-9).sqrt()

    def measure(self, predicted: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        depth = predicted[0]
        if self.scored is not None:
            top, bottom, left, right = self.scored
            depth, target = (part[top:bottom, left:right] for part in (depth, target))
        counted = target > 0
        if not counted.any():
            return torch.zeros(4, dtype=torch.float64)
        depth, truth = depth[counted].double(), target[counted].double()
        ratio = torch.maximum(depth / truth, truth / depth)
        error = depth - truth
        within = (ratio < 1.25).double().mean()
        relative = (error.abs() / truth).mean()
        return torch.stack(
            [within, error.square().mean().sqrt(), relative, torch.ones_like(within)]
        )

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        within, rmse, relative = (statistics[:-1] / statistics[-1]).tolist()
        return {'delta < 1.25': 100 * within, 'RMSE (m)': rmse, 'AbsRel': relative}, {}
