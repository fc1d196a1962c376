"""A backbone out of any checkpoint, by the formats of `weights.formats`: whole, and with weights that are floats."""

import ast
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.errors import UserError, printable
from mmairl.files import read_json
from mmairl.weights.formats import (
    BACKBONE,
    ENVELOPES,
    NESTED,
    WRAPPERS,
    backbone_of,
    names_of,
    of_hugging_face,
    recognise,
    rename,
    with_registers,
)
from mmairl.weights.load import load_checkpoint, not_finite, wrong_kind
from mmairl.weights.pickles import ORIGIN

LEARNED = ('weight', 'bias', 'running_mean', 'running_var')  # the names that no counter or table of positions has


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

    @property
    def heads(self) -> int | None:
        """The heads of a ViT where the file's record, its run's settings, a config.json beside it or its project tells them."""
        keys = ('num_heads', 'arch.num_heads', 'arch')
        told = [self.origin.get('heads'), *(self.settings.get(f'model.backbone.{key}') for key in keys)]
        if told[-1]:
            from mmpretrain.models.backbones.vision_transformer import VisionTransformer

            told.append(VisionTransformer.arch_zoo.get(str(told[-1]), {}).get('num_heads'))
        with suppress(UserError, TypeError):
            told.append(read_json(Path(self.path).with_name('config.json'), dict).get('num_attention_heads'))
        if 'MoCo v3' in self.source and self.weights.get('pos_embed', torch.empty(0)).shape[-1] == 384:
            told.append(12)
        return next((int(text) for text in told if re.fullmatch(r'[1-9]\d?', str(text))), None)

    @property
    def record(self) -> dict:
        """All that a file which is made of it says of its origin."""
        heads = {'heads': self.heads} if self.heads else {}
        return {**self.origin, **heads, 'file': Path(self.path).name, 'format': self.source, 'part': self.part}

    @property
    def network(self) -> dict:
        """The `backbone=` of a config that the weights fit."""
        return backbone_of(self.weights, self.path, self.heads)


@dataclass(frozen=True)
class Input:
    """The images that a backbone was trained on: statistics of values from 0 to 1, the side in pixels, how many channels."""

    mean: Sequence[float] = (0.485, 0.456, 0.406)  # ImageNet's, where no run says another
    std: Sequence[float] = (0.229, 0.224, 0.225)
    size: int = 224
    channels: int | None = None  # None is RGB of 8 bits


def input_of(settings: Mapping[str, str]) -> Input:
    """Return what the settings of a training run of ours say of its images."""
    ends = ('.mean', '.std', '.views', 'dataset.channels')
    # None and the views that have a name, whose crops are of the usual size, say nothing here.
    told = {key: text for key, text in settings.items() if key.endswith(ends) and not text.isidentifier()}
    known = {key: ast.literal_eval(text) for key, text in told.items()}
    views = [view for key, views in known.items() if key.endswith('.views') for view in views]
    said = {name: known[key] for name in ('mean', 'std') if (key := f'model.data_preprocessor.{name}') in known}
    said['size'] = next((step['size'] for view in views for step in view if 'size' in step), Input.size)
    return Input(**said, channels=next((value for key, value in known.items() if key.endswith('.channels')), None))


def read_backbone(path: str | Path, part: str = 'student') -> Backbone:
    """The backbone of the student or the teacher in a checkpoint of any known project.

    >>> read_backbone('moco_v2_200ep_pretrain.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
    torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(f"part '{part}' is not in a checkpoint; say student or teacher")
    tensors, origin, settings = read_tensors(path)
    tensors = of_hugging_face(tensors)
    form = recognise(tensors)
    if form is None:
        seen = f'its keys look like {list(tensors)[:3]}' if tensors else 'it has no weights at all'
        raise UserError(
            f'{path} holds no {part} backbone that mmairl knows: {seen}; give a ResNet '
            'or ViT by the names of mmairl, MoCo, mmpretrain, torchvision, timm, Hugging Face, VISSL or detectron2'
        )
    prefix = form.student if part == 'student' else form.teacher
    if prefix is None or not any(key.startswith(prefix) for key in tensors):
        wanted = f" (no key starts with '{prefix}')" if prefix else ''
        raise UserError(f'{path} holds no teacher{wanted}: by its keys it is {form.name}; use --part student')
    inside = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    kept = {key: value for key, value in inside.items() if form.pure or BACKBONE.match(key)}
    for key, value in kept.items():
        if kind := wrong_kind(value, whole=not key.endswith(LEARNED)):
            raise UserError(f'{path}: the weights {prefix}{key} are {kind}; give a file whose weights are floats')
    names = names_of(kept)
    renamed = {prefix + key: rename(key, names, to_ours=True) for key in kept}
    weights = with_registers({renamed[prefix + key]: value for key, value in kept.items()})
    if broken := not_finite(weights):
        said = (
            f'{len(broken)} tensors of {path} hold NaN or infinity, as {broken[0]}: the run that made them has diverged'
        )
        print_log(printable(said), logger='current', level=logging.WARNING)
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(with_counters(weights), str(path), form.name, part, renamed, dropped, origin, settings)


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that some formats leave out; a BN layer with a fixed momentum does not use them."""
    for key in [key for key in weights if key.endswith('.running_mean')]:
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    return weights


def read_tensors(path: str | Path) -> tuple[dict[str, Any], dict, dict[str, str]]:
    """Every tensor of a checkpoint by its name, without wrappers; its record of origin and its run's settings, if any.

    A value of another kind stays under a dotted name, as weights have them, so that it is not taken for missing.
    """
    loaded = load_checkpoint(path)
    meta, inner = loaded.get('meta'), loaded
    # DDP, torch.compile and training scripts each add an envelope.
    while envelope := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[envelope]
    tensors = _flat(inner)
    origin = meta.get(ORIGIN) if isinstance(meta, dict) else getattr(loaded, ORIGIN, None)
    settings = meta.get('settings') if isinstance(meta, dict) else None
    return tensors, *(noted if isinstance(noted, dict) else {} for noted in (origin, settings))


def _flat(values: dict, prefix: str = '') -> dict[str, Any]:
    """Values by dotted names."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f'{prefix}{key}'
        while name.startswith(WRAPPERS):
            name = name.partition('.')[2]
        if isinstance(value, np.ndarray):
            with suppress(TypeError, ValueError):  # of numbers that torch does not have
                value = torch.from_numpy(value)
        if isinstance(value, dict):
            flat |= _flat(value, f'{name}.') if key in NESTED else {}
        elif isinstance(value, (Tensor, np.ndarray)) or '.' in name:
            flat[name] = value
    return flat
