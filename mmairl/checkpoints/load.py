"""A checkpoint out of any file, without running code from it, and what must hold of its weights."""

import logging
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.pickles import (
    FOR_TORCH,
    LEGACY,
    ORIGIN,
    PlainUnpickler,
    Skipped,
    plain,
    refuse_endless,
    restore_histories,
)
from mmairl.errors import UserError, explained, printable

FOLDER = 0x10  # a record's attribute; torch reads nothing from a folder and reports success
Device = str | torch.device | dict | Callable | None


class DamagedCheckpoint(UserError):
    """The file is not as it was written; an earlier one may be whole."""


def load_checkpoint(path: str | Path, map_location: Device = 'cpu') -> dict[str, Any]:
    """The dictionary in a .pth, .pkl or .safetensors file or a released model; what is wrong with the file is one sentence.

    >>> load_checkpoint('work_dirs/demo/epoch_10.pth')['meta']['epoch']  # doctest: +SKIP
    """
    path = released_file(str(path)) if is_released(path) else Path(path).expanduser()
    try:
        if not path.is_file():
            raise UserError(f'there is no checkpoint at {path}; check the path')
        if path.suffix == '.safetensors':
            return _load_safetensors(path)
        with path.open('rb') as file:
            loaded = plain(_unpickled(file, path, map_location))
        if isinstance(loaded, dict):
            restore_histories(loaded)
    except UserError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise UserError(f'{path} needs more memory than there is; free some or use a larger machine') from error
    except OSError as error:
        raise UserError(f'{path} cannot be read: {error.strerror}; check the file and its permissions') from error
    except Exception as error:  # a foreign or damaged pickle can fail in any opcode: IndexError, struct.error, ...
        raise _explained(path, error) from error
    if not isinstance(loaded, dict):
        raise UserError(f'{path} holds a {type(loaded).__name__}, not a dictionary of weights; give a model file')
    if isinstance(loaded.get('meta'), dict):
        loaded['meta'].pop('config', None)  # text that mmengine's `resume` would run as Python
    return loaded


def _unpickled(file: IO[bytes], path: Path, map_location: Device) -> Any:
    """The file is opened once: its sums are checked, then its content is built."""
    head = file.read(10)
    file.seek(0)
    if not head:
        raise DamagedCheckpoint(f'the checkpoint {path} is empty (0 bytes); use an earlier one')
    # torch writes a zip archive, or a pickle which begins with a magic number; whatever else is at most a plain pickle.
    if not head.startswith(b'PK\x03\x04') and head[:1] + head[2:4] != b'\x80\x8a\n':
        refuse_endless(file)
        file.seek(0)
        return PlainUnpickler(file, encoding='latin1').load()
    if head.startswith(b'PK\x03\x04'):
        if fault := damage(file):
            raise DamagedCheckpoint(
                f'{path} is truncated or damaged: {fault}; copy it again or use an earlier checkpoint'
            )
        with zipfile.ZipFile(file) as archive:
            pickles = [name for name in archive.namelist() if name.endswith('.pkl')]
            for name in pickles:
                refuse_endless(archive.open(name))
            lightning = any(b'pytorch-lightning_version' in archive.read(name) for name in pickles)
    else:
        lightning = False
        for _ in range(LEGACY):
            refuse_endless(file)
    file.seek(0)
    with torch.serialization.safe_globals(FOR_TORCH):
        foreign = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file)) if lightning else []
    if foreign:  # Lightning keeps settings beside the weights, as objects of anybody's classes
        said = f'{path}: objects of {", ".join(foreign)} are left out, and nothing of them is run'
        print_log(printable(said), logger='current', level=logging.WARNING)
    file.seek(0)
    with torch.serialization.safe_globals(FOR_TORCH + [(Skipped, name) for name in foreign]):
        return torch.load(file, map_location=map_location, weights_only=True)  # noqa: TID251  weights only


def run_of(path: Path) -> str | None:
    """Return the name of the run that wrote a checkpoint, without reading its tensors; '' if the file is no checkpoint."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in (name for name in archive.namelist() if name.endswith('.pkl')):
                refuse_endless(archive.open(name))
        with torch.serialization.safe_globals(FOR_TORCH):
            content = torch.load(path, map_location='cpu', mmap=True, weights_only=True)  # noqa: TID251  weights only
        return content['meta'].get('run')
    except Exception:  # a foreign or damaged file can fail in any way
        return ''


def damage(file: IO[bytes] | Path) -> str | None:
    """Return the fault of a zip archive of torch's, or None. `torch.load` looks at no sum, and a flipped bit is a weight."""
    try:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                if record.compress_type or record.external_attr & FOLDER:
                    return f'its record {record.filename} is compressed or a folder, which torch does not write'
            wrong = archive.testzip()
            return wrong and f'its record {wrong} does not have the sum that was written with it'
    except Exception:  # zipfile raises a dozen kinds for broken archives: BadZipFile, struct.error, NotImplementedError
        return 'it is no whole zip archive, as torch writes them'


def _explained(path: Path, error: Exception) -> UserError:
    """The one sentence for what a pickle asked for or failed in."""
    text = str(error)
    if held := re.search(r'it holds [^.\n]+', text):
        return UserError(f'{path} was refused: {held[0]}; only load files that hold plain weights')
    asked = re.search(r'GLOBAL (\S+)|asks to run (\S+)', text)
    if asked and isinstance(error, pickle.UnpicklingError):
        name = asked[1] or asked[2]
        return UserError(
            f'{path} asks to run {name} while loading and was refused; only load files that hold plain weights'
        )
    return DamagedCheckpoint(
        f'{path} is truncated or not a checkpoint that can be read; copy it again or give a .pth file of weights'
    )


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework='pt') as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it is not a dictionary
            return dict(state_dict=weights, meta={ORIGIN: dict(file.metadata() or {})})
    except SafetensorError as error:
        raise DamagedCheckpoint(f'{path} is truncated or not a safetensors file; copy it again') from error


def is_released(name: str | Path) -> bool:
    """Whether it is the name of a model that others have released: 'torchvision:resnet50' stands for a file anywhere."""
    return str(name).startswith('torchvision:')


def released_file(name: str) -> Path:
    """The supervised model's file where torch keeps such files, fetched the first time."""
    import torchvision

    try:
        url = torchvision.models.get_model_weights(name.partition(':')[2])['IMAGENET1K_V1'].url
    except (ValueError, KeyError) as error:
        said = f"'{name}' is not a released model; say torchvision:NAME, such as torchvision:resnet50"
        raise UserError(said) from error
    return fetched(url, Path(url).name, hash_prefix=Path(url).stem.rpartition('-')[2])


def fetched(url: str, name: str, folder: str | Path | None = None, **how: Any) -> Path:
    """Download a URL into torch's cache under this name, unless the file is there."""
    file = Path(folder or Path(torch.hub.get_dir()) / 'checkpoints') / name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        with explained(f'{url} could not be fetched', f'put its file at {file}', (OSError, RuntimeError)):
            torch.hub.download_url_to_file(url, str(file), **how)
    return file


def require_same_keys(there: dict[str, Tensor], here: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a checkpoint unless it and the network name the same tensors, with the same shapes and kinds of numbers."""

    def fault(key: str) -> str:
        if key not in there:
            return f'it lacks {key}'
        if key not in here:
            return f'it has {key} beyond the config'
        # Counters, which are whole numbers here, are floats in some files.
        if kind := wrong_kind(there[key], not here[key].is_floating_point()):
            return f'{key} is {kind} there'
        shapes = tuple(there[key].shape), tuple(here[key].shape)
        return '' if shapes[0] == shapes[1] else f'{key} is {shapes[0]} there and {shapes[1]} in the config'

    if faults := list(filter(None, map(fault, {**here, **there}))):
        said = '; '.join(faults[:3]) + (f' (and {len(faults) - 3} more)' if faults[3:] else '')
        raise UserError(
            f'checkpoint {path} holds another architecture: {said}; give the config it was trained with',
            'other-architecture',
        )


def wrong_kind(value: object, whole: bool) -> str:
    """Name the kind of a value that is no weight; '' of floats of two bytes or more and, where they may be, `whole` numbers.

    >>> wrong_kind(torch.zeros(2, dtype=torch.int8), whole=True), wrong_kind('text', whole=True)
    ('int8', 'text')
    """
    if not isinstance(value, Tensor):
        return 'text' if isinstance(value, str) else str(getattr(value, 'dtype', type(value).__name__))
    fits = (value.is_floating_point() and value.element_size() > 1) or (
        whole and value.dtype in (torch.int32, torch.int64)
    )
    return '' if fits else str(value.dtype).removeprefix('torch.')


def not_finite(weights: dict[str, Tensor]) -> list[str]:
    """The tensors that hold a NaN or an infinity; a mask of minus infinities, which some networks keep, is none of them."""
    floating = {key: value for key, value in weights.items() if value.is_floating_point()}
    return [key for key, value in floating.items() if (value.isnan() | value.isposinf()).any()]
