"""Checkpoints from anywhere, read without running code from them.

``torch.load(weights_only=True)`` runs no code but knows no mmengine class; the few that a training
checkpoint holds (the log history) are allow-listed here by name, so that mmengine's own resume works too.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer

from mmairl.errors import UserError


def _history_method(owner: type, name: str) -> Any:
    """The `getattr` that a pickled HistoryBuffer asks for, narrowed to that class's four statistics."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'current', 'mean'):
        raise pickle.UnpicklingError(f'the checkpoint asks for {owner}.{name}, which no training checkpoint needs')
    return getattr(owner, name)


def trust_mmengine_checkpoints() -> None:
    """Allow-list what an mmengine training checkpoint holds beside tensors; everything else stays refused."""
    reconstruct = np.array(0.0).__reduce__()[0]  # lives in numpy.core or numpy._core by version
    torch.serialization.add_safe_globals(
        [
            HistoryBuffer,
            (_history_method, 'builtins.getattr'),
            (_history_method, '__builtin__.getattr'),
            (reconstruct, 'numpy.core.multiarray._reconstruct'),
            (reconstruct, 'numpy._core.multiarray._reconstruct'),
            (np.core.multiarray.scalar if np.__version__ < '2' else np._core.multiarray.scalar),
            np.ndarray,
            np.dtype,
            *{type(np.dtype(kind)) for kind in ('f4', 'f8', 'i4', 'i8', 'u4', '?')},
        ]
    )


def load_checkpoint(path: str | Path, map_location: str = 'cpu') -> dict[str, Any]:
    """The dictionary in a checkpoint file; whatever is wrong with the file becomes one sentence.

    >>> load_checkpoint('work_dirs/demo/epoch_10.pth')['meta']['epoch']  # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f'there is no checkpoint at {path}; check the path')
    if path.stat().st_size == 0:
        raise UserError(f'the checkpoint {path} is empty (0 bytes); use an earlier one')
    trust_mmengine_checkpoints()
    try:
        loaded = torch.load(path, map_location=map_location, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, zipfile.BadZipFile, ValueError, KeyError, OSError) as error:
        raise UserError(f'{path} {_what_is_wrong(path, error)}') from error
    if not isinstance(loaded, dict):
        raise UserError(
            f'{path} holds a {type(loaded).__name__}, not a checkpoint dictionary; give a training checkpoint'
        )
    return loaded


def _what_is_wrong(path: Path, error: Exception) -> str:
    """The end of the sentence that begins with the file's name."""
    with path.open('rb') as file:
        head = file.read(4)
    text = str(error)
    if 'Unsupported global' in text or 'GLOBAL' in text or 'which no training checkpoint needs' in text:
        asked = text.split('GLOBAL ')[1].split()[0] if 'GLOBAL ' in text else 'code'
        return f'asks to run {asked} while loading and was refused; only load files that hold plain weights'
    if head == b'PK\x03\x04':
        return 'is truncated or damaged; copy it again or use an earlier checkpoint'
    return 'is not a checkpoint that torch wrote; give a .pth file of weights'
