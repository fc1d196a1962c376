"""Read checkpoint folders of DeepSpeed, such as those of mmengine's DeepSpeedStrategy, without running code from them.

DeepSpeed's own converter unpickles any object, and unpickling can run code. A folder has files with the model. It also has one
file per process, with that process's part of the optimizer state and of the float32 weights.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmairl.checkpoints.load import load_checkpoint
from mmairl.errors import explained


def is_deepspeed_folder(folder: Path) -> bool:
    return any(folder.glob('*_model_states.pt'))


def read_folder(folder: Path) -> dict[str, Any]:
    """Read a folder and return a checkpoint with `meta` and a `state_dict` of full weights. Trained weights are float32.

    Raises:
        UserError: If a file is missing, damaged or not in DeepSpeed's format.
    """
    advice = 'copy the files of all processes again'
    with explained(f'{folder}: not a complete checkpoint of DeepSpeed', advice, code='bad-folder'):
        models = by_rank(folder, '*_model_states.pt')
        parts = [file['optimizer_state_dict'] for file in by_rank(folder, '*_optim_states.pt')]
        model = models[0]
        weights = dict(model['module'])
        for name, shape in (model['frozen_param_shapes'] or {}).items():
            pieces = [file['frozen_param_fragments'][name] for file in models]
            weights[name] = join_pieces(pieces, shape)
        groups = model['param_shapes']
        # Stage 3 divides each parameter over the processes. Stages 1 and 2 divide the joined parameters of a group.
        if 'fp32_flat_groups' in parts[0]:
            shapes = {name: shape for group in groups for name, shape in group.items()}
            flat = [torch.cat(part['fp32_flat_groups']) for part in parts]
            weights.update(weights_of(shapes, flat))
        else:
            for number, shapes in enumerate(groups):
                pieces = [part['single_partition_of_fp32_groups'][number] for part in parts]
                weights.update(weights_of(shapes, [torch.cat(pieces)]))
        return dict(meta=model.get('meta', {}), state_dict=weights)


def by_rank(folder: Path, pattern: str) -> list[dict[str, Any]]:
    """Load the files that match a pattern, in the order of the ranks of the processes that wrote them."""
    files = sorted(folder.glob(pattern), key=lambda path: (len(path.name), path.name))
    return [load_checkpoint(path) for path in files]


def join_pieces(pieces: list[Tensor], shape: torch.Size) -> Tensor:
    """Join the pieces of a tensor of this shape, and drop the padding at the end."""
    return torch.cat(pieces)[: shape.numel()].view(shape)


def weights_of(shapes: dict[str, torch.Size], flat: list[Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the full tensor of each weight.

    Each tensor in `flat` holds an equal part of every weight, in the order of `shapes`.
    """
    for name, shape in shapes.items():
        size = math.ceil(shape.numel() / len(flat))
        yield name, join_pieces([part[:size] for part in flat], shape)
        flat = [part[size:] for part in flat]
