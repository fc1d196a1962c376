"""Semantic segmentation from the patch features of a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.data.dense import IGNORED
from mmairl.errors import UserError
from mmairl.evaluation.dense_protocol import POINTS, Cells, DenseProtocol, Head
from mmairl.evaluation.neighbors import TEMPERATURE, nearest, vote
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

HEADS = ('linear', 'k-NN')


@PROTOCOLS.register_module('segment')
@dataclass(frozen=True)
class Segmentation(DenseProtocol):
    """Segment images by a linear head (batch norm and a 1x1 convolution, DINOv2) and by k-NN on the features of cells.

    Scores are mIoU by mmseg's definition; the details have the IoU of each class and the pixel accuracy.

    Args:
        heads: Which heads to measure; the first gives the main score. Default: linear and k-NN.
        ignore: Classes that are neither learned nor scored. Default: none.
        k: Neighbors of the k-NN head.
        bank: At most this many cells of training images, drawn at random, that the k-NN head searches.
    """

    heads: Sequence[str] = HEADS
    ignore: Sequence[int] = ()
    k: int = 30
    bank: int = 100_000

    metric: ClassVar = 'mIoU'

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.heads or not set(self.heads) <= set(HEADS):
            raise UserError(
                f"segment.heads: expected some of {', '.join(HEADS)} ('{list(self.heads)}')",
                code='unknown-head',
            )

    def prepared(self, target: Tensor) -> Tensor:
        ignored = torch.isin(target, torch.tensor(list(self.ignore), dtype=target.dtype))
        return torch.where(ignored, IGNORED, target)

    def widths(self, classes: Sequence[str]) -> dict[str, int]:
        return {head: len(classes) for head in self.heads if head == 'linear'}

    def loss(self, head: str, outputs: Tensor, points: Tensor) -> Tensor:
        points = points.long()
        counted = points != IGNORED
        log_p = F.log_softmax(outputs, dim=1).gather(1, points.where(counted, 0))
        return -(log_p * counted).sum() / counted.sum().clamp_min(1)

    def untrained_heads(self, cells: Cells, classes: Sequence[str]) -> dict[str, Head]:
        if 'k-NN' not in self.heads:
            return {}
        x, points = (values.reshape(-1, values.shape[2]) for values in cells.stored)
        center = POINTS // 2 * (POINTS + 1)  # the point next to the center of a cell
        label = self.prepared(torch.from_numpy(points[:, center].copy())).long()
        rows = (label != IGNORED).nonzero().flatten().numpy()
        if len(rows) > self.bank:
            rows = np.sort(np.random.default_rng(self.seed).choice(rows, self.bank, replace=False))
        bank = torch.from_numpy(x[rows]).float()
        labels = label[rows]
        mean = bank.mean(0)

        def head(queries: Tensor) -> Tensor:
            similarity, position = nearest(queries.cpu() - mean, bank - mean, self.k, self.device)
            return vote(similarity, labels[position], len(classes), TEMPERATURE).float()

        return {'k-NN': head}

    def measure(self, prediction: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        from mmseg.evaluation.metrics import IoUMetric

        areas = IoUMetric.intersect_and_union(
            prediction.argmax(0), target.long(), len(classes), IGNORED
        )
        return torch.stack(areas).double()  # the sums of all pixels exceed float32

    def summarize(
        self, head: str, statistics: Tensor, classes: Sequence[str]
    ) -> tuple[Scores, dict]:
        from mmseg.evaluation.metrics import IoUMetric

        values = IoUMetric.total_area_to_metrics(*statistics.sum(0), ['mIoU'])
        iou = {name: 100 * x for name, x in zip(classes, values['IoU'].tolist())}
        present = {name: x for name, x in iou.items() if not np.isnan(x)}
        details = dict(per_class=present, pixel_accuracy=100 * float(values['aAcc']))
        return {'mIoU': 100 * float(np.nanmean(values['IoU']))}, details
