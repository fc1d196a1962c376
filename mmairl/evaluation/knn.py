"""Score features by k-nearest-neighbor classification."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from mmengine import Config
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.neighbors import TEMPERATURE, nearest, vote
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

KS = (20, 200)


@PROTOCOLS.register_module('knn')
@dataclass(frozen=True)
class KNN(FeatureProtocol):
    """Classify test images by the weighted votes of their k nearest neighbors in cosine similarity (Wu et al., 2018).

    A test image whose class has no training image counts as wrong. The score is top-1 accuracy, even if the data set defines
    another metric.

    Args:
        ks: Numbers of neighbors. The first gives the main score. Default: the config's `evaluation.ks`, or 20 and 200.
        temperature: Softmax temperature of the votes. Default: 0.07.
    """

    ks: Sequence[int] | None = None
    temperature: float = TEMPERATURE

    labels: ClassVar = ('single',)
    metric: ClassVar = 'top-1'
    everywhere: ClassVar = True
    columns: ClassVar = {'knn20': 'k-NN, k = 20', 'knn200': 'k-NN, k = 200'}

    def neighbors(self, cfg: Config) -> list[int]:
        return list(self.ks or cfg.evaluation.get('ks', KS))

    def identity(self, cfg: Config, subject: Backbone | str) -> dict[str, Any]:
        return dict(ks=self.neighbors(cfg), temperature=self.temperature)

    def score(self, split: Split) -> tuple[Scores, dict]:
        predicted = knn_predictions(
            split.train, split.test, self.neighbors(split.cfg), self.temperature, self.device
        )
        scores = {}
        for k, labels in predicted.items():
            right = labels == split.test.y
            scores[f'k-NN, k = {k}'] = 100 * int(right.sum()) / len(labels)
        main = next(iter(predicted.values()))
        return scores, dict(temperature=self.temperature, predicted=main)


def knn_right(
    train: Features,
    test: Features,
    ks: Sequence[int] = KS,
    device: str | torch.device = 'cpu',
) -> dict[int, Tensor]:
    """Return, for each k, which test images are classified correctly.

    Example:
        >>> features = Features(torch.eye(3), torch.tensor([0, 1, 2]))
        >>> knn_right(features, features, ks=[1])
        {1: tensor([True, True, True])}
    """
    predicted = knn_predictions(train, test, ks, device=device)
    return {k: labels == test.y for k, labels in predicted.items()}


@torch.inference_mode()
def knn_predictions(
    train: Features,
    test: Features,
    ks: Sequence[int] = KS,
    temperature: float = TEMPERATURE,
    device: str | torch.device = 'cpu',
) -> dict[int, Tensor]:
    """Return, for each k, the predicted class of each test image. Each process handles a share of the test images.

    A k above the number of training images is replaced by this number.
    """
    if train.y.ndim == 2:
        raise UserError(
            'k-NN: expected one class per image, but images have several; use svm or logreg',
            code='unsupported-labels',
        )
    if max(ks) > len(train.x):
        print_log(
            f'k-NN: there are only {len(train.x)} training images; for a larger k, all of them vote',
            logger='current',
        )
        ks = list(dict.fromkeys(min(k, len(train.x)) for k in ks))
    share = slice(get_rank(), None, get_world_size())
    similarity, position = nearest(test.x[share], train.x, max(ks), device, cuts=ks)
    labels = train.y[position]
    classes = int(train.y.max()) + 1
    predicted = torch.zeros(len(ks), len(test.y), dtype=torch.int64)
    for row, k in enumerate(ks):
        votes = vote(similarity[:, :k], labels[:, :k], classes, temperature)
        predicted[row, share] = votes.argmax(1)
    all_reduce(predicted)
    return dict(zip(ks, predicted))
