"""The identity of the model in a checkpoint, independent of file format and precision."""

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

SAMPLED = 64  # values of each tensor that are compared
HALF = 2**-8  # relative error of rounding to bfloat16
TINY = 2**-24  # absolute error of rounding to float16
COUNTER = 'num_batches_tracked'  # missing in some formats; no output depends on it


@dataclass(frozen=True, eq=False)
class Model:
    """The digest of a model's weights, and a sample of their values for comparison."""

    weights: str
    sample: Tensor

    def is_near(self, other: 'Model') -> bool:
        """Return True if the values agree within the rounding of float16 and bfloat16."""
        if self.sample.shape != other.sample.shape:
            return False
        largest = torch.maximum(self.sample.abs(), other.sample.abs())
        return bool(((self.sample - other.sample).abs() <= HALF * largest + TINY).all())


def model_at(path: str | Path, cfg: Config | None = None) -> Model:
    """Return the model in a checkpoint. A file is read once per process, unless it changes.

    Args:
        path: The checkpoint.
        cfg: A config whose backbone the checkpoint must fit. Default: a ResNet or ViT, detected by its keys.
    """
    backbone = json.dumps(cfg.model.backbone.to_dict(), default=str) if cfg else ''
    return _read_model(str(path), file_stat(path), backbone)


@cache
def _read_model(path: str, stat: tuple[int, int], backbone: str) -> Model:
    """Return the model in a file with these stats. `backbone` is JSON, because arguments must be hashable."""
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
