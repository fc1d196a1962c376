"""Identify the model in a checkpoint, so that the same model is recognized in any file format and precision."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from mmengine.config import Config
from torch import Tensor

from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.backbone import tensors_of_config
from mmairl.evaluation.identity import weights_identity
from mmairl.evaluation.overlap import file_stat

SAMPLED = 64  # the approximate number of values of each tensor that are compared
HALF = 2**-8  # the largest relative error of rounding to bfloat16
TINY = 2**-24  # an upper bound of the absolute error of rounding small values to float16
COUNTER = 'num_batches_tracked'  # Some file formats lack this counter of batch norm, which affects no output.


@dataclass(frozen=True, eq=False)
class Model:
    """The digest of a model's weights, and a sample of the weights' values for the comparison of two models."""

    weights: str
    sample: Tensor

    def is_near(self, other: 'Model') -> bool:
        """Return True if the sampled values agree within the rounding errors of float16 and bfloat16."""
        if self.sample.shape != other.sample.shape:
            return False
        largest = torch.maximum(self.sample.abs(), other.sample.abs())
        return bool(((self.sample - other.sample).abs() <= HALF * largest + TINY).all())


def model_at(path: str | Path, cfg: Config | None = None) -> Model:
    """Return the digest and the sample of the model in a checkpoint. An unchanged file is read only once per process.

    Args:
        path: The checkpoint.
        cfg: A config whose backbone the checkpoint must fit. By default, the checkpoint must contain a ResNet or a ViT,
            which is detected by the names of its tensors.
    """
    backbone = json.dumps(cfg.model.backbone.to_dict(), default=str) if cfg else ''
    return _read_model(str(path), file_stat(path), backbone)


@cache
def _read_model(path: str, stat: tuple[int, int], backbone: str) -> Model:
    """Read a model. The size and time of the file are arguments, so that the cache is not used after the file has changed.

    `backbone` is a config as JSON, because the arguments of a cached function must be hashable.
    """
    network = None
    if backbone:
        network = tensors_of_config(Config(dict(model=dict(backbone=json.loads(backbone)))))
    weights = read_backbone(path, network=network).weights
    names = sorted(name for name in weights if not name.endswith(COUNTER))
    parts = []
    for name in names:
        values = weights[name].detach().reshape(-1)
        parts.append(values[:: max(1, len(values) // SAMPLED)].float())
    return Model(weights_identity(weights), torch.cat(parts))
