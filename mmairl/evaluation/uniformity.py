"""Measure the uniformity of a model's features."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.neighbors import unit_rows
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS

SCALE = 2.0  # factor in the exponent, as in Wang and Isola (2020)


@PROTOCOLS.register_module('uniformity')
@dataclass(frozen=True)
class Uniformity(FeatureProtocol):
    """Measure how uniformly the normalized features of test images are spread over the sphere (Wang and Isola, 2020)::

        log( mean over pairs of exp(-2 |x - y|^2) )

    Lower values mean more uniform features. For a uniform distribution on a sphere of many dimensions, the value is about -4.

    Args:
        images: Largest number N of test images to use. If the test set has at least 2 N images, the used images are
            spaced regularly. Otherwise, the first N images are used. Default: 5000.
    """

    images: int = 5000

    metric: ClassVar = 'none'
    null_rows: ClassVar = ()
    unit: ClassVar = ''

    def score(self, split: Split) -> tuple[Scores, dict]:
        features = torch.as_tensor(split.test.x)
        step = max(1, len(features) // self.images)
        unit_features = unit_rows(features[::step][: self.images].float())
        distances = torch.pdist(unit_features).square()
        count = torch.tensor(float(len(distances)))
        value = torch.logsumexp(-SCALE * distances, 0) - count.log()
        return {'uniformity': value.item()}, {}
