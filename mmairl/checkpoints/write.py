"""Write a backbone in the format of another project, and record in the file where its weights come from."""

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from mmairl.checkpoints.layouts import rename
from mmairl.checkpoints.pickles import ORIGIN, portable
from mmairl.checkpoints.read import Backbone
from mmairl.errors import UserError
from mmairl.io import output, replacing

Weights = dict[str, Tensor]


def write_backbone(
    backbone: Backbone,
    path: str | Path,
    to: str = 'mmairl',
    weights: Weights | None = None,
    **record: object,
) -> None:
    """Write a backbone to a file in the format of a project.

    Args:
        backbone: The backbone.
        path: The file to write. It must not be the file from which the backbone was read.
        to: One of `WRITERS`: 'mmairl', 'torchvision', 'timm', 'detectron2' or 'safetensors'.
        weights: Weights to write. Default: the weights of the backbone.
        **record: Additional entries for the record of origin in the file.

    Raises:
        UserError: If the format cannot represent this network.

    Example:
        >>> write_backbone(read_backbone('moco_v2.pth.tar'), 'moco_v2.pkl', to='detectron2')  # doctest: +SKIP
    """
    with replacing(output(path, backbone.path)) as temporary, temporary.open('wb') as file:
        tensors = weights or backbone.weights
        # The tensors are copied, because safetensors rejects tensors that share memory.
        copies = {
            key: value.clone(memory_format=torch.contiguous_format)
            for key, value in tensors.items()
        }
        WRITERS[to](copies, portable({**backbone.record, **record}), file)


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

    Raise an error for ViTs that torchvision cannot represent: without biases, or with registers, layer scales or gates.
    """
    if any(key.endswith('cls_token') for key in weights):
        named = {rename(key, 'torchvision_vit'): value for key, value in weights.items()}
        unnamed = any(re.search(r'^(vit|pre_norm|layers)\.|\.(attn|ffn)\.', key) for key in named)
        if unnamed or named['class_token'].shape[1] > 1 or 'layers.0.attn.qkv.bias' not in weights:
            raise UserError(
                "--to torchvision: this ViT differs from torchvision's ViT, which has biases and no registers, layer scales or "
                'gated MLPs; use --to timm',
                code='unwritable-network',
            )
        weights = named
    _plain(weights, origin, file)


def _of_timm(weights: Weights) -> Weights:
    if 'cls_token' not in weights:
        return {rename(key, 'dinov3'): value for key, value in weights.items()}
    tokens = weights['cls_token'].shape[1]
    if tokens > 1:
        # timm stores registers as a separate tensor. In a network with registers, timm adds position embeddings only to
        # patches. Therefore the position embeddings of the class token and the registers are added to these tokens here.
        positions = weights['pos_embed']
        first = weights['cls_token'] + positions[:, :tokens]
        weights = {
            **weights,
            'cls_token': first[:, :1].contiguous(),
            'reg_token': first[:, 1:].contiguous(),
            'pos_embed': positions[:, tokens:].contiguous(),
        }
    return {rename(key, 'timm'): value for key, value in weights.items()}


def _detectron2(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write NumPy arrays under detectron2's names.

    The entry `matching_heuristics` makes both C4 and FPN models find their weights. Weights in bfloat16 become float32,
    because NumPy does not have bfloat16.
    """
    if 'conv1.weight' not in weights:
        raise UserError(
            '--to detectron2: the backbone must be a ResNet; choose another format',
            code='unwritable-network',
        )
    arrays = {
        rename(key, 'detectron2'): (
            value.float() if value.dtype == torch.bfloat16 else value
        ).numpy()
        for key, value in weights.items()
        # detectron2's batch norm has no counter of batches.
        if not key.endswith('num_batches_tracked')
    }
    content = {
        'model': arrays,
        '__author__': 'mmairl',
        'matching_heuristics': True,
        'meta': {ORIGIN: origin},
    }
    pickle.dump(content, file, protocol=4)


def _safetensors(weights: Weights, origin: dict, file: IO[bytes]) -> None:
    """Write a safetensors file under timm's names, so that timm can load it. timm's names of ResNets are torchvision's."""
    from safetensors.torch import save

    metadata = {str(key): str(value) for key, value in origin.items()}
    # Programs that load files from the hub require this entry.
    metadata['format'] = 'pt'
    file.write(save(_of_timm(weights), metadata=metadata))


WRITERS: dict[str, Callable[[Weights, dict, IO[bytes]], None]] = {
    'mmairl': _mmairl,
    'torchvision': _torchvision,
    'timm': lambda weights, origin, file: _plain(_of_timm(weights), origin, file),
    'detectron2': _detectron2,
    'safetensors': _safetensors,
}
