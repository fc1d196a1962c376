"""Measure the uniformity of a model's features."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from mmairl.analysis.geometry import uniformity
from mmairl.evaluation.feature_protocol import FeatureProtocol, Split
from mmairl.evaluation.protocol import Scores
from mmairl.registry import PROTOCOLS


@PROTOCOLS.register_module('uniformity')
@dataclass(frozen=True)
class Uniformity(FeatureProtocol):
    """Measure how uniformly the features of test images are spread over the sphere.

    Lower values mean more uniform features (Wang and Isola 2020); the value is about -4 for a
    uniform distribution on a sphere of many dimensions.

    Args:
        images: Largest number of test images to use, evenly spaced. Default: 5000.
    """

    images: int = 5000

    metric: ClassVar = 'none'
    null_rows: ClassVar = ()
    unit: ClassVar = ''

    def score(self, split: Split) -> tuple[Scores, dict]:
        x = split.test.x
        rows = torch.linspace(0, len(x) - 1, min(self.images, len(x))).long()
        return {'uniformity': uniformity(x[rows])}, {}
