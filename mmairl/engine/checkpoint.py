"""Checkpoints from anywhere, read without running code from them.

``torch.load(weights_only=True)`` runs no code but knows no mmengine class; the few that a training
checkpoint holds (the log history) are allow-listed here by name, so that mmengine's own resume works too.
What mmengine reads by itself goes through `load_checkpoint` as well: it would read an address without
``weights_only``, and run the Python text in ``meta.config`` of a checkpoint that it resumes from.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import numpy as np
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as platform

from mmairl.engine.plain_files import read_plain_files_only
from mmairl.engine.verify import damage, is_archive
from mmairl.errors import UserError

Device = str | torch.device | dict | Callable | None


def _history_method(owner: type, name: str) -> Any:
    """The `getattr` that a pickled HistoryBuffer asks for, narrowed to that class's four statistics."""
    if owner is not HistoryBuffer or name not in ('min', 'max', 'current', 'mean'):
        raise pickle.UnpicklingError(f'the checkpoint asks for {owner}.{name}, which no training checkpoint needs')
    return getattr(owner, name)


def trust_mmengine_checkpoints() -> None:
    """Allow-list what an mmengine training checkpoint holds beside tensors; everything else stays refused."""
    read_plain_files_only()
    CheckpointLoader.register_scheme('', _for_mmengine, force=True)
    platform.load_url = _from_address
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


def load_checkpoint(path: str | Path, map_location: Device = 'cpu') -> dict[str, Any]:
    """The dictionary in a checkpoint file; whatever is wrong with the file becomes one sentence.

    >>> load_checkpoint('work_dirs/demo/epoch_10.pth')['meta']['epoch']  # doctest: +SKIP
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f'there is no checkpoint at {path}; check the path')
    if path.stat().st_size == 0:
        raise UserError(f'the checkpoint {path} is empty (0 bytes); use an earlier one')
    if is_archive(path) and (found := damage(path)):
        raise UserError(f'{path} {found}; copy it again or use an earlier checkpoint')
    trust_mmengine_checkpoints()
    try:
        loaded = torch.load(path, map_location=map_location, weights_only=True)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise UserError(f'{path} needs more memory than there is; free some or use a larger machine') from error
    except Exception as error:  # a foreign or damaged pickle can fail in any opcode: IndexError, struct.error, ...
        raise UserError(f'{path} {_what_is_wrong(path, error)}') from error
    if not isinstance(loaded, dict):
        raise UserError(
            f'{path} holds a {type(loaded).__name__}, not a checkpoint dictionary; give a training checkpoint'
        )
    return loaded


def _for_mmengine(filename: str, map_location: Device = None) -> dict[str, Any]:
    """What mmengine's runner gets for a file, without the text that its `resume` would run as Python."""
    loaded = load_checkpoint(Path(filename).expanduser(), map_location)
    if isinstance(loaded.get('meta'), dict):
        loaded['meta'].pop('config', None)
    return loaded


def _from_address(url: str, model_dir: str | None = None, map_location: Device = None, progress: bool = True) -> dict:
    """What mmengine gets for http://, kept where torch keeps such files; torch's own would read it as code."""
    folder = Path(model_dir or Path(torch.hub.get_dir()) / 'checkpoints')
    file = folder / Path(urlparse(url).path).name
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(file), progress=progress)
    return _for_mmengine(str(file), map_location)


def _what_is_wrong(path: Path, error: Exception) -> str:
    """The end of the sentence that begins with the file's name."""
    text = str(error)
    if 'Unsupported global' in text or 'GLOBAL' in text or 'which no training checkpoint needs' in text:
        asked = text.split('GLOBAL ')[1].split()[0] if 'GLOBAL ' in text else 'code'
        return f'asks to run {asked} while loading and was refused; only load files that hold plain weights'
    if is_archive(path):
        return 'is a zip archive but not a checkpoint that can be read; give a .pth file of weights'
    return 'is not a checkpoint that torch wrote; give a .pth file of weights'
