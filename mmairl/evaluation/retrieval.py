"""Score features by image retrieval with cosine similarity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.metrics import mean_percent
from mmairl.evaluation.neighbors import unit_rows
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

QUERIES = 512  # number of queries that are compared with the gallery at a time


@PROTOCOLS.register_module('retrieval')
@dataclass(frozen=True)
class Retrieval(FeatureProtocol):
    """Rank the images of a gallery by their cosine similarity to each query image.

    The scores are mAP and recall@k, the fraction of queries with a match among the first k images. Queries without a match in
    the gallery are not scored. If images have classes, the test images are the queries, and a match is an image of the same
    class. In the data set `Landmarks`, the training images are the queries. Column q of its test labels states which test
    images match query q (1), do not match it (0), or do not count (-1).

    Args:
        gallery: The images to rank for each test image: 'test' for all other test images, or 'train' for the training
            images. Default: 'test'.
        ks: Values of k. Default: 1, 5 and 10.
    """

    gallery: Literal['test', 'train'] = 'test'
    ks: Sequence[int] = (1, 5, 10)

    labels: ClassVar = ('single', 'queries')
    metric: ClassVar = 'mAP'

    def __post_init__(self) -> None:
        if self.gallery not in ('test', 'train'):
            raise UserError(
                f"retrieval.gallery: expected test or train ('{self.gallery}')",
                code='unknown-gallery',
            )

    def score(self, split: Split) -> tuple[Scores, dict]:
        listed = split.test.y.ndim == 2
        if listed and split.train.unreadable:
            raise UserError(
                f'retrieval: {len(split.train.unreadable)} query images cannot be read; replace the files',
                code='unreadable-query',
            )
        queries = split.train if listed else split.test
        bank = split.train if self.gallery == 'train' and not listed else split.test
        gallery = unit_rows(bank.x.to(self.device)).T
        precision = []
        first = []
        for start in range(0, len(queries.x), QUERIES):
            rows = torch.arange(start, min(start + QUERIES, len(queries.x)))
            relevance = bank.y[:, rows].T if listed else bank.y == queries.y[rows, None]
            relevance = relevance.long()
            if bank is queries:
                relevance[rows - start, rows] = -1  # A query must not match itself.
            block = unit_rows(queries.x[rows].to(self.device))
            similarity = block @ gallery
            of_block, place = ranked(similarity.cpu(), relevance)
            precision.append(of_block)
            first.append(place)
        precision = torch.cat(precision)
        first = torch.cat(first)
        found = precision.isfinite()
        if not found.any():
            raise UserError(
                'retrieval: no query has another image of its class in the gallery (the searched images); use several images '
                'of each class',
                code='no-positives',
            )
        scores = {'retrieval, mAP': mean_percent(precision[found])}
        for k in self.ks:
            scores[f'retrieval, recall@{k}'] = mean_percent(first[found] < k)
        return scores, dict(queries=int(found.sum()), without_match=int((~found).sum()))


def ranked(similarity: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    """Return each query's average precision (NaN without a match), and the rank of its first match, starting at 0.

    Precisions are averaged as in the evaluation of the data sets Oxford and Paris. Each match increases the recall, and this
    increase is multiplied by the mean of the precisions before and after the match. Images with a relevance of -1 are
    removed from the ranking.
    """
    counted = relevance >= 0
    order = similarity.masked_fill(~counted, -torch.inf).argsort(
        dim=1, descending=True, stable=True
    )
    match = relevance.gather(1, order) == 1
    number = match.cumsum(1).double()
    rank = torch.arange(1, match.shape[1] + 1, dtype=torch.float64)
    after = number / rank
    before = ((number - 1) / (rank - 1)).masked_fill(rank == 1, 1.0)
    matches = match.sum(1)
    precision = ((after + before) / 2 * match).sum(1) / matches
    return precision, match.long().argmax(dim=1)
