"""Load the backbone to evaluate. It is an error if the checkpoint lacks a weight or has an unused weight.

Evaluating a network whose weights were loaded only in part is a common mistake, and the score does not reveal it.
"""

import logging
from collections.abc import Iterable
from pathlib import Path

import torch
from mmengine import Config
from mmengine.logging import MMLogger, print_log
from torch import Tensor, nn

from mmairl.checkpoints.init import fitted
from mmairl.checkpoints.load import require_same_keys
from mmairl.checkpoints.read import Backbone, read_backbone

# This import also registers the backbones of mmpretrain.
from mmairl.models.norm import measure_statistics, norms_of
from mmairl.registry import MODELS


def load_backbone(
    cfg: Config,
    checkpoint: str | Path | Backbone | None = None,
    part: str = 'student',
    seed: int = 0,
) -> nn.Module:
    """Return the config's backbone, frozen and in eval mode, with weights from a checkpoint or random weights.

    Args:
        cfg: The config that defines the backbone as `model.backbone`.
        checkpoint: A path, or a `Backbone` from `read_backbone`. None initializes the backbone at random.
        part: 'student' or 'teacher'.
        seed: Seed of the random initialization.

    Raises:
        UserError: If the names or shapes of the weights in the checkpoint differ from those of the backbone. An exception is a
            first convolution for RGB images, whose weights are fitted to another number of channels.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # An `init_cfg` could hide that a checkpoint lacks some weights.
        network = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
        backbone = MODELS.build(network)
        if checkpoint is None:
            origin = f'random initialization, seed {seed}'
            logger = MMLogger.get_current_instance()
            level = logger.level
            # At a lower log level, mmengine would log the initialization of each tensor.
            logger.setLevel(logging.WARNING)
            try:
                getattr(backbone, 'init_weights', lambda: None)()
            finally:
                logger.setLevel(level)
    if checkpoint is not None:
        tensors = backbone.state_dict()
        source = checkpoint
        if not isinstance(source, Backbone):
            source = read_backbone(source, part, network=tensors)
        weights = fitted(source.weights, tensors, source.path)
        require_same_keys(weights, tensors, source.path)
        backbone.load_state_dict(weights)
        origin = f'{source}, all {len(source.weights)} keys matched'
    print_log(f'backbone under test: {origin}', logger='current')
    backbone.requires_grad_(False)
    backbone.eval()
    return backbone


def refresh_statistics(backbone: nn.Module, batches: Iterable[Tensor]) -> None:
    """Recompute the batch norm statistics on batches of images.

    After NormRescale (`mmairl.checkpoints.normrescale`), new statistics are needed, because the stored statistics do not fit
    the new weights.
    """
    backbone.eval()
    for layer in norms_of(backbone):
        layer.train()
    measure_statistics(backbone, batches, backbone)
    backbone.eval()
