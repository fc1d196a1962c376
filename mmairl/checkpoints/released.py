"""Download released models by name: 'torchvision:NAME', 'timm:NAME' and 'hf-hub:ORG/NAME'.

timm builds the models of timm and of the Hugging Face hub. Code in repositories is never downloaded.
"""

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmairl.errors import explained

HUBS = ('timm:', 'hf-hub:')


def is_released(name: str | Path) -> bool:
    """Return True for the name of a released model, such as 'torchvision:resnet50', and False for the path of a file."""
    return str(name).startswith(('torchvision:', *HUBS))


def is_hub(name: str | Path) -> bool:
    """Return whether this is the name of a model on the Hugging Face hub, such as 'timm:NAME' or 'hf-hub:ORG/NAME'."""
    return str(name).startswith(HUBS)


def is_timm_folder(path: str | Path) -> bool:
    """Return whether this is a folder from which timm can load a model."""
    return (Path(path).expanduser() / 'config.json').is_file()


def released_model(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights of a released model and its record of origin. The weights are downloaded once.

    Args:
        name: 'torchvision:NAME' with the weights IMAGENET1K_V1, 'timm:NAME', 'hf-hub:ORG/NAME[@REVISION]', or
            a folder that timm can load.

    Raises:
        UserError: 'unavailable-model' if the model is unknown or cannot be downloaded.
    """
    remedy = 'check the name (see timm.list_pretrained()) and the connection, or give a file'
    with explained(f'{name}: cannot be downloaded', remedy, code='unavailable-model'):
        if name.startswith('torchvision:'):
            return _torchvision_model(name.partition(':')[2])
        if is_released(name):
            return _timm_model(name.removeprefix('timm:'))
        return _timm_model(f'local-dir:{Path(name).expanduser()}')


def _torchvision_model(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    import torchvision

    released = torchvision.models.get_model_weights(name)['IMAGENET1K_V1']
    weights = torch.hub.load_state_dict_from_url(  # noqa: TID251  weights only
        released.url, map_location='cpu', check_hash=True, weights_only=True
    )
    images = released.transforms()
    return weights, dict(
        mean=images.mean,
        std=images.std,
        size=images.crop_size[0],
        interpolation=images.interpolation.value,
    )


def _timm_model(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Build a model by timm. The record of origin has the arguments with which timm builds the same architecture."""
    import timm
    from timm.models import load_model_config_from_hf
    from timm.models._hub import load_model_config_from_path

    source, _, place = name.rpartition(':')
    arguments = {}
    if source:
        read = load_model_config_from_hf if source == 'hf-hub' else load_model_config_from_path
        arguments = read(place)[2] or {}
    network = timm.create_model(name, pretrained=True, num_classes=0)
    if isinstance(network, timm.models.VisionTransformer):
        arguments = {**arguments, 'dynamic_img_size': True}
    images = timm.data.resolve_data_config(model=network)
    return network.state_dict(), dict(
        timm=dict(name=network.pretrained_cfg['architecture'], **architecture(arguments)),
        mean=images['mean'],
        std=images['std'],
        size=images['input_size'][1],
        channels=stored_channels(images['input_size'][0]),
        interpolation=images['interpolation'],
    )


def stored_channels(inputs: int) -> int | None:
    """Return the number of channels to read for a network with this number of inputs; None means 8-bit RGB images."""
    return None if inputs == 3 else inputs


def architecture(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of TimmBackbone that describe an architecture, and no file to load."""
    import timm

    own = {'type', 'init_cfg', 'tokens', 'drop_path', 'lora', 'num_classes'}
    other = own.union(signature(timm.create_model).parameters)
    # The settings of a run have dotted keys, such as 'init_cfg.checkpoint'.
    return {key: value for key, value in arguments.items() if key.partition('.')[0] not in other}
