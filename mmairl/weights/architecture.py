"""The config of a ResNet read off its weights, so that a checkpoint alone can be looked at."""

import re
from collections.abc import Mapping

from torch import Tensor

from mmairl.errors import UserError

# Blocks per stage, and whether a block is a bottleneck, to the depth.
DEPTHS = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
    ((3, 24, 36, 3), True): 200,
}


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict:
    """The `backbone=` of a config that these weights fit.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    blocks = {tuple(map(int, found.groups())) for key in weights if (found := re.match(r'layer(\d)\.(\d+)\.', key))}
    stages = tuple(sum(stage == number for stage, _ in blocks) for number in (1, 2, 3, 4))
    depth = DEPTHS.get((stages, 'layer1.0.conv3.weight' in weights))
    if depth is None or 'conv1.weight' not in weights:
        raise UserError(
            f'{path} holds no ResNet whose depth is known (blocks {stages}); give --config with its backbone'
        )
    return dict(
        type='ResNet',
        depth=depth,
        stem_channels=weights['conv1.weight'].shape[0],
        base_channels=weights['layer1.0.conv1.weight'].shape[0],
    )
