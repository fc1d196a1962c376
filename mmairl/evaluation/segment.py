"""Semantic segmentation from the patch features of a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.data.dense import IGNORED
from mmairl.evaluation.dense_protocol import POINTS, Cells, DenseProtocol, Head
from mmairl.evaluation.neighbors import TEMPERATURE, nearest, vote
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

HEADS = ('linear', 'k-NN')
BLOCK = 1024  # images at a time


@PROTOCOLS.register_module('segment')
@dataclass(frozen=True)
class Segmentation(DenseProtocol):
    """Segment images by a linear head (batch norm and a 1x1 convolution, DINOv2) and by k-NN on the features of cells.

    Scores are mIoU by mmseg's definition. The details have the IoU of each class, the pixel accuracy, and `chance`: the
    mIoU of the better of two predictions that use no image, the most frequent class and random classes at the frequencies
    of the test targets.

    Args:
        ignore: Classes that are neither learned nor scored. Default: none.
        k: Neighbors of the k-NN head.
        bank: At most this many cells of training images, drawn at random, that the k-NN head searches.
    """

    heads: Sequence[str] = HEADS
    ignore: Sequence[int] = ()
    k: int = 30
    bank: int = 100_000

    metric: ClassVar = 'mIoU'
    known_heads: ClassVar = HEADS

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
        features, points = cells.stored
        rows, labels = self.bank_cells(points)
        bank = torch.from_numpy(features.reshape(-1, features.shape[2])[rows]).float()
        mean = bank.mean(0)
        bank -= mean

        def head(queries: Tensor) -> Tensor:
            similarity, position = nearest(queries.cpu() - mean, bank, self.k, self.device)
            return vote(similarity, labels[position], len(classes), TEMPERATURE).float()

        return {'k-NN': head}

    def bank_cells(self, points: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Return positions and labels of the cells to search, from the points (images, cells, POINTS^2) of all cells.

        Positions are drawn block by block: integers for all cells of a large data set would fill the memory.
        """
        center = POINTS // 2 * (POINTS + 1)  # the point next to the center of a cell
        starts = range(0, len(points), BLOCK)

        def counted(start: int) -> np.ndarray:
            labels = points[start : start + BLOCK, :, center]
            return np.flatnonzero((labels != IGNORED) & ~np.isin(labels, list(self.ignore)))

        sizes = [len(counted(start)) for start in starts]
        total = sum(sizes)
        drawn = np.arange(min(total, self.bank))
        if total > self.bank:
            drawn = np.random.default_rng(self.seed).choice(total, self.bank, replace=False)
        rows = []
        for start, size in zip(starts, sizes):
            inside = (drawn >= 0) & (drawn < size)
            rows.append(start * points.shape[1] + counted(start)[np.sort(drawn[inside])])
            drawn -= size
        rows = np.concatenate(rows)
        image, cell = np.divmod(rows, points.shape[1])
        labels = points[image, cell, center]
        return rows, torch.from_numpy(labels.astype(np.int64))

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

        values = IoUMetric.total_area_to_metrics(*statistics, ['mIoU'])
        iou = {name: 100 * x for name, x in zip(classes, values['IoU'].tolist())}
        present = {name: x for name, x in iou.items() if not np.isnan(x)}
        details = dict(
            per_class=present,
            pixel_accuracy=100 * float(values['aAcc']),
            chance=100 * chance(statistics[3]),
        )
        return {'mIoU': 100 * float(np.nanmean(values['IoU']))}, details


def chance(areas: Tensor) -> float:
    """Return the higher mIoU of two predictions that use no image, from the area of each class.

    >>> chance(torch.tensor([60.0, 20.0, 20.0]))
    0.2169...
    """
    frequency = areas[areas > 0] / areas.sum()
    most_frequent = frequency.max() / len(frequency)
    at_random = (frequency / (2 - frequency)).mean()
    return max(most_frequent, at_random).item()
