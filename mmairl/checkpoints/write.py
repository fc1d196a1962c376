"""Write a backbone in the format of another project, and record in the file where its weights come from."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from mmairl.checkpoints.architecture import PATCHES
from mmairl.checkpoints.formats import rename
from mmairl.checkpoints.pickles import ORIGIN, portable
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.io import output, replacing

Weights = dict[str, Tensor]


def write_backbone(
    backbone: Backbone, path: str | Path, to: str = 'mmairl', **record: object
) -> None:
    """Write a backbone to a file in the format of a project.

    Args:
        backbone: The backbone.
        path: The file to write. It must not be the file from which the backbone was read.
        to: One of `WRITERS`: 'mmairl', 'torchvision', 'timm', 'detectron2' or 'safetensors'.
        **record: Additional entries for the record of origin in the file.

    Raises:
        UserError: If the format cannot represent this network.

    Example:
        >>> write_backbone(read_backbone('moco_v2.pth.tar'), 'moco_v2.pkl', to='detectron2')  # doctest: +SKIP
    """
    with replacing(output(path, backbone.path)) as temporary, temporary.open('wb') as file:
        # The tensors are copied, because safetensors rejects tensors that share memory.
        copies = {
            key: value.clone(memory_format=torch.contiguous_format)
            for key, value in backbone.weights.items()
        }
        WRITERS[to](copies, portable({**backbone.record, **record}), file)


def unwritable(to: str, network: str, choice: str) -> UserError:
    return UserError(
        f"--to {to}: cannot represent this network ('{network}'); use --to {choice}",
        code='unwritable-network',
    )


def _mmairl(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    state = OrderedDict((f'backbone.{key}', value) for key, value in weights.items())
    torch.save(dict(meta={ORIGIN: origin}, state_dict=state), file)


def _plain(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write a plain dictionary of tensors, like torchvision's files. The record of origin is an attribute of the dictionary."""
    state = OrderedDict(weights)
    vars(state)[ORIGIN] = origin
    torch.save(state, file)


def _torchvision(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write the tensors under torchvision's names.

    Raise an error for ViTs that torchvision cannot represent: without biases, or with layer scales.
    """
    if 'timm' in origin:
        raise unwritable('torchvision', 'a network of timm', 'timm')
    if 'cls_token' in weights:
        named = {rename(key, 'torchvision_vit'): value for key, value in weights.items()}
        unnamed = any(re.search(r'^layers\.|\.(attn|ffn)\.', key) for key in named)
        if unnamed or 'layers.0.attn.qkv.bias' not in weights:
            raise unwritable('torchvision', 'a ViT without biases or with other layers', 'timm')
        weights = named
    _plain(weights, origin, file)


def in_timm(weights: Weights, origin: dict) -> Weights:
    """Return the weights under timm's names. timm's names of ResNets are torchvision's."""
    if {PATCHES, 'cls_token'} <= weights.keys():
        return {rename(key, 'timm'): value for key, value in weights.items()}
    if 'timm' not in origin and 'layer1.0.conv1.weight' not in weights:
        raise unwritable('timm', 'neither a ResNet, a plain ViT nor a network of timm', 'mmairl')
    return weights


def _detectron2(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write NumPy arrays under detectron2's names.

    The entry `matching_heuristics` makes both C4 and FPN models find their weights.
    """
    if not {'conv1.weight', 'layer1.0.conv1.weight'} <= weights.keys():
        raise unwritable('detectron2', 'not a ResNet', 'timm')
    arrays = {
        rename(key, 'detectron2'): value.numpy()
        for key, value in weights.items()
        # detectron2's batch norm has no counter of batches.
        if not key.endswith('num_batches_tracked')
    }
    record = {'__author__': 'mmairl', 'matching_heuristics': True, 'meta': {ORIGIN: origin}}
    pickle.dump({'model': arrays, **record}, file, protocol=4)


def _safetensors(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write a safetensors file under timm's names, so that timm can load it."""
    from safetensors.torch import save

    metadata = {str(key): str(value) for key, value in origin.items()}
    # Programs that load files from the hub require this entry.
    metadata['format'] = 'pt'
    file.write(save(in_timm(weights, origin), metadata=metadata))


WRITERS: dict[str, Callable[[Weights, dict, IO[bytes]], None]] = {
    'mmairl': _mmairl,
    'torchvision': _torchvision,
    'timm': lambda weights, origin, file: _plain(in_timm(weights, origin), origin, file),
    'detectron2': _detectron2,
    'safetensors': _safetensors,
}
