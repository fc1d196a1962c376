"""Score features by k-nearest-neighbor classification with an exact search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

KS = (20, 200)
TEMPERATURE = 0.07
QUERY_BLOCK = 2048
BANK_BLOCK = 8192  # rows of the bank that are on the device at the same time


@PROTOCOLS.register_module('knn')
@dataclass(frozen=True)
class KNN(FeatureProtocol):
    """Classify images by the weighted votes of their k nearest neighbors (Wu et al. 2018).

    Neighbors are training images, and their nearness is the cosine similarity of features. A test
    image whose class has no training image counts as wrong. The score is top-1 accuracy, even if
    the data set defines another metric.

    Args:
        ks: Numbers of neighbors; the first gives the main score. Default: 20 and 200. A larger k
            than the number of images means all images.
        temperature: Softmax temperature of the votes. Default: 0.07.
    """

    ks: Sequence[int] = KS
    temperature: float = TEMPERATURE

    labels: ClassVar = ('single',)
    metric: ClassVar = 'top-1'
    columns: ClassVar = {'knn20': 'k-NN, k = 20', 'knn200': 'k-NN, k = 200'}

    def score(self, split: Split) -> tuple[Scores, dict]:
        train, test = split.train, split.test
        predicted = knn_predictions(train, test, self.ks, self.temperature, self.device)
        scores = {}
        for k, labels in predicted.items():
            right = int((labels == test.y).sum())
            scores[f'k-NN, k = {k}'] = 100 * right / len(labels)
        main = next(iter(predicted.values()))
        return scores, dict(temperature=self.temperature, predicted=main)


@torch.inference_mode()
def knn_predictions(
    train: Features,
    test: Features,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    device: str | torch.device = 'cpu',
) -> dict[int, Tensor]:
    """Return, for each k, the predicted class of each test image.

    Each neighbor adds the weight exp(similarity / temperature) to the score of its class. A k that
    is larger than the number of training images is replaced by that number.

    Example:
        >>> features = Features(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> knn_predictions(features, features, ks=[1])
        {1: tensor([0, 1, 2])}
    """
    similarity, position = nearest(test.x, train.x, max(ks), device)
    labels = train.y[position]
    # In each row, the weights are divided by the largest weight, so that they cannot overflow.
    similarity = similarity.double()
    weights = ((similarity - similarity[:, :1]) / temperature).exp()
    predicted = {}
    for k in ks:
        votes = weights.new_zeros(len(weights), int(train.y.max()) + 1)
        votes.scatter_add_(1, labels[:, :k], weights[:, :k])
        predicted[min(k, len(train.x))] = votes.argmax(1)
    return predicted


@torch.inference_mode()
def nearest(
    query: Tensor, bank: Tensor, k: int, device: str | torch.device = 'cpu'
) -> tuple[Tensor, Tensor]:
    """Return the cosine similarities and rows, both (N, k), of the k nearest bank rows.

    The search is exact up to the rounding of float32. If the bank has fewer than k rows, all rows
    are returned. It is searched in blocks, so device memory does not grow with its size.
    """
    found = []
    for rows in query.split(QUERY_BLOCK):
        rows = unit_rows(rows.to(device))
        best, place = rows[:, :0], rows[:, :0].long()
        for start in range(0, len(bank), BANK_BLOCK):
            block = unit_rows(bank[start : start + BANK_BLOCK].to(device))
            # The best rows of the bank are among the best rows so far and all rows of the block.
            similarity = torch.cat([best, rows @ block.T], dim=1)
            here = torch.arange(start, start + len(block), device=rows.device).expand(len(rows), -1)
            best, order = similarity.topk(min(k, similarity.shape[1]))
            place = torch.cat([place, here], dim=1).gather(1, order)
        found.append((best.cpu(), place.cpu()))
    return tuple(map(torch.cat, zip(*found)))


def unit_rows(x: Tensor) -> Tensor:
    """Scale each row to length 1. The squares of values like 1e20 would overflow without float64."""
    return F.normalize(x.double(), eps=1e-60).float()
