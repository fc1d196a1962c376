"""A checkpoint out of any file, and a backbone out of any checkpoint, without running code from it.

The backbone may be ours, the paper's release, MoCo's, mmpretrain's, torchvision's, timm's, VISSL's or detectron2's.
"""

import pickle
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.weights.formats import BACKBONE, names_of, recognise, rename
from mmairl.weights.pickles import FOR_TORCH, ORIGIN, PlainUnpickler, plain

# What a checkpoint wraps its weights in, from the outside in.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
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
    # A plain pickle is not what torch writes: that is a zip archive, or a pickle which begins with a magic number.
    if path.suffix == '.pkl' or (head[:1] == b'\x80' and head[2:4] != b'\x8a\n'):
        return PlainUnpickler(file, encoding='latin1').load()
    if head.startswith(b'PK\x03\x04'):
        if found := damage(file):
            raise DamagedCheckpoint(
                f'{path} is truncated or damaged: {found}; copy it again or use an earlier checkpoint'
            )
        file.seek(0)
    with torch.serialization.safe_globals(FOR_TORCH):
        return torch.load(file, map_location=map_location, weights_only=True)


def damage(file: IO[bytes] | Path) -> str | None:
    """What is wrong with a zip archive of torch's, or None. `torch.load` looks at no sum, so a flipped bit becomes a weight.

    >>> damage(Path('work_dirs/demo/epoch_10.pth'))  # doctest: +SKIP
    'its record epoch_10/data/7 does not have the sum that was written with it'
    """
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
    if found := re.search(r'it holds [^.\n]+', text):
        return UserError(f'{path} was refused: {found[0]}; only load files that hold plain weights')
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

    model = name.partition(':')[2]
    if model not in torchvision.models.list_models(torchvision.models):
        raise UserError(f"'{name}' is not a released model; say torchvision:NAME, such as torchvision:resnet50")
    url = torchvision.models.get_model_weights(model)['IMAGENET1K_V1'].url
    name = Path(url).name
    return fetched(url, name, hash_prefix=Path(name).stem.rpartition('-')[2])


def fetched(url: str, name: str, folder: str | Path | None = None, **how: Any) -> Path:
    """What is at an address, kept under this name where torch keeps such files."""
    file = Path(folder or Path(torch.hub.get_dir()) / 'checkpoints') / name
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(file), **how)
        except (OSError, RuntimeError) as error:
            raise UserError(f'{url} could not be fetched ({error}); put its file at {file}') from error
    return file


@dataclass(frozen=True)
class Backbone:
    """One network's backbone under our names, and how it was found. `settings` are those of a training run of ours, as text."""

    weights: dict[str, Tensor]
    path: str
    source: str
    part: str
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    origin: dict = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.part} of {self.path} ({self.source})'


def read_backbone(path: str | Path, part: str = 'student') -> Backbone:
    """The backbone of the student or the teacher in a checkpoint of any known project.

    >>> read_backbone('moco_v2_200ep_pretrain.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
    torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(f"part '{part}' is not in a checkpoint; say student or teacher")
    tensors, origin, settings = read_tensors(path)
    form = recognise(tensors)
    if form is None:
        raise UserError(
            f'{path} holds no {part} backbone that mmairl knows: its keys look like {list(tensors)[:3]}; give a ResNet '
            'or ViT by the names of mmairl, MoCo, mmpretrain, torchvision, timm, VISSL or detectron2'
        )
    prefix = form.student if part == 'student' else form.teacher
    if prefix is None or not any(key.startswith(prefix) for key in tensors):
        wanted = f" (no key starts with '{prefix}')" if prefix else ''
        raise UserError(f'{path} holds no teacher{wanted}: by its keys it is {form.name}; use --part student')
    inside = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    kept = {key: value for key, value in inside.items() if form.pure or BACKBONE.match(key)}
    names = names_of(kept)
    renamed = {prefix + key: rename(key, names, to_ours=True) for key in kept}
    weights = {renamed[prefix + key]: value for key, value in kept.items()}
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(with_counters(weights), str(path), form.name, part, renamed, dropped, origin, settings)


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that some formats leave out; a BN layer with a fixed momentum does not use them."""
    for key in [key for key in weights if key.endswith('.running_mean')]:
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    return weights


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict, dict[str, str]]:
    """Every tensor of a checkpoint by its name, without wrappers; its record of origin and its run's settings, if any."""
    loaded = load_checkpoint(path)
    meta, inner = loaded.get('meta'), loaded
    # DDP, torch.compile and training scripts each add an envelope.
    while found := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[found]
    tensors = {}
    for key, value in _flat(inner):
        for wrapper in WRAPPERS:
            key = key.removeprefix(wrapper)
        tensors[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    origin = meta.get(ORIGIN) if isinstance(meta, dict) else getattr(loaded, ORIGIN, None)
    settings = meta.get('settings') if isinstance(meta, dict) else None
    return tensors, *(found if isinstance(found, dict) else {} for found in (origin, settings))


def _flat(values: dict, prefix: str = '') -> list[tuple[str, Any]]:
    """Tensors and arrays by dotted names; VISSL nests `trunk` and `heads` one level down."""
    found = []
    for key, value in values.items():
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in 'fiu'):
            found.append((f'{prefix}{key}', value))
        elif isinstance(value, dict) and key in ('trunk', 'heads'):
            found += _flat(value, f'{prefix}{key}.')
    return found


def require_same_keys(there: dict[str, Tensor], here: dict[str, Tensor], path: str | Path) -> None:
    """Refuse a checkpoint unless it and the network name the same tensors, with the same shapes and kinds of numbers."""
    both = [key for key in here if key in there]
    shapes = [
        f'{key} is {tuple(there[key].shape)} there and {tuple(here[key].shape)} in the config'
        for key in both
        if here[key].shape != there[key].shape
    ]
    # Counters, which are whole numbers here, are floats in some files.
    kinds = [
        f'{key} is {there[key].dtype} there'
        for key in both
        if here[key].is_floating_point() and not there[key].is_floating_point()
    ]
    missing = [f'it lacks {key}' for key in here if key not in there]
    unexpected = [f'it has {key} beyond the config' for key in there if key not in here]
    faults = [
        found[0] + (f' (and {len(found) - 1} more such)' if found[1:] else '')
        for found in (shapes, kinds, missing, unexpected)
        if found
    ]
    if faults:
        raise UserError(
            f'checkpoint {path} holds another architecture: {"; ".join(faults)}; give the config it was trained with'
        )


def weights_for(module: nn.Module, whole: dict[str, Tensor], prefix: str, path: str | Path) -> dict[str, Tensor]:
    """All weights of a module out of the checkpoint's tensors whose names begin with `prefix`, or an error.

    A module that ends before the last stage, as a C4 detector's backbone does, takes the stages that it has.
    """
    here = module.state_dict()
    inside = {key.removeprefix(prefix): value for key, value in whole.items() if key.startswith(prefix)}
    if not inside:
        raise UserError(f"no key of {path} starts with '{prefix}'; its keys look like {list(whole)[:3]}")
    stages = {key.split('.')[0] for key in here}
    weights = {key: value for key, value in inside.items() if key.split('.')[0] in stages}
    require_same_keys(weights, here, path)
    return weights


def not_finite(weights: dict[str, Tensor]) -> list[str]:
    """The tensors that hold a NaN or an infinity; a mask of minus infinities, which some networks keep, is none of them."""
    floating = {key: value for key, value in weights.items() if value.is_floating_point()}
    return [key for key, value in floating.items() if (value.isnan() | value.isposinf()).any()]
