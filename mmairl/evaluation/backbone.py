"""The backbone under test, loaded whole or not at all.

Evaluating the wrong network in silence is the field's classic error.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from mmengine import Config
from mmengine.logging import MMLogger, print_log
from torch import Tensor, nn

from mmairl.models.batchnorm import measure_statistics, norms_of  # which registers mmpretrain's backbones as well
from mmairl.registry import MODELS
from mmairl.weights.init import fitted
from mmairl.weights.load import require_same_keys
from mmairl.weights.read import Backbone, read_backbone

# A hidden factor: what `load_backbone` and `pooled` do unless they are told otherwise.
FEATURES = "the student's, pooled after the backbone"


def load_backbone(
    cfg: Config, checkpoint: str | Path | Backbone | None = None, part: str = 'student', seed: int = 0
) -> nn.Module:
    """The config's backbone, frozen and in eval mode, with a checkpoint's weights or (None) a seeded random start.

    A checkpoint is a path, or a `Backbone` that has been read before.
    """
    description = cfg.model.backbone.copy()
    # A pre-trained start in the config belongs to training; here it would hide what the checkpoint lacks.
    description.pop('init_cfg', None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = MODELS.build(description)
        if checkpoint is None:
            origin = f'random initialisation, seed {seed}'
            logger = MMLogger.get_current_instance()
            level = logger.level
            logger.setLevel(logging.WARNING)  # mmengine would print how each tensor was started
            try:
                getattr(backbone, 'init_weights', lambda: None)()
            finally:
                logger.setLevel(level)
    if checkpoint is not None:
        source = checkpoint if isinstance(checkpoint, Backbone) else read_backbone(checkpoint, part)
        weights = fitted(source.weights, backbone.state_dict(), source.path)
        require_same_keys(weights, backbone.state_dict(), source.path)
        backbone.load_state_dict(weights)
        origin = f'{source}, all {len(source.weights)} keys matched'
    print_log(f'backbone under test: {origin}', logger='current')
    backbone.requires_grad_(False)
    backbone.eval()
    return backbone


def refresh_statistics(backbone: nn.Module, batches: Iterable[Tensor]) -> None:
    """Measure batch norm's statistics anew on these images: those of before do not suit weights that NormRescale changed."""
    backbone.eval()
    for layer in norms_of(backbone):
        layer.train()
    measure_statistics(backbone, batches, backbone)
    backbone.eval()
