"""Load any checkpoint without running code from it, and check its weights."""

import logging
import pickle
import re
import zipfile
from collections.abc import Callable, Collection, Mapping
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
from mmairl.checkpoints.released import is_released, released_file
from mmairl.errors import UserError

# A folder in a zip archive has this attribute. torch would read a folder as an empty record, without an error.
FOLDER = 0x10
ZIP = b'PK\x03\x04'
# A file of torch before 1.6 starts with these bytes. The byte after the first one is the pickle protocol and is left out here.
MAGIC = b'\x80\x8a\n'
# The checkpoints of Lightning and DeepSpeed are recognized by these keys. Such a checkpoint also contains objects with
# settings, which are left out when the weights are loaded.
WITH_SETTINGS = (b'pytorch-lightning_version', b'ds_version')
Device = str | torch.device | dict | Callable | None


class DamagedCheckpoint(UserError):
    """The error for a truncated or damaged file. Callers can try an earlier checkpoint."""


def load_checkpoint(path: str | Path, map_location: Device = 'cpu') -> dict[str, Any]:
    """Return the dictionary in a .pth, .pkl or .safetensors file, or in the file of a released model.

    Args:
        path: The file, or the name of a released model such as 'torchvision:resnet50' or 'hf-hub:ORG/NAME'.
        map_location: Device of the tensors, as in `torch.load`.

    Raises:
        DamagedCheckpoint: If the file is truncated or damaged.
        UserError: If the file cannot be read, if loading it would run code, or if its content is not a dictionary.

    Example:
        >>> load_checkpoint('work_dirs/demo/epoch_10.pth')['meta']['epoch']  # doctest: +SKIP
    """
    path = released_file(str(path)) if is_released(path) else Path(path).expanduser()
    try:
        if not path.is_file():
            raise UserError(
                f"checkpoint: no such file ('{path}'); check the path", code='no-checkpoint'
            )
        if path.suffix == '.safetensors':
            return _load_safetensors(path)
        with path.open('rb') as file:
            loaded = plain(_unpickled(file, path, map_location))
        if isinstance(loaded, dict):
            restore_histories(loaded)
    except UserError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise UserError(
            f'{path}: the file is larger than the free memory; end other programs, or use a machine with more memory',
            code='out-of-memory',
        ) from error
    except OSError as error:
        raise UserError(
            f'{path}: cannot be read ({error.strerror}); check the file and its permissions',
            code='unreadable-file',
        ) from error
    # Reading a damaged pickle can raise any exception.
    except Exception as error:
        raise _explained(path, error) from error
    if not isinstance(loaded, dict):
        raise UserError(
            f'{path}: expected a dictionary of weights, got a {type(loaded).__name__}; give the checkpoint of a model',
            code='no-dictionary',
        )
    if isinstance(loaded.get('meta'), dict):
        # This entry is removed, because mmengine's `resume` would run its text as Python.
        loaded['meta'].pop('config', None)
    return loaded


def _unpickled(file: IO[bytes], path: Path, map_location: Device) -> Any:
    """Check that an open file is intact and safe, and return its content."""
    head = file.read(10)
    file.seek(0)
    if not head:
        raise _damaged(path, 'it is empty')
    # torch writes a zip archive. Before version 1.6, it wrote a magic number and then pickles. Any other file is one pickle.
    is_zip = head.startswith(ZIP)
    if not is_zip and head[:1] + head[2:4] != MAGIC:
        refuse_endless(file)
        file.seek(0)
        return PlainUnpickler(file, encoding='latin1').load()
    skipped: list[str] = []
    if is_zip:
        if fault := damage(file):
            raise _damaged(path, fault)
        content = _pickles(file)
        if any(name in content for name in WITH_SETTINGS):
            skipped = _foreign_classes(file, path)
    else:
        for _ in range(LEGACY):
            refuse_endless(file)
    file.seek(0)
    with torch.serialization.safe_globals(FOR_TORCH + [(Skipped, name) for name in skipped]):
        return torch.load(file, map_location=map_location, weights_only=True)  # noqa: TID251  weights only


def _pickles(file: IO[bytes] | Path) -> bytes:
    """Return the content of all pickles in a zip archive. Raise an error if a pickle would take minutes to read."""
    with zipfile.ZipFile(file) as archive:
        names = [name for name in archive.namelist() if name.endswith('.pkl')]
        for name in names:
            refuse_endless(archive.open(name))
        return b''.join(map(archive.read, names))


def _foreign_classes(file: IO[bytes], path: Path) -> list[str]:
    """Return the names of the classes whose objects are not weights, and log that these objects will be left out."""
    file.seek(0)
    with torch.serialization.safe_globals(FOR_TORCH):
        names = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    if names:
        warn(f'{path}: objects of {", ".join(names)} are left out, and none of their code runs')
    return names


def warn(text: str) -> None:
    print_log(text, logger='current', level=logging.WARNING)


def meta_of(path: Path, part: str = 'meta') -> dict[str, Any] | None:
    """Return one dictionary of a checkpoint, by default `meta`, or None if the file cannot be read or lacks it.

    The tensors in the checkpoint are not read.

    Args:
        path: The checkpoint.
        part: Key of the dictionary, which must not contain tensors.
    """
    try:
        # This call raises an error if a pickle would take minutes to read.
        _pickles(path)
        with torch.serialization.safe_globals(FOR_TORCH):
            content = torch.load(path, map_location='cpu', mmap=True, weights_only=True)  # noqa: TID251  weights only
        return plain(dict(content[part]))
    # Reading a damaged file, or a file of another project, can raise any exception.
    except Exception:
        return None


def damage(file: IO[bytes] | Path) -> str | None:
    """Return a description of the damage to a zip archive of torch, or None if the archive is intact.

    This check is needed because `torch.load` does not verify checksums and would load weights with flipped bits.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            for record in archive.infolist():
                if record.compress_type or record.external_attr & FOLDER:
                    return f'its record {record.filename} is compressed or a folder, which torch does not write'
            wrong = archive.testzip()
            return wrong and f'the checksum of its record {wrong} is wrong'
    # For a broken archive, zipfile raises one of a dozen types of exceptions.
    except Exception:
        return 'it is not a complete zip archive of torch'


def _explained(path: Path, error: Exception) -> UserError:
    """Return the error that explains why a pickle could not be loaded: it is unsafe or damaged."""
    text = str(error)
    if held := re.search(r'it holds [^.\n]+', text):
        return UserError(
            f'{path}: unsafe content ({held[0]}); load only files that contain plain weights',
            code='unsafe-checkpoint',
        )
    asked = re.search(r'(?:GLOBAL|would run) (\S+)', text)
    if asked and isinstance(error, pickle.UnpicklingError):
        return UserError(
            f'{path}: loading it would run {asked[1]}; load only files that contain plain weights',
            code='unsafe-checkpoint',
        )
    return _damaged(path, 'it is not a checkpoint that can be read')


def _damaged(path: Path, fault: str) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f'{path}: truncated or damaged ({fault}); copy the file again, or use an earlier checkpoint',
        code='damaged-checkpoint',
    )


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework='pt') as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dictionary
            return dict(state_dict=weights, meta={ORIGIN: dict(file.metadata() or {})})
    except SafetensorError as error:
        raise _damaged(path, 'it is not a safetensors file') from error


def require_same_keys(
    weights: Mapping[str, Tensor],
    network: Mapping[str, Tensor],
    path: str | Path,
    name: str = 'the config',
) -> None:
    """Raise an error unless weights and network have the same tensor names, shapes and kinds of numbers.

    Raises:
        UserError: 'incomplete-network' if the only fault is that tensors are missing, 'other-network' for any other fault.
    """
    missing, others = name_faults(weights, network)
    for key in (key for key in network if key in weights):
        value, expected = weights[key], network[key]
        # Counters are whole numbers in the network, but floats in some files.
        kind = wrong_kind(value, whole=not expected.is_floating_point())
        if kind:
            others.append(f'{key} is {kind}')
        elif value.shape != expected.shape:
            others.append(f'{key} has shape {tuple(value.shape)}, not {tuple(expected.shape)}')
    if missing or others:
        raise other_architecture(path, missing, others, name)


def name_faults(
    weights: Mapping[str, Any], network: Mapping[str, Tensor]
) -> tuple[list[str], list[str]]:
    """Return two lists of messages: about tensors that the weights lack, and about tensors that the network lacks."""
    missing = [f'{key} is missing' for key in network if key not in weights]
    unknown = [f'{key} is unexpected' for key in weights if key not in network]
    return missing, unknown


def other_architecture(
    path: str | Path, missing: list[str], others: list[str], name: str = 'the config'
) -> UserError:
    """Return the error for a file whose tensors do not fit a network."""
    return UserError(
        f'{path}: weights do not fit {name} ({first_few(missing + others, "; ")}); give the config of this checkpoint or, if '
        'the file contains several networks, the prefix of the right network',
        code='other-network' if others else 'incomplete-network',
    )


def first_few(names: Collection[str], separator: str = ', ') -> str:
    """Join the first three names and state how many more there are."""
    shown = separator.join(list(names)[:3])
    return f'{shown} (and {len(names) - 3} more)' if len(names) > 3 else shown


def wrong_kind(value: object, whole: bool) -> str:
    """Return the type of a value that cannot be a tensor of weights, as text. Return '' for any other value.

    Weights are floats of at least two bytes. If `whole` is true, integers of 32 or 64 bits are accepted as well.

    >>> wrong_kind(torch.zeros(2, dtype=torch.int8), whole=True), wrong_kind('text', whole=True)
    ('int8', 'text')
    """
    if isinstance(value, str):
        return 'text'
    if not isinstance(value, Tensor):
        return str(getattr(value, 'dtype', type(value).__name__))
    is_float = value.is_floating_point() and value.element_size() > 1
    is_whole = whole and value.dtype in (torch.int32, torch.int64)
    return '' if is_float or is_whole else str(value.dtype).removeprefix('torch.')


def not_finite(weights: dict[str, Tensor]) -> list[str]:
    """Return the names of tensors that contain NaN or plus infinity.

    Minus infinity is accepted, because attention masks may contain it.
    """
    faulty = []
    for key, value in weights.items():
        if not value.is_floating_point():
            continue
        # torch cannot test floats of 8 bits for infinity.
        wide = value.float() if value.element_size() == 1 else value
        if (wide.isnan() | wide.isposinf()).any():
            faulty.append(key)
    return faulty
