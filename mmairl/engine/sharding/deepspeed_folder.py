"""Read checkpoint folders of DeepSpeed, such as those of mmengine's DeepSpeedStrategy, without running code from them.

DeepSpeed's own converter runs whatever the files ask for. A folder of stage 1, 2 or 3 has files of the model, and one of the
optimizer for each process, with its part of the float32 weights.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmairl.checkpoints.load import load_checkpoint
from mmairl.errors import explained


def is_deepspeed_folder(folder: Path) -> bool:
    """Return whether DeepSpeed wrote this folder."""
    return any(folder.glob('*_model_states.pt'))


def read_folder(folder: Path) -> dict[str, Any]:
    """Return a checkpoint with `meta` and a `state_dict` of whole weights in float32.

    Raises:
        UserError: If a file is missing, damaged or not as DeepSpeed writes it.
    """
    advice = 'copy the files of all processes again'
    with explained(f'{folder}: is not a complete folder of DeepSpeed', advice, code='bad-folder'):
        models = by_rank(folder, '*_model_states.pt')
        parts = [file['optimizer_state_dict'] for file in by_rank(folder, '*_optim_states.pt')]
        model = models[0]
        weights = {
            key: value.float() if value.is_floating_point() else value
            for key, value in model['module'].items()
        }
        for name, shape in (model['frozen_param_shapes'] or {}).items():
            pieces = [file['frozen_param_fragments'][name].flatten() for file in models]
            weights[name] = first(pieces, shape).float()
        join = layers_of_stage_3 if 'fp32_flat_groups' in parts[0] else layers_of_groups
        weights.update(join(model['param_shapes'], parts))
        return dict(meta=model.get('meta', {}), state_dict=weights)


def by_rank(folder: Path, pattern: str) -> list[dict[str, Any]]:
    files = sorted(
        folder.glob(pattern), key=lambda path: int(re.findall(r'rank_(\d+)', path.name)[0])
    )
    return [load_checkpoint(path) for path in files]


def first(pieces: list[Tensor], shape: torch.Size) -> Tensor:
    """Return the first elements of joined pieces in this shape. The rest is padding."""
    return torch.cat(pieces)[: shape.numel()].view(shape)


def layers_of_groups(groups: list[dict], parts: list[dict]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of stage 1 or 2, where the processes divide each group of joined parameters."""
    for number, shapes in enumerate(groups):
        flat = torch.cat([part['single_partition_of_fp32_groups'][number] for part in parts])
        for name, shape in shapes.items():
            yield name, first([flat], shape)
            flat = flat[shape.numel() :]


def layers_of_stage_3(groups: list[dict], parts: list[dict]) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of stage 3, where the processes divide each parameter."""
    flat = [torch.cat(part['fp32_flat_groups']) for part in parts]
    for shapes in groups:
        for name, shape in shapes.items():
            size = -(-shape.numel() // len(parts))
            yield name, first([own[:size] for own in flat], shape)
            flat = [own[size:] for own in flat]
