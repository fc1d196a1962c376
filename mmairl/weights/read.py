"""A backbone out of any checkpoint: ours, the paper's release, MoCo's, mmpretrain's, torchvision's, timm's, VISSL's, d2's."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.errors import UserError
from mmairl.weights.formats import Format, recognise
from mmairl.weights.layouts import BACKBONE, rename, rules_to_ours
from mmairl.weights.pickles import load_pickle
from mmairl.weights.released import is_released, released_file

# What a checkpoint wraps its weights in, from the outside in.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
ORIGIN = 'mmairl_origin'


@dataclass(frozen=True)
class Backbone:
    """One network's backbone under our names, and how it was found."""

    weights: dict[str, Tensor]
    path: str
    source: str
    part: str
    renamed: dict[str, str] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    origin: dict = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.part} of {self.path} ({self.source})'


def read_backbone(path: str | Path, part: str = 'student') -> Backbone:
    """The backbone of the student or the teacher in a checkpoint of any known project.

    >>> read_backbone('moco_v2_200ep_pretrain.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
    torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(f"part '{part}' is not in a checkpoint; say student or teacher")
    tensors, origin = read_tensors(path)
    form = recognise(tensors)
    if form is None:
        raise UserError(
            f'{path} holds no {part} backbone that mmairl knows: its keys look like {list(tensors)[:3]}; give a ResNet '
            'or ViT by the names of mmairl, MoCo, mmpretrain, torchvision, timm, VISSL or detectron2'
        )
    prefix = _prefix(form, part, tensors, path)
    inside = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    kept = {key: value for key, value in inside.items() if form.pure or BACKBONE.match(key)}
    rules = rules_to_ours(kept)
    renamed = {prefix + key: rename(key, rules) for key in kept}
    weights = {renamed[prefix + key]: value for key, value in kept.items()}
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(with_counters(weights), str(path), form.name, part, renamed, dropped, origin)


def _prefix(form: Format, part: str, tensors: dict[str, Tensor], path: str | Path) -> str:
    if part == 'student':
        return form.student
    if form.teacher is None or not any(key.startswith(form.teacher) for key in tensors):
        wanted = f" (no key starts with '{form.teacher}')" if form.teacher else ''
        raise UserError(f'{path} holds no teacher{wanted}: by its keys it is {form.name}; use --part student')
    return form.teacher


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that some formats leave out; a BN layer with a fixed momentum does not use them."""
    for key in [key for key in weights if key.endswith('.running_mean')]:
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    return weights


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict]:
    """Every tensor in a checkpoint's weights by its name, wrappers taken off, and the record of origin if it has one."""
    loaded = load_file(path)
    inner: Any = loaded
    # DDP, torch.compile and training scripts each add an envelope.
    while found := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[found]
    tensors = {}
    for key, value in _flat(inner):
        for wrapper in WRAPPERS:
            key = key.removeprefix(wrapper)
        tensors[key] = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
    return tensors, _origin(loaded)


def _origin(loaded: dict) -> dict:
    meta = loaded.get('meta')
    found = meta.get(ORIGIN) if isinstance(meta, dict) else getattr(loaded, ORIGIN, None)
    return found if isinstance(found, dict) else {}


def _flat(values: dict, prefix: str = '') -> list[tuple[str, Any]]:
    """Tensors and arrays by dotted names; VISSL nests `trunk` and `heads` one level down."""
    found = []
    for key, value in values.items():
        if isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in 'fiu'):
            found.append((f'{prefix}{key}', value))
        elif isinstance(value, dict) and key in ('trunk', 'heads'):
            found += _flat(value, f'{prefix}{key}.')
    return found


def load_file(path: str | Path) -> dict[str, Any]:
    """The dictionary in a .pth, .pkl or .safetensors file or a released model, none of which may run code."""
    path = released_file(str(path)) if is_released(path) else Path(path)
    head = b''
    if path.is_file():
        with path.open('rb') as file:
            head = file.read(10)
    if path.suffix == '.safetensors':
        return _load_safetensors(path)
    # A plain pickle is not what torch writes: that is a zip file, or a pickle which begins with a magic number.
    if path.suffix == '.pkl' or (head[:1] == b'\x80' and head[2:4] != b'\x8a\n'):
        if not path.is_file() or not head:
            return load_checkpoint(path)  # which says what is wrong
        return load_pickle(path)
    return load_checkpoint(path)


def _load_safetensors(path: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise UserError(f'there is no checkpoint at {path}; check the path')
    try:
        with safe_open(path, framework='pt') as file:
            weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118, it is not a dictionary
            return dict(state_dict=weights, meta={ORIGIN: dict(file.metadata() or {})})
    except SafetensorError as error:
        raise UserError(f'{path} is truncated or not a safetensors file; copy it again') from error
