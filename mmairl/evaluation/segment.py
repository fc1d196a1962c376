"""Score features by semantic segmentation with a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.evaluation.dense_images import IGNORED
from mmairl.evaluation.dense_protocol import DenseProtocol
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('segment')
@dataclass(frozen=True)
class Segmentation(DenseProtocol):
    """Segment images by a linear classifier of patches.

    The score is mIoU, the mean over classes of intersection over union, of the pixels of all test
    images. The details contain the IoU of each class, the pixel accuracy, and `chance`, the mIoU of
    always predicting the most frequent class.

    Args:
        ignore: Classes that are neither learned nor scored. Default: none.
    """

    ignore: Sequence[int] = ()

    metric: ClassVar = 'mIoU'

    def prepared(self, target: Tensor) -> Tensor:
        ignore = torch.tensor(list(self.ignore), dtype=target.dtype, device=target.device)
        return target.masked_fill(torch.isin(target, ignore), IGNORED)

    def width(self, classes: Sequence[str]) -> int:
        return len(classes)

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        target = target.long()
        total = F.cross_entropy(predicted, target, ignore_index=IGNORED, reduction='sum')
        return total / (target != IGNORED).sum().clamp_min(1)

    def measure(self, predicted: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        """Return the confusion matrix of pixels: true classes in rows, predicted in columns."""
        count = len(classes)
        counted = target != IGNORED
        cells = target[counted].long() * count + predicted.argmax(0)[counted]
        return cells.bincount(minlength=count**2).view(count, count).double()

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        areas = statistics.sum(1)
        union = areas + statistics.sum(0) - statistics.diagonal()
        scored = areas > 0
        iou = 100 * statistics.diagonal() / union
        names = [name for name, is_scored in zip(classes, scored.tolist()) if is_scored]
        details = dict(
            per_class=dict(zip(names, iou[scored].tolist())),
            pixel_accuracy=100 * (statistics.trace() / areas.sum()).item(),
            chance=100 * (areas.max() / areas.sum() / scored.sum()).item(),
        )
        return {'mIoU': iou[scored].mean().item()}, details
