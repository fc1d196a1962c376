"""Score features by depth estimation with a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from mmairl.evaluation.dense_protocol import DenseProtocol
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

HEADS = ('bins', 'regression')
# Rows and columns that are scored in the images of NYUv2, which have 480 x 640 pixels.
EIGEN_CROP = (slice(45, 471), slice(41, 601))


@PROTOCOLS.register_module('depth_probe')
@dataclass(frozen=True)
class DepthProbe(DenseProtocol):
    """Predict depth by linear heads from the features of each cell (position of the feature map), as in DINOv2.

    The head 'bins' predicts a weight for each of many depth bins. The depth is the weighted mean of the bins' centers. The
    head 'regression' predicts the depth directly. The scores are the percentage of pixels whose predicted depth is within a
    factor of 1.25 of the target, and the RMSE in meters. The details contain the percentages for the factors 1.25^2 and
    1.25^3, and the absolute relative error. As in mmseg, all these values are means over images.

    Args:
        bins: Number of bins between `min_depth` and `max_depth`.
        min_depth: Lower limit of scored depths in meters.
        max_depth: Upper limit of scored depths in meters.
        nyu_crop: Whether to score only the Eigen crop of NYUv2's images. Default: False.
    """

    heads: Sequence[str] = HEADS
    bins: int = 256
    min_depth: float = 1e-3
    max_depth: float = 10.0
    nyu_crop: bool = False

    metric: ClassVar = 'delta'
    known_heads: ClassVar = HEADS
    unknown: ClassVar = 0

    def prepared(self, target: Tensor) -> Tensor:
        counted = (target > self.min_depth) & (target < self.max_depth)
        return torch.where(counted, target, 0)

    def widths(self, classes: Sequence[str]) -> dict[str, int]:
        widths = dict(bins=self.bins, regression=1)
        return {head: widths[head] for head in self.heads}

    def predict(self, head: str, outputs: Tensor) -> Tensor:
        """Return the depth of each cell, (cells, 1)."""
        if head == 'bins':
            weights = outputs.relu() + 0.1
            centers = torch.linspace(
                self.min_depth, self.max_depth, self.bins, device=outputs.device
            )
            depth = (weights @ centers / weights.sum(1))[:, None]
        else:
            depth = outputs.sigmoid() * self.max_depth
        return depth.clamp(self.min_depth, self.max_depth)

    def loss(self, head: str, outputs: Tensor, points: Tensor) -> Tensor:
        """Return the scale-invariant log loss of AdaBins without its factor of 10."""
        counted = points > 0
        if not counted.any():
            return 0 * outputs.sum()
        truth = points.clamp_min(1e-6).log()
        error = (self.predict(head, outputs).log() - truth)[counted]
        variance = error.var(correction=0)
        bias = error.mean().square()
        return (variance + 0.15 * bias + 1e-9).sqrt()

    def measure(self, prediction: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        counted = target > 0
        if self.nyu_crop:
            inside = torch.zeros_like(counted)
            inside[EIGEN_CROP] = True
            counted &= inside
        if not counted.any():
            return torch.zeros(6, dtype=torch.float64)
        depth = prediction[0][counted].double()
        truth = target[counted].double()
        ratio = torch.maximum(depth / truth, truth / depth)
        error = depth - truth
        within = [(ratio < 1.25**power).double().mean() for power in (1, 2, 3)]
        rmse = error.square().mean().sqrt()
        abs_rel = (error.abs() / truth).mean()
        return torch.stack([*within, rmse, abs_rel, torch.ones_like(rmse)])

    def summarize(
        self, head: str, statistics: Tensor, classes: Sequence[str]
    ) -> tuple[Scores, dict]:
        means = statistics[:-1] / statistics[-1]
        d1, d2, d3, rmse, abs_rel = means.tolist()
        details = dict(d2=100 * d2, d3=100 * d3, abs_rel=abs_rel)
        return {'delta < 1.25': 100 * d1, 'RMSE (m)': rmse}, details
