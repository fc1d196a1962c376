"""Read a backbone from a checkpoint of any known project.

Every tensor with the backbone's prefix is used, except heads and other tensors that do not affect features, which are reported.
"""

import ast
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.architecture import backbone_of, heads_of, tensors_of
from mmairl.checkpoints.formats import BACKBONES, IGNORED, TEACHER, detect_format, prefixes, to_ours
from mmairl.checkpoints.load import ADAPTER, load_checkpoint, require_same_keys
from mmairl.checkpoints.pickles import ORIGIN
from mmairl.checkpoints.released import (
    architecture,
    is_released,
    is_timm_folder,
    released_model,
)
from mmairl.errors import UserError

# Training scripts nest the dictionary of weights under one of these keys, or under several, one inside the other.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
# VISSL has dictionaries with these names inside the dictionary of weights.
NESTED = ('trunk', 'heads')
PARTS = ('student', 'teacher')


@dataclass(frozen=True)
class Input:
    """The properties of the images that a backbone expects as input.

    Args:
        mean: Mean of each channel, for pixel values from 0 to 1.
        std: Standard deviation of each channel, for pixel values from 0 to 1.
        size: Side of the crop in pixels.
        resize: Length of the shorter side before the crop, or height and width. Default: 8/7 of `size`.
        channels: Number of channels. None means 8-bit RGB images.
        interpolation: Interpolation by which images are resized, such as 'bicubic'.
        origin: Where `mean` and `std` come from. An empty text means that nothing states them, so ImageNet's are assumed.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    size: int = 224
    resize: int | list | tuple | None = None
    channels: int | None = None
    interpolation: str = 'bilinear'
    origin: str = ''


IMAGES = [entry.name for entry in fields(Input) if entry.name != 'origin']


@dataclass(frozen=True)
class Backbone:
    """The weights of a backbone, with the names that mmairl uses.

    Args:
        weights: Maps mmairl's names to the tensors.
        path: The file, or the name of a released model.
        source: The format of the file.
        part: 'student' or 'teacher'.
        dropped: The keys of the file that were not read.
        origin: What is known about the network and its images: the number of attention heads (`heads`), the arguments of
            TimmBackbone (`timm`) and the fields of `Input`. The other entries are those of the record in a converted file.
        settings: The config of the mmairl training run that wrote the file. Maps dotted config keys to text.
    """

    weights: dict[str, Tensor]
    path: str
    source: str
    part: str
    dropped: list[str] = field(default_factory=list)
    origin: dict = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f'{self.part} of {self.path} ({self.source})'

    @property
    def input(self) -> Input:
        """The properties of the images that the backbone expects. If nothing states mean and std, they are ImageNet's."""
        stated = {key: self.origin[key] for key in IMAGES if key in self.origin}
        known = {'mean', 'std'} <= stated.keys()
        return Input(**stated, origin='the checkpoint' if known else '')

    @property
    def record(self) -> dict[str, Any]:
        """The record of origin to store in a file to which this backbone is written."""
        file = self.path if is_released(self.path) else Path(self.path).name
        return {**self.origin, 'file': file, 'source_format': self.source, 'part': self.part}

    @cached_property
    def network(self) -> dict[str, Any]:
        """The `backbone=` of a config whose network has exactly these weights.

        Raises:
            UserError: 'unknown-network' if the network is neither a ResNet, a plain ViT nor a network of timm,
                'other-network' or 'incomplete-network' if a tensor is unexpected or missing.
        """
        if timm := self.origin.get('timm'):
            network = dict(type='TimmBackbone', **timm)
        else:
            network = backbone_of(self.weights, self.path, self.origin.get('heads'))
        name = network.get('name', network['type'])
        require_same_keys(self.weights, tensors_of(network), self.path, name)
        return network


def described(origin: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of origin of a file, with what the config of the training run states about network and images.

    Args:
        origin: The record of origin in the file. In safetensors, all values are text.
        settings: The config of the training run that wrote the file.
    """
    images = _below('preprocessing.', settings)
    known = {key: _literal(value) for key, value in {**origin, **images}.items()}
    backbone = _below('model.backbone.', settings)
    if backbone.get('type', '').endswith('TimmBackbone'):
        known['timm'] = {key: _literal(value) for key, value in backbone.items()}
    elif backbone.get('arch.num_heads', '').isdigit():  # networks in stages have a list
        known['heads'] = int(backbone['arch.num_heads'])
    if 'timm' in known:
        # The file may only name an architecture of timm, not weights to load.
        known['timm'] = architecture(known['timm'])
    return known


def _below(start: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {key.removeprefix(start): settings[key] for key in settings if key.startswith(start)}


def _literal(value: Any) -> Any:
    """Return the value of a Python literal, and any other value unchanged. safetensors and settings store values as text."""
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def read_backbone(
    path: str | Path,
    part: str = 'student',
    prefix: str | None = None,
    network: Mapping[str, Tensor] | None = None,
) -> Backbone:
    """Return the backbone of the student or the teacher in a checkpoint of any known project.

    Args:
        path: A checkpoint, a folder that timm can load, or the name of a released model: 'torchvision:resnet50', 'timm:NAME' or
            'hf-hub:ORG/NAME'.
        part: 'student' or 'teacher'.
        prefix: Prefix of the backbone's keys. Default: detect it.
        network: Tensors of the network for which the weights are read. Heads in the file that this network does not have are
            left out. Required to find a network that is neither a ResNet nor a ViT in a file of an unknown format.

    Raises:
        UserError: If the file contains no backbone or several.

    Example:
        >>> read_backbone('moco_v2_200ep.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
        torch.Size([64, 3, 7, 7])
    """
    if part not in PARTS:
        raise UserError(
            f"part: unknown network ('{part}'); set student or teacher", code='unknown-part'
        )
    path = str(path)
    settings: dict[str, str] = {}
    if is_released(path) or is_timm_folder(path):
        tensors, origin = released_model(path)
        source = path.partition(':')[0] if is_released(path) else 'timm'
        prefix = prefix or ''
    else:
        tensors, origin, settings = read_tensors(path)
        if settings and prefix is None and part == 'student':
            # A prefix that is found could skip layers that the model has put around its backbone.
            prefix, source = BACKBONES[0], 'mmairl'
        else:
            prefix, source = _prefix_of(tensors, path, part, prefix, network or ())
    inside = {key.removeprefix(prefix): key for key in tensors if key.startswith(prefix)}
    if not inside:
        raise _no_backbone(path, part, tensors)
    stored = {name: tensors[key] for name, key in inside.items()}
    origin = described(origin, settings)
    names = _names(stored, network, 'timm' in origin)
    weights = {ours: stored[name] for name, ours in names.items()}
    if heads := heads_of(weights, source + settings.get('model.backbone.arch', '')):
        origin.setdefault('heads', heads)
    for key in [key for key in weights if key.endswith('.running_mean')]:
        # Some formats omit the counters of batches, which do not affect batch norms with a fixed momentum.
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    used = {inside[name] for name in names}
    dropped = [key for key in tensors if key not in used]
    return Backbone(weights, path, source, part, dropped, origin, settings)


def _prefix_of(
    tensors: Mapping[str, Tensor],
    path: str,
    part: str,
    given: str | None,
    network: Collection[str],
) -> tuple[str, str]:
    """Return the prefix of a backbone, and the format of the file.

    A file of a known format has known prefixes. In any other file, the student's prefix is the only one before the keys of a
    known layout, or of the given network.
    """
    if given is not None:
        return given, f"prefix '{given}'"
    found = prefixes(tensors, network)
    form = detect_format(found)
    if form is not None:
        prefix = form.student if part == 'student' else form.teacher
        if prefix not in found:
            raise _no_backbone(path, part, tensors)
        stem = tensors.get(f'{prefix}conv1.weight')
        by_solo_learn = form.name == 'solo-learn' or 'classifier.weight' in tensors
        if by_solo_learn and stem is not None and stem.shape[-1] == 3:
            raise UserError(
                f'{path}: solo-learn pads the images of its networks for CIFAR by 2 pixels, which no network here does; train '
                f"without this stem or, if another program wrote the file, set --prefix '{prefix}'",
                code='solo-learn-stem',
            )
        return prefix, form.name
    outer = {
        prefix
        for prefix in found
        if not any(prefix != other and prefix.startswith(other) for other in found)
        and not TEACHER.search(prefix)
    }
    if len(outer) > 1:
        raise UserError(
            f'{path}: several backbones, with the prefixes {sorted(outer)}; choose one by --prefix',
            code='several-backbones',
        )
    if not outer or part == 'teacher':
        raise _no_backbone(path, part, tensors)
    (prefix,) = outer
    print_log(f"{path}: the backbone is read below the prefix '{prefix}'", 'current')
    return prefix, f"prefix '{prefix}'"


def _no_backbone(path: str, part: str, tensors: Mapping[str, Tensor]) -> UserError:
    return UserError(
        f'{path}: no {part} backbone with this prefix or of a known format (its keys look like {list(tensors)[:3]}); set the '
        'prefix of its keys by --prefix, or use --part student, and give a config unless it is a ResNet or a ViT',
        code='no-backbone',
    )


def _names(
    stored: Mapping[str, Tensor], network: Mapping[str, Tensor] | None, is_timm: bool
) -> dict[str, str]:
    """Return a dictionary from the names in a file to the names of the network. Heads are left out.

    Args:
        stored: The tensors, under their names in the file.
        network: The tensors of the network, if they are known. They decide whether the names are translated.
        is_timm: Whether the network is timm's, whose names are kept.
    """
    ours = to_ours(stored)
    as_stored = {name: name for name in stored}
    required = (network or {}).keys()
    if network is None:
        names = as_stored if is_timm else ours or as_stored
    else:
        names = max(as_stored, ours, key=lambda names: len(required & set(names.values())))
    has_heads = ours or network is not None
    return {
        name: new
        for name, new in names.items()
        if new in required or not (has_heads and IGNORED.match(name))
    }


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict, dict[str, str]]:
    """Return the tensors of a checkpoint, its record of origin, and its run's settings.

    The names of tensors do not have the prefixes of wrappers such as DDP.
    """
    loaded = inner = load_checkpoint(path)
    while envelope := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[envelope]
    # The record is an attribute of a dictionary that contains only tensors.
    meta = _dict(loaded.get('meta')) or getattr(loaded, '__dict__', {})
    return _flat(inner), _dict(meta.get(ORIGIN)), _dict(meta.get('settings'))


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _flat(values: dict, prefix: str = '') -> dict[str, Tensor]:
    """Return a dictionary from dotted names to tensors, including tensors in a dictionary under a key of NESTED."""
    flat: dict[str, Tensor] = {}
    for key, value in values.items():
        name = f'{prefix}{key}'
        while name.startswith(WRAPPERS):
            name = name.partition('.')[2]
        if isinstance(value, Tensor) and ADAPTER not in name:
            flat[name] = value
        elif isinstance(value, dict) and key in NESTED:
            flat |= _flat(value, f'{name}.')
    return flat
