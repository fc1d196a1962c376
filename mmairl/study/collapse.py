"""Detect collapsed runs: their backbones map all images to constant or nearly constant features.

A run that is not better than a random network has not necessarily collapsed. Only the features decide.
"""

import torch
from mmengine.config import Config
from msgspec import Struct
from torch.utils.data import Subset

from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import extract, extraction
from mmairl.evaluation.protocol import default_device
from mmairl.models.spectrum import rankme, spread
from mmairl.registry import DATASETS

COLLAPSE = 'collapse.json'
IMAGES = 256  # the number of test images whose features are compared
# Features are constant if their spread is smaller, or if they vary along fewer directions.
LEAST_SPREAD = 0.01
LEAST_RANK = 1.5


class Health(Struct, frozen=True):
    """collapse.json: the spread of a run's features, 0 if they are constant, and their effective rank."""

    spread: float
    rank: float

    @property
    def collapsed(self) -> bool:
        return not (self.spread >= LEAST_SPREAD and self.rank >= LEAST_RANK)


def measure_collapse(cfg: Config, checkpoint: str) -> Health:
    """Return the spread and the effective rank of the features of some test images."""
    how = extraction(cfg, default_device())
    data = DATASETS.build(cfg.evaluation.test)
    step = max(1, len(data) // IMAGES)
    rows = range(0, min(len(data), step * IMAGES), step)
    features = extract(load_backbone(cfg, checkpoint), Subset(data, rows), how).x
    return features_health(features)


def features_health(features: torch.Tensor) -> Health:
    """Return the spread of the features' directions, and the effective rank of their deviations from the mean."""
    return Health(spread(features), rankme(features - features.mean(dim=0)))
