"""Load checkpoints without running code from them, and check their weights."""

import logging
import pickle
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.pickles import ORIGIN, STAND_INS, Skipped, plain
from mmairl.errors import UserError

# Names of tensors with this part belong to low-rank adapters (LoRA), which are merged into the weights of the same file.
ADAPTER = '.parametrizations.'
# Checkpoints of Lightning and DeepSpeed have one of these keys. They also contain objects with settings, which are left out.
WITH_SETTINGS = {'pytorch-lightning_version', 'ds_version'}


def load_checkpoint(path: str | Path, map_location: Any = 'cpu') -> dict[str, Any]:
    """Return the dictionary in a file of torch or in a .safetensors file.

    Args:
        path: The file.
        map_location: Device of the tensors, as in `torch.load`.

    Raises:
        UserError: If the file cannot be read, is damaged, would run code, or contains anything but a dictionary.

    Example:
        >>> load_checkpoint('work_dirs/demo/epoch_10.pth')['meta']['epoch']  # doctest: +SKIP
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(
            f"checkpoint: no such file ('{path}'); check the path", code='no-checkpoint'
        )
    try:
        if path.suffix == '.safetensors':
            return _load_safetensors(path)
        loaded = plain(_unpickled(path, map_location))
    # Reading a damaged file can raise any exception.
    except Exception as error:
        raise _explained(path, error) from error
    if not isinstance(loaded, dict):
        raise UserError(
            f"{path}: expected a dictionary of weights ('{type(loaded).__name__}'); give the checkpoint of a model",
            code='no-dictionary',
        )
    if isinstance(loaded.get('meta'), dict):
        # This entry is removed, because mmengine's `resume` would run its text as Python.
        loaded['meta'].pop('config', None)
    return loaded


def _unpickled(path: Path, map_location: Any) -> Any:
    """Return the content of a file of torch.

    In the checkpoints of Lightning and DeepSpeed, objects of unknown classes are left out, and none of their code runs. In any
    other file, an unknown class is an error.
    """

    def read(*unknown: str) -> Any:
        names = [*STAND_INS, *((Skipped, name) for name in unknown)]
        with torch.serialization.safe_globals(names):
            return torch.load(path, map_location, weights_only=True)  # noqa: TID251  weights only

    try:
        return read()
    except pickle.UnpicklingError:
        unknown: list[str] = []
        # In a file that torch wrote before version 1.6, the classes cannot be listed.
        with torch.serialization.safe_globals(STAND_INS), suppress(ValueError):
            unknown = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
        loaded = read(*unknown) if unknown else {}
        if not WITH_SETTINGS & loaded.keys():
            raise
        warn(f'{path}: objects of {first_few(unknown)} are left out, and none of their code runs')
        return loaded


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import safe_open

    with safe_open(path, framework='pt') as file:
        weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dictionary
        origin = file.metadata() or {}
        # The metadata of other programs are not a record of origin.
        meta = {ORIGIN: dict(origin)} if 'source_format' in origin else {}
        return dict(state_dict=weights, meta=meta)


def _explained(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a file could not be loaded: its content is unsafe, or it is damaged."""
    unsafe = re.search(r'GLOBAL (\S+)|(it holds [^.\n]+)', str(error))
    if unsafe and isinstance(error, pickle.UnpicklingError):
        content = unsafe[2] or f'loading it would run {unsafe[1]}'
        return UserError(
            f'{path}: unsafe content ({content}); load only files that contain plain weights',
            code='unsafe-checkpoint',
        )
    return UserError(
        f'{path}: damaged, unreadable or not a checkpoint ({type(error).__name__}); copy it again, or give another file',
        code='damaged-checkpoint',
    )


def warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def require_same_keys(
    weights: Mapping[str, Tensor],
    network: Mapping[str, Tensor],
    path: str | Path,
    name: str = 'the config',
) -> None:
    """Raise an error unless weights and network have the same tensor names and shapes.

    Raises:
        UserError: 'incomplete-network' if the only fault is that tensors are missing, 'other-network' for any other fault. The
            message names the first tensors that differ.
    """
    weights = {key: value for key, value in weights.items() if ADAPTER not in key}
    network = {key: value for key, value in network.items() if ADAPTER not in key}
    missing = [f'{key} is missing' for key in network if key not in weights]
    others = [f'{key} is unexpected' for key in weights if key not in network]
    for key in filter(weights.__contains__, network):
        shape, expected = tuple(weights[key].shape), tuple(network[key].shape)
        if shape != expected:
            others.append(f'{key} has shape {shape}, not {expected}')
    if missing or others:
        raise UserError(
            f'{path}: weights do not fit {name} ({first_few(missing + others, "; ")}); give the config of this checkpoint, or '
            'the prefix of the right network; if a model changes its backbone after building it, register the changed network '
            'as a class, and name this class in model.backbone',
            code='other-network' if others else 'incomplete-network',
        )


def first_few(names: Collection[str], separator: str = ', ') -> str:
    """Join the first three names and state how many more there are."""
    shown = separator.join(list(names)[:3])
    return f'{shown} (and {len(names) - 3} more)' if len(names) > 3 else shown
