"""Read a backbone from a checkpoint of any known project.

Every tensor with the backbone's prefix is used, except heads and other tensors that do not affect features, which are reported.
"""

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.architecture import backbone_of, tensors_of
from mmairl.checkpoints.formats import (
    IGNORED,
    TEACHER,
    TIMM_BACKBONE,
    detect_format,
    join_registers,
    prefixes,
    to_ours,
)
from mmairl.checkpoints.load import load_checkpoint, not_finite, require_same_keys, warn
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
        channels: Number of channels. None means 8-bit RGB images.
        interpolation: Interpolation by which images are resized, such as 'bicubic'.
        origin: Where `mean` and `std` come from. An empty text means that nothing states them, so ImageNet's are assumed.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    size: int = 224
    channels: int | None = None
    interpolation: str = 'bilinear'
    origin: str = ''


@dataclass(frozen=True)
class Backbone:
    """The weights of a backbone, with the names that mmairl uses.

    Args:
        weights: Maps mmairl's names to the tensors.
        path: The file, or the name of a released model.
        source: The format of the file.
        part: 'student' or 'teacher'.
        renamed: Maps each key that was read from the file to the name in `weights`.
        dropped: The keys of the file that were not read.
        origin: The record of origin in the file. mmairl stores this record in converted files, to state where the weights
            come from and which images the backbone expects.
        settings: The config of the mmairl training run that wrote the file. Maps dotted config keys to text.
    """

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
        """Number of attention heads of a ViT, or None if neither the file nor the project states it."""
        arch = str(self.settings.get('model.backbone.arch'))
        stated = [self.origin.get('heads'), self.settings.get('model.backbone.arch.num_heads')]
        if 'patch_embed.projection.weight' in self.weights:
            from mmpretrain.models.backbones.vision_transformer import VisionTransformer

            stated.append(VisionTransformer.arch_zoo.get(arch, {}).get('num_heads'))
            # MoCo v3's ViT of width 384 has twice as many heads as all others.
            width = len(self.weights['patch_embed.projection.weight'])
            stated.append(12 if 'MoCo v3' in self.source and width == 384 else None)
        return next((int(text) for text in stated if re.fullmatch(r'[1-9]\d?', str(text))), None)

    @property
    def input(self) -> Input:
        """The properties of the images that the backbone expects.

        They come from the settings of the training run or from the record of origin. If neither states the mean and std, the
        result has ImageNet's.
        """
        if self.settings:
            return input_of(self.settings)
        stated = {key: _literal(self.origin.get(key)) for key in ('mean', 'std')}
        if not all(isinstance(value, list | tuple) for value in stated.values()):
            return Input()
        for key in ('size', 'channels'):
            if isinstance(value := _literal(self.origin.get(key)), int):
                stated[key] = value
        interpolation = str(self.origin.get('interpolation', Input.interpolation))
        return Input(**stated, interpolation=interpolation, origin='its record')

    @property
    def record(self) -> dict[str, Any]:
        """The record of origin to store in a file to which this backbone is written."""
        record = dict(self.origin)
        if timm := timm_arguments(self.origin, self.settings):
            record['timm'] = timm
        if self.heads is not None:
            record['heads'] = self.heads
        images = self.input
        if images.origin:
            record |= dict(mean=list(images.mean), std=list(images.std), size=images.size)
            if images.channels is not None:
                record['channels'] = images.channels
            if images.interpolation != Input.interpolation:
                record['interpolation'] = images.interpolation
        file = self.path if is_released(self.path) else Path(self.path).name
        return {**record, 'file': file, 'source_format': self.source, 'part': self.part}

    @cached_property
    def network(self) -> dict[str, Any]:
        """The `backbone=` of a config whose network has exactly these weights.

        Raises:
            UserError: 'unknown-network' if the network is neither a ResNet, a plain ViT nor a network of timm,
                'other-network' or 'incomplete-network' if a tensor is unexpected or missing.
        """
        if timm := timm_arguments(self.origin, self.settings):
            network = dict(type='TimmBackbone', **timm)
        else:
            network = backbone_of(self.weights, self.path, self.heads)
        tensors = tensors_of(json.dumps(network, sort_keys=True))
        require_same_keys(self.weights, tensors, self.path, network.get('name', network['type']))
        return network


def timm_arguments(origin: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments by which timm builds the network of a file, or an empty dictionary if it is not known from timm.

    Args:
        origin: The record of origin in the file.
        settings: The config of the training run that wrote the file.
    """
    timm = _literal(origin.get('timm'))
    if settings.get('model.backbone.type', '').endswith('TimmBackbone'):
        start = 'model.backbone.'
        own = [key for key in settings if key.startswith(start)]
        timm = {key.removeprefix(start): _literal(settings[key]) for key in own}
    if not isinstance(timm, dict) or not re.fullmatch(r'[\w.]+', str(timm.get('name'))):
        return {}
    return architecture(timm)


def warn_of_assumed_statistics(backbone: Backbone, how: str) -> None:
    """Warn that images are normalized by ImageNet's mean and std, because nothing states those of the backbone's images.

    Args:
        backbone: The backbone.
        how: The flag or key by which users can set the mean and std.
    """
    warn(
        f"{backbone.path}: the file does not state the mean and std of its images; ImageNet's mean {Input.mean} and std "
        f'{Input.std} are used; set other values by {how}'
    )


def input_of(settings: Mapping[str, str]) -> Input:
    """Return the properties of the images that a backbone expects, according to the settings of its training run."""
    stated = {}
    for name in ('mean', 'std'):
        numbers = _literal(settings.get(f'model.data_preprocessor.{name}'))
        if isinstance(numbers, list | tuple):
            stated[name] = numbers
    views = ' '.join(str(text) for key, text in settings.items() if key.endswith('.views'))
    if crop := re.search(r"'size': (\d+)\b", views):
        stated['size'] = int(crop[1])
    channels = [text for key, text in settings.items() if key.endswith('dataset.channels')]
    if channels and str(channels[0]).isdigit():
        stated['channels'] = int(channels[0])
    return Input(**stated, origin='its training run')


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
        prefix, source = _prefix_of(tensors, path, part, prefix, network or ())
    inside = {key.removeprefix(prefix): key for key in tensors if key.startswith(prefix)}
    stored = {name: tensors[key] for name, key in inside.items()}
    keep = network is None and bool(timm_arguments(origin, settings))
    names = _names(stored, network, keep)
    weights = {ours: stored[name] for name, ours in names.items()}
    if not keep and 'reg_token' not in (network or {}):
        weights = join_registers(weights)
    renamed = {inside[name]: ours for name, ours in names.items()}
    if broken := not_finite(weights):
        warn(
            f'{path}: {len(broken)} tensors contain NaN or infinity, such as {broken[0]}; the training probably diverged, so '
            'use an earlier checkpoint'
        )
    for key in [key for key in weights if key.endswith('.running_mean')]:
        # Some formats omit the counters of batches, which do not affect batch norms with a fixed momentum.
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(weights, path, source, part, renamed, dropped, origin, settings)


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
        if not any(key.startswith(given) for key in tensors):
            raise UserError(
                f"{path}: no key begins with the prefix ('{given}'); its keys look like {list(tensors)[:3]}",
                code='unknown-prefix',
            )
        return given, f"prefix '{given}'"
    found = prefixes(tensors, network)
    form = detect_format(found)
    if form is not None:
        prefix = form.student if part == 'student' else form.teacher
        if prefix not in found:
            raise UserError(
                f"{path}: no {part} in this checkpoint ('{form.name}'); use --part student",
                code='no-part',
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
        raise UserError(
            f'{path}: no {part} backbone of a known format (its keys look like {list(tensors)[:3]}); set the prefix of its '
            'keys by --prefix, and give a config unless it is a ResNet or a ViT',
            code='no-backbone',
        )
    (prefix,) = outer
    print_log(f"{path}: the backbone is read below the prefix '{prefix}'", 'current')
    return prefix, f"prefix '{prefix}'"


def _names(
    stored: Mapping[str, Tensor], network: Mapping[str, Tensor] | None, keep: bool
) -> dict[str, str]:
    """Return a dictionary from the names in a file to the names of the network. Heads are left out.

    Args:
        stored: The tensors, under their names in the file.
        network: The tensors of the network, if they are known. Among mmairl's names, the names in the file and those names in
            mmpretrain's TIMMBackbone, the names that fit best are chosen.
        keep: Whether to keep the names in the file if the network is unknown.
    """
    ours = to_ours(stored)
    as_stored = {name: name for name in stored}
    if network is None:
        names = ours if ours and not keep else as_stored
        is_known = bool(ours)
    else:
        in_timm = {name: TIMM_BACKBONE + name for name in stored}
        candidates = [names for names in (ours, as_stored, in_timm) if names]
        names = max(candidates, key=lambda names: len(network.keys() & set(names.values())))
        is_known = True
    required = network or {}
    return {
        name: new
        for name, new in names.items()
        if new in required or not (is_known and IGNORED.match(name.removeprefix(TIMM_BACKBONE)))
    }


def read_tensors(path: str | Path) -> tuple[dict[str, Tensor], dict, dict[str, str]]:
    """Return the tensors of a checkpoint, its record of origin, and its run's settings.

    The names of tensors do not have the prefixes of wrappers such as DDP.
    """
    loaded = inner = load_checkpoint(path)
    while envelope := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[envelope]
    meta = loaded.get('meta')
    if isinstance(meta, dict):
        origin, settings = meta.get(ORIGIN), meta.get('settings')
    else:
        origin, settings = getattr(loaded, ORIGIN, None), None
    origin = dict(origin) if isinstance(origin, dict) else {}
    settings = settings if isinstance(settings, dict) else {}
    return _flat(inner), origin, {str(key): value for key, value in settings.items()}


def _flat(values: dict, prefix: str = '') -> dict[str, Tensor]:
    """Return a dictionary from dotted names to tensors, including tensors in a dictionary under a key of NESTED."""
    flat: dict[str, Tensor] = {}
    for key, value in values.items():
        name = f'{prefix}{key}'
        while name.startswith(WRAPPERS):
            name = name.partition('.')[2]
        if isinstance(value, Tensor):
            flat[name] = value
        elif isinstance(value, dict) and key in NESTED:
            flat |= _flat(value, f'{name}.')
    return flat
