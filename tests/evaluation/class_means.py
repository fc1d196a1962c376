"""The nearest-class-mean protocol.

It is not part of the package; docs/how-to/add_data_and_protocols.md shows how to add it.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F

from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.metrics import packed, scores_of
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('ncm')
@dataclass(frozen=True)
class NearestClassMean(FeatureProtocol):
    """Assign each image to the class with the most similar mean feature.

    Args:
        center: Whether to subtract the mean of the training features. Default: True.
    """

    center: bool = True

    labels: ClassVar = ('single',)

    def score(self, split: Split) -> tuple[Scores, dict]:
        train, test = split.train, split.test
        origin = train.x.mean(0) if self.center else 0
        classes = int(max(train.y.max(), test.y.max())) + 1
        members = F.one_hot(train.y, classes).float()
        sizes = members.sum(0)
        means = (members.T @ (train.x - origin)) / sizes.clamp_min(1)[:, None]
        similarity = F.normalize(test.x - origin) @ F.normalize(means).T
        # This is less than any cosine, so a class without training images is never predicted.
        similarity[:, sizes == 0] = -2
        scores = scores_of(split.metric, similarity, test.y)
        right = similarity.argmax(1) == test.y
        return {f'nearest class mean, {name}': score for name, score in scores.items()}, {'right': packed(right)}
