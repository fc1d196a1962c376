"""Register the modules passed to `mmairl.pretrain(network=...)`, so that a config can refer to them by name."""

import copy

import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS

NETWORKS: dict[str, nn.Module] = {}


def register_network(network: nn.Module, channels: int, size: int) -> tuple[str, int]:
    """Make a module available to configs as `dict(type='GivenNetwork', name=NAME)`.

    Args:
        network: A module that maps images to pooled features of shape (N, D) or to a feature map of shape (N, D, H, W).
        channels: Number of channels of the images.
        size: Side of the images in pixels.

    Returns:
        NAME and D, the number of features. D is measured by calling the module with two blank images.

    Raises:
        UserError: 'bad-network' if the module fails on the blank images or does not return features of these shapes.
    """
    kind = type(network).__name__
    parameter = next(network.parameters(), torch.empty(0))
    images = torch.zeros(2, channels, size, size, device=parameter.device, dtype=parameter.dtype)
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            features = network(images)
    except Exception as error:  # The module is user code and can raise any exception.
        raise UserError(
            f'network: {kind} fails for images of shape {tuple(images.shape)} ({type(error).__name__}: {error}); change the '
            'module, or set size and channels as the module requires',
            code='bad-network',
        ) from error
    finally:
        network.train(was_training)
    last = features[-1] if isinstance(features, tuple | list) and features else features
    if not isinstance(last, Tensor) or last.ndim not in (2, 4) or len(last) != len(images):
        found = tuple(last.shape) if isinstance(last, Tensor) else type(features).__name__
        raise UserError(
            f"network: {kind} returned '{found}' for N = {len(images)} images, but must return features of shape (N, D) or "
            '(N, D, H, W); wrap the network in a module that returns such features',
            code='bad-network',
        )
    name = f'{kind}-{len(NETWORKS)}'
    NETWORKS[name] = network
    return name, pooled(last).shape[1]


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
