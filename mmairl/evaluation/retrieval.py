"""Score features by image retrieval with cosine similarity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.knn import QUERY_BLOCK, nearest
from mmairl.evaluation.metrics import mean_percent
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('retrieval')
@dataclass(frozen=True)
class Retrieval(FeatureProtocol):
    """Rank all other test images by their cosine similarity to each test image.

    A match is an image of the same class. The scores are mAP and recall@k, the fraction of test
    images with a match among the first k images. Test images without a match are not scored.

    Args:
        ks: Values of k. Default: 1, 5 and 10.
    """

    ks: Sequence[int] = (1, 5, 10)

    labels: ClassVar = ('single',)
    metric: ClassVar = 'mAP'

    def score(self, split: Split) -> tuple[Scores, dict]:
        test = split.test
        precisions, places = [], []
        for rows in torch.arange(len(test.x)).split(QUERY_BLOCK // 4):
            _, order = nearest(test.x[rows], test.x, len(test.x), self.device)
            order = order[order != rows[:, None]].view(len(rows), -1)  # no image matches itself
            match = test.y[order] == test.y[rows, None]
            rank = torch.arange(1, len(test.x))
            precisions.append((match.cumsum(1) / rank * match).double().sum(1) / match.sum(1))
            places.append(match.long().argmax(dim=1))
        precision, place = torch.cat(precisions), torch.cat(places)
        found = precision.isfinite()
        if not found.any():
            raise UserError(
                'retrieval: each class has only one test image; use several images of each class',
                code='no-positives',
            )
        scores = {'retrieval, mAP': mean_percent(precision[found])}
        for k in self.ks:
            scores[f'retrieval, recall@{k}'] = mean_percent(place[found] < k)
        return scores, dict(queries=int(found.sum()))
