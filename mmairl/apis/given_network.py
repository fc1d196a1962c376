"""Register the modules passed to `mmairl.pretrain(network=...)`, so that a config can refer to them by name."""

import copy

import torch
from torch import nn

from mmairl.errors import UserError
from mmairl.models.backbones import features
from mmairl.registry import MODELS

NETWORKS: dict[str, nn.Module] = {}


def register_network(network: nn.Module, channels: int, size: int) -> tuple[str, int]:
    """Make a module available to configs as `dict(type='GivenNetwork', name=NAME)`.

    Args:
        network: A module that maps images to pooled features (N, D), a feature map (N, D, H, W) or tokens (N, L, D).
        channels: Number of channels of the images.
        size: Side of the images in pixels.

    Returns:
        NAME and D, the number of features. D is measured by calling a copy of the module with a blank image.

    Raises:
        UserError: 'not-features' if the module returns anything but such features.
    """
    name = f'{type(network).__name__}-{len(NETWORKS)}'
    NETWORKS[name] = network
    return name, width_of(copy.deepcopy(network), channels, size)


def width_of(network: nn.Module, channels: int, size: int) -> int:
    """Return the number of pooled features that a network computes for a blank image."""
    parameter = next(network.parameters())
    images = torch.zeros(1, channels, size, size, device=parameter.device, dtype=parameter.dtype)
    network.eval()
    with torch.no_grad():
        return features(network, images).pooled.shape[1]


@MODELS.register_module('GivenNetwork')
def given_network(name: str) -> nn.Module:
    """Return a copy of a registered module, so that each run starts from the original weights.

    Raises:
        UserError: 'network-of-python' if the module was registered in another process.
    """
    if name not in NETWORKS:
        raise UserError(
            f"GivenNetwork: the module '{name}' exists only in the Python process that passed it to mmairl.pretrain; call "
            'mmairl.pretrain(..., network=MODULE, resume=True) again',
            code='network-of-python',
        )
    network = copy.deepcopy(NETWORKS[name])
    # Without this mark, mmengine would call the method init_weights of timm's networks and so replace their weights.
    network.is_init = True
    return network
