"""Load the backbone to evaluate. A weight that is missing or left over is an error.

Evaluations of partly loaded networks are a common mistake, which no score reveals.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from mmengine import Config
from mmengine.logging import MMLogger, print_log
from torch import Tensor, nn

from mmairl.checkpoints.init import fitted
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone, read_backbone, warn
from mmairl.models.norm import measure_statistics, norms_of  # also registers mmpretrain's backbones
from mmairl.registry import MODELS

# The defaults of `load_backbone` and `pooled`, which a study states as a hidden factor.
FEATURES = "the student's, pooled after the backbone"


def load_backbone(
    cfg: Config,
    checkpoint: str | Path | Backbone | None = None,
    part: str = 'student',
    seed: int = 0,
    prefix: str | None = None,
) -> nn.Module:
    """Return the config's backbone, frozen and in eval mode, with the weights of a checkpoint or random ones.

    Args:
        cfg: The config that has the network as `model.backbone`.
        checkpoint: A path, or a `Backbone` from `read_backbone`. None initializes the backbone at random.
        part: 'student' or 'teacher'.
        seed: Seed of the random initialization.
        prefix: Prefix of the backbone's keys in the checkpoint. Default: detect it.

    Raises:
        UserError: If the checkpoint does not fill every weight.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = build_backbone(cfg)
        if checkpoint is None:
            origin = f'random initialisation, seed {seed}'
            logger = MMLogger.get_current_instance()
            level = logger.level
            logger.setLevel(logging.WARNING)  # mmengine would log the initialization of each tensor
            try:
                getattr(backbone, 'init_weights', lambda: None)()
            finally:
                logger.setLevel(level)
    if checkpoint is not None:
        source = checkpoint
        tensors = backbone.state_dict()
        if not isinstance(source, Backbone):
            source = read_backbone(checkpoint, part, prefix, tensors)
        warn_of_other_statistics(cfg, source)
        weights = fitted(source.weights, tensors, source.path)
        require_same_keys(weights, tensors, source.path)
        backbone.load_state_dict(weights)
        origin = f'{source}, all {len(source.weights)} keys matched'
    print_log(f'backbone under test: {origin}', logger='current')
    backbone.requires_grad_(False)
    backbone.eval()
    return backbone


def build_backbone(cfg: Config) -> nn.Module:
    """Build the config's backbone without its `init_cfg`, whose weights could fill gaps of a checkpoint."""
    description = cfg.model.backbone.copy()
    description.pop('init_cfg', None)
    return MODELS.build(description)


def tensors_of_config(cfg: Config) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint must fill for the config's backbone."""
    with torch.random.fork_rng(devices=[]):
        return build_backbone(cfg).state_dict()


def warn_of_other_statistics(cfg: Config, source: Backbone) -> None:
    """Warn if a checkpoint states another mean or standard deviation than the config's."""
    stated = source.input
    normal = cfg.model.get('data_preprocessor')
    if not stated.origin or normal is None or stated.channels is not None:
        return
    for name in ('mean', 'std'):
        used = normal.get(name)
        known = getattr(stated, name)
        if used is None or len(used) != len(known) or np.allclose(used, known, atol=1e-3):
            continue
        warn(
            f'{source.path}: {stated.origin} states the {name} {list(known)} and the config normalizes images with '
            f'{list(used)}; set model.data_preprocessor.{name} if that is not intended'
        )


def refresh_statistics(backbone: nn.Module, batches: Iterable[Tensor]) -> None:
    """Measure the statistics of batch norms on these images, because NormRescale invalidates the stored ones."""
    backbone.eval()
    for layer in norms_of(backbone):
        layer.train()
    measure_statistics(backbone, batches, backbone)
    backbone.eval()
