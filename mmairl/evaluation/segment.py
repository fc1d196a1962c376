"""Score features by semantic segmentation with a frozen backbone."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor

from mmairl.checkpoints.read import Backbone
from mmairl.data.dense import IGNORED
from mmairl.errors import explained
from mmairl.evaluation.dense_protocol import POINTS, Cells, DenseProtocol, Head
from mmairl.evaluation.neighbors import nearest, vote
from mmairl.evaluation.protocol import Outcome, Scores, Sets
from mmairl.registry import PROTOCOLS

HEADS = ('linear', 'k-NN')
BLOCK = 1024  # number of images whose targets are read at a time


@PROTOCOLS.register_module('segment')
@dataclass(frozen=True)
class Segmentation(DenseProtocol):
    """Segment images by classifying each cell of the feature map with two heads.

    The head 'linear' is batch norm and a linear layer, as in DINOv2. The head 'k-NN' searches the cells of the training
    images. The score is mIoU as mmseg defines it. The details contain the IoU of each class, the pixel accuracy, and
    `chance`, the mIoU that is possible without looking at the images (see the function `chance`).

    Args:
        ignore: Classes that are neither learned nor scored. Default: none.
        k: Number of neighbors of the k-NN head.
        bank: Largest number of cells that the k-NN head searches. If the training images have more cells, a random sample of
            them is used.
    """

    heads: Sequence[str] = HEADS
    ignore: Sequence[int] = ()
    k: int = 30
    bank: int = 100_000

    metric: ClassVar = 'mIoU'
    known_heads: ClassVar = HEADS

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        # Without this check, the import in `measure` would fail only after the heads are trained.
        fault = 'segment: the scores require mmseg, which cannot be imported'
        kinds = (ImportError, AssertionError)
        with explained(fault, 'run requirements/install.sh full', kinds, code='missing-mmseg'):
            import mmseg.evaluation.metrics  # noqa: F401
        return super().run(cfg, subject, sets, identity)

    def prepared(self, target: Tensor) -> Tensor:
        ignore = torch.tensor(list(self.ignore), dtype=target.dtype)
        ignored = torch.isin(target, ignore)
        return torch.where(ignored, IGNORED, target)

    def widths(self, classes: Sequence[str]) -> dict[str, int]:
        return {'linear': len(classes)} if 'linear' in self.heads else {}

    def loss(self, head: str, outputs: Tensor, points: Tensor) -> Tensor:
        points = points.long()
        counted = points != IGNORED
        labels = points.where(counted, 0)
        log_p = F.log_softmax(outputs, dim=1).gather(1, labels)
        total = (log_p * counted).sum()
        return -total / counted.sum().clamp_min(1)

    def untrained_heads(self, cells: Cells, classes: Sequence[str]) -> dict[str, Head]:
        if 'k-NN' not in self.heads:
            return {}
        features, points = cells.stored
        rows, labels = self.bank_cells(points)
        flat = features.reshape(-1, features.shape[2])
        bank = torch.from_numpy(flat[rows]).float()
        mean = bank.mean(0)
        bank -= mean

        def head(queries: Tensor) -> Tensor:
            centered = queries.cpu() - mean
            similarity, position = nearest(centered, bank, self.k, self.device)
            votes = vote(similarity, labels[position], len(classes))
            return votes.float()

        return {'k-NN': head}

    def bank_cells(self, points: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Return the positions and labels of the cells that the k-NN head searches.

        Cells are selected block by block, because a list of all cells of a large data set would fill the memory.

        Args:
            points: The sampled targets of all cells, (images, cells, POINTS^2).
        """
        center = POINTS // 2 * (POINTS + 1)  # index of the point next to the center of a cell
        images, cells, _ = points.shape
        starts = range(0, images, BLOCK)

        def counted(start: int) -> np.ndarray:
            labels = points[start : start + BLOCK, :, center]
            return np.flatnonzero(~np.isin(labels, [IGNORED, *self.ignore]))

        sizes = [len(counted(start)) for start in starts]
        total = sum(sizes)
        drawn = np.arange(min(total, self.bank))
        if total > self.bank:
            random = np.random.default_rng(self.seed)
            drawn = random.choice(total, self.bank, replace=False)
        rows = []
        for start, size in zip(starts, sizes):
            inside = (drawn >= 0) & (drawn < size)
            chosen = np.sort(drawn[inside])
            positions = counted(start)[chosen]
            rows.append(start * cells + positions)
            drawn -= size
        rows = np.concatenate(rows)
        image, cell = np.divmod(rows, cells)
        labels = points[image, cell, center]
        return rows, torch.from_numpy(labels.astype(np.int64))

    def measure(self, prediction: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        from mmseg.evaluation.metrics import IoUMetric

        predicted = prediction.argmax(0)
        areas = IoUMetric.intersect_and_union(predicted, target.long(), len(classes), IGNORED)
        # The caller sums these areas over all images. In float32, the sums would be rounded.
        return torch.stack(areas).double()

    def summarize(
        self, head: str, statistics: Tensor, classes: Sequence[str]
    ) -> tuple[Scores, dict]:
        from mmseg.evaluation.metrics import IoUMetric

        values = IoUMetric.total_area_to_metrics(*statistics, ['mIoU'])
        per_class = {}
        iou = values['IoU'].tolist()
        for name, of_class in zip(classes, iou):
            if not isnan(of_class):
                per_class[name] = 100 * of_class
        details = dict(
            per_class=per_class,
            pixel_accuracy=100 * float(values['aAcc']),
            chance=100 * chance(statistics[3]),
        )
        mean = float(np.nanmean(values['IoU']))
        return {'mIoU': 100 * mean}, details


def chance(areas: Tensor) -> float:
    """Return the mIoU that is possible without looking at the images, given the area of each class in the targets.

    Two predictions are compared, and the higher mIoU is returned. One always predicts the most frequent class. The other
    predicts random classes with the frequencies of the targets.

    >>> chance(torch.tensor([60.0, 20.0, 20.0]))
    0.2169...
    """
    frequency = areas[areas > 0] / areas.sum()
    most_frequent = frequency.max() / len(frequency)
    at_random = (frequency / (2 - frequency)).mean()
    return max(most_frequent, at_random).item()
