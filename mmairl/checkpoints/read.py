"""Read a backbone from a checkpoint of any known project.

Of the tensors whose keys begin with the backbone's prefix, only those that do not affect features, such as heads, are left out.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.architecture import backbone_of, require_complete
from mmairl.checkpoints.hub_config import (
    INTERPOLATIONS,
    HubConfig,
    Input,
    hub_config,
    is_number,
    parse_statistics,
)
from mmairl.checkpoints.layouts import (
    ENVELOPES,
    IGNORED,
    LAST_STAGES,
    NESTED,
    TEACHER,
    TIMM_BACKBONE,
    WRAPPERS,
    Format,
    Named,
    detect_format,
    layout_of,
    layout_prefixes,
    to_ours,
)
from mmairl.checkpoints.load import (
    load_checkpoint,
    name_faults,
    not_finite,
    other_architecture,
    warn,
    wrong_kind,
)
from mmairl.checkpoints.pickles import ORIGIN
from mmairl.checkpoints.released import is_hub, is_released, released_file
from mmairl.errors import UserError

# Weights and batch statistics, which have these suffixes, must be floats. Counters and tables of positions can be integers.
FLOATS = ('weight', 'bias', 'running_mean', 'running_var')
HUB_FILES = ('model.safetensors', 'pytorch_model.bin')


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

    @cached_property
    def hub(self) -> HubConfig:
        """The settings files next to the checkpoint. They are ignored if the checkpoint has a config or a record of origin."""
        describes_itself = self.settings or 'source_format' in self.origin
        if describes_itself or not self.path or self._is_torchvision:
            return HubConfig(Path())
        return hub_config(released_file(self.path) if is_hub(self.path) else Path(self.path))

    @property
    def _is_torchvision(self) -> bool:
        return is_released(self.path) and not is_hub(self.path)

    @property
    def heads(self) -> int | None:
        """Number of attention heads of a ViT, or None if it is unknown.

        The number is taken from the record of origin, the settings of the training run, `config.json`, or the known
        architecture of MoCo v3's ViTs.
        """
        keys = ('num_heads', 'arch.num_heads', 'arch')
        number, in_arch, arch = (self.settings.get(f'model.backbone.{key}') for key in keys)
        stated = [self.origin.get('heads'), number, in_arch, arch]
        if arch:
            from mmpretrain.models.backbones.vision_transformer import VisionTransformer

            stated.append(VisionTransformer.arch_zoo.get(str(arch), {}).get('num_heads'))
        stated.append(self.hub.heads)
        positions = self.weights.get('pos_embed', torch.empty(0))
        if 'MoCo v3' in self.source and positions.shape[-1] == 384:
            stated.append(12)
        return next((int(text) for text in stated if re.fullmatch(r'[1-9]\d?', str(text))), None)

    @property
    def norm_eps(self) -> float | None:
        """Epsilon of a ViT's layer norms, from the record of origin or `config.json`, or None if it is unknown."""
        if 'norm_eps' not in self.origin:
            return self.hub.norm_eps
        with suppress(ValueError):
            return float(self.origin['norm_eps'])
        return None

    @property
    def input(self) -> Input:
        """The properties of the images that the backbone expects.

        They come from the settings of the training run, the record of origin or the settings files next to the checkpoint. If
        none of these states the mean and std, the result has ImageNet's.
        """
        if self.settings:
            return input_of(self.settings)
        if 'mean' in self.origin and 'std' in self.origin:
            size, channels = (str(self.origin.get(name, '')) for name in ('size', 'channels'))
            interpolation = self.origin.get('interpolation')
            return Input(
                mean=parse_statistics(self.origin['mean'], 'mean', self.path),
                std=parse_statistics(self.origin['std'], 'std', self.path),
                size=int(size) if re.fullmatch(r'[1-9]\d{0,3}', size) else Input.size,
                channels=int(channels) if re.fullmatch(r'[1-9]\d{0,3}', channels) else None,
                interpolation=interpolation
                if interpolation in INTERPOLATIONS
                else Input.interpolation,
                origin='its record',
            )
        if self._is_torchvision:
            return Input(origin='torchvision')
        return self.hub.input() or Input()

    @property
    def record(self) -> dict[str, Any]:
        """The record of origin to store in a file to which this backbone is written."""
        record = dict(self.origin)
        if self.heads is not None:
            record['heads'] = self.heads
        if self.norm_eps is not None:
            record['norm_eps'] = self.norm_eps
        images = self.input
        if images.origin:
            record |= dict(mean=list(images.mean), std=list(images.std), size=images.size)
            if images.channels is not None:
                record['channels'] = images.channels
            if images.interpolation != Input.interpolation:
                record['interpolation'] = images.interpolation
        file = self.path if is_released(self.path) else Path(self.path).name
        return {**record, 'file': file, 'source_format': self.source, 'part': self.part}

    @property
    def network(self) -> dict[str, Any]:
        """The `backbone=` of a config whose network has exactly these weights.

        Raises:
            UserError: If the network is unknown, or if `config.json` next to the file describes a different network.
        """
        network = backbone_of(self.weights, self.path, self.heads, self.norm_eps)
        arch = network.get('arch', network)
        if 'num_heads' in arch and arch['embed_dims'] % arch['num_heads']:
            raise UserError(
                f"{self.path}: the number of attention heads ('{arch['num_heads']}') does not divide the width of the ViT "
                f'({arch["embed_dims"]}); correct the number of heads in config.json, or give a config with the backbone of '
                'this checkpoint',
                code='other-network',
            )
        require_complete(self.weights, network, self.path)
        self.hub.require_network(network)
        if network['type'].endswith('_CIFAR'):
            return self._with_padding(network)
        return network

    def _with_padding(self, network: dict[str, Any]) -> dict[str, Any]:
        """Return the network with the padding of a ResNet's 3x3 stem, which cannot be derived from the weights."""
        if self.source.startswith('solo-learn'):
            return {**network, 'type': 'SoloLearnResNet'}
        warn(
            f"{self.path}: the padding of the ResNet's 3x3 stem is unknown, and 1 is used; if the file is from solo-learn, "
            "which pads by 2, give a config with backbone type 'SoloLearnResNet'"
        )
        return network


def warn_of_assumed_statistics(backbone: Backbone, how: str) -> None:
    """Warn that images are normalized by ImageNet's mean and std, because nothing states those of the backbone's images.

    Args:
        backbone: The backbone.
        how: The flag or key by which users can set the mean and std.
    """
    mean, std = (', '.join(map(str, values)) for values in (Input.mean, Input.std))
    warn(
        f'{backbone.path}: neither the file nor a config.json or preprocessor_config.json next to it states the mean and std '
        f"of its images; ImageNet's mean {mean} and std {std} are used; set other values by {how}"
    )


def input_of(settings: Mapping[str, str]) -> Input:
    """Return the properties of the images that a backbone expects, according to the settings of its training run.

    The settings come from an untrusted file, so values of unexpected types are ignored.
    """
    stated = {}
    for name in ('mean', 'std'):
        numbers = _literal(settings.get(f'model.data_preprocessor.{name}'))
        if isinstance(numbers, (list, tuple)) and all(map(is_number, numbers)):
            stated[name] = numbers
    views = ' '.join(str(text) for key, text in settings.items() if key.endswith('.views'))
    crop = re.search(r"'size': (\d{1,4})\b", views)
    channels = [text for key, text in settings.items() if key.endswith('dataset.channels')]
    return Input(
        **stated,
        size=int(crop[1]) if crop else Input.size,
        channels=next(
            (int(text) for text in channels if re.fullmatch(r'\d{1,4}', str(text))), None
        ),
        origin='its training run',
    )


def _literal(text: object) -> Any:
    try:
        return ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def read_backbone(
    path: str | Path,
    part: str = 'student',
    prefix: str | None = None,
    network: Mapping[str, Tensor] | None = None,
) -> Backbone:
    """Return the backbone of the student or the teacher in a checkpoint of any known project.

    Args:
        path: A checkpoint, a folder from a model hub that contains a checkpoint, or the name of a released model:
            'torchvision:resnet50', 'timm:NAME' or 'hf-hub:ORG/NAME'.
        part: 'student' or 'teacher'.
        prefix: Prefix of the backbone's keys. Default: detect it.
        network: Tensors of the network for which the weights are read, required unless the network is a ResNet or a ViT.
            Heads in the file that this network does not have are left out.

    Returns:
        The backbone.

    Raises:
        UserError: If no backbone is found, if it is incomplete, or if a tensor is not recognized.

    Example:
        >>> read_backbone('moco_v2_200ep.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
        torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(
            f"part: unknown network ('{part}'); set student or teacher", code='unknown-part'
        )
    file = weights_file(path)
    tensors, origin, settings = read_tensors(file)
    search = BackboneSearch(str(file), tensors, part, network)
    match = search.find() if prefix is None else search.find_below(prefix)
    broken = not_finite(match.weights)
    if broken:
        warn(
            f'{file}: {len(broken)} tensors contain NaN or infinity, such as {broken[0]}; the training probably diverged, so '
            'use an earlier checkpoint'
        )
    return Backbone(
        weights=with_counters(match.weights),
        path=str(file),
        source=match.source,
        part=part,
        renamed=match.names,
        dropped=[key for key in tensors if key not in match.names],
        origin=origin,
        settings=settings,
    )


def weights_file(path: str | Path) -> str | Path:
    """Return the file with the weights in a folder from a model hub. If `path` is not a folder, return it unchanged."""
    if is_released(path) or not Path(path).expanduser().is_dir():
        return path
    folder = Path(path).expanduser()
    for name in HUB_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UserError(
        f'{folder}: the folder has no {" or ".join(HUB_FILES)}; give the file with the weights',
        code='no-weights-in-folder',
    )


@dataclass(frozen=True)
class BackboneSearch:
    """Searches the tensors of a file for the backbone of the student or the teacher.

    A *known network* is a ResNet or a ViT in a layout that layouts.yaml lists.
    """

    path: str
    tensors: Mapping[str, Any]
    part: str
    network: Mapping[str, Tensor] | None = None

    def find(self) -> Named:
        """Return the backbone if the file has a known format. Otherwise return the only known network in the file."""
        form = detect_format(self.tensors)
        if form is None:
            return self._find_in_unknown_format()
        prefix = form.student if self.part == 'student' else form.teacher
        if prefix is None or not any(key.startswith(prefix) for key in self.tensors):
            raise self._absent(form)
        return self._read(prefix, form.name, form.pure)

    def find_below(self, prefix: str) -> Named:
        """Return the backbone whose keys start with a prefix that the user gave."""
        if not any(key.startswith(prefix) for key in self.tensors):
            raise UserError(
                f"{self.path}: no key begins with the prefix ('{prefix}'); its keys look like {list(self.tensors)[:3]}",
                code='unknown-prefix',
            )
        return self._read(prefix, f"prefix '{prefix}'", pure=True)

    def _find_in_unknown_format(self) -> Named:
        prefixes = self._prefixes()
        if self.part == 'teacher' or not prefixes:
            raise self._absent(None)
        # If there is no known network, `_read_known` raises an error that states the cause.
        return self._only_network('') or self._read_known(prefixes[0], '')

    def _absent(self, form: Format | None) -> UserError:
        """Return the error to raise if the file does not have the requested part."""
        if form is None:
            keys = list(self.tensors)[:3]
            content = f'its keys look like {keys}' if keys else 'it has no weights'
            return UserError(
                f'{self.path}: no {self.part} backbone of a known format ({content}); give a ResNet or ViT with the tensor '
                'names of mmairl, MoCo, mmpretrain, torchvision, timm, Hugging Face, VISSL or detectron2, or set the prefix of '
                'the keys',
                code='no-backbone',
            )
        detail = f" (no key starts with '{form.teacher}')" if form.teacher else ''
        return UserError(
            f'{self.path}: no {self.part} in this {form.name} checkpoint{detail}; use --part student',
            code='no-part',
        )

    def _read(self, prefix: str, source: str, pure: bool) -> Named:
        """Read the backbone whose keys start with a prefix.

        If the tensors with the prefix are not a known network, read the student from the only known network at a longer prefix.
        If there is no such network, read all tensors with the prefix under their own names. Raise an error instead if some
        of these tensors may belong to a head (`pure` is false), or if the user gave a network.
        """
        try:
            return self._read_known(prefix, source)
        except UserError as error:
            # Every key of the student starts with `prefix`, so only longer prefixes are searched.
            match = self._only_network(prefix) if prefix and self.part == 'student' else None
            if match:
                return match
            is_other = error.code in ('unknown-network', 'other-network')
            if pure and is_other and not self.network:
                return self._read_as_stored(prefix, source)
            raise

    def _only_network(self, within: str) -> Named | None:
        """Return the only known network whose keys start with `within`, or None if there is none.

        Raises:
            UserError: 'several-backbones' if there is more than one.
        """
        found: dict[str, Named] = {}
        for prefix in self._prefixes():
            inner = any(prefix.startswith(shorter) for shorter in found)
            if inner or not prefix.startswith(within) or TEACHER.search(prefix):
                continue
            with suppress(UserError):
                found[prefix] = self._read_known(
                    prefix, f"prefix '{prefix}'" if prefix else 'plain'
                )
        if len(found) > 1:
            raise UserError(
                f'{self.path}: several backbones, with the prefixes {", ".join(map(repr, found))}; choose one by --prefix',
                code='several-backbones',
            )
        for prefix, match in found.items():
            if prefix:
                message = f"{self.path}: the backbone is read below the prefix '{prefix}'"
                print_log(message, logger='current')
            return match
        return None

    def _prefixes(self) -> list[str]:
        """Return the prefixes that a known network or the user's network may have, from the shortest to the longest."""
        prefixes = set(layout_prefixes(self.tensors))
        if self.network:
            name = next(reversed(self.network)).removeprefix(TIMM_BACKBONE)
            ends = {key.removesuffix(name) for key in self.tensors if key.endswith(name)}
            prefixes |= {prefix for prefix in ends if prefix == '' or prefix.endswith('.')}
        return sorted(prefixes, key=len)

    def _below(self, prefix: str) -> dict[str, str]:
        """Return a dictionary from the names below a prefix to the keys of the file, which include the prefix."""
        begins = [(prefix, ''), *(LAST_STAGES if prefix == 'backbone.' else ())]
        keys: dict[str, str] = {}
        for begin, stage in begins:
            for key in self.tensors:
                if key.startswith(begin):
                    keys.setdefault(stage + key.removeprefix(begin), key)
        return keys

    def _read_known(self, prefix: str, source: str) -> Named:
        """Read a known network, or the user's network, whose keys start with a prefix.

        Raises:
            UserError: If the network is unknown or incomplete, or if a tensor is not recognized.
        """
        keys = self._below(prefix)
        required = self.network or {}
        stored = self._floats(keys, lambda name: name in required or not IGNORED.match(name))
        as_stored = Named(stored, {name: name for name in stored})
        layout = layout_of(keys)
        named = to_ours(stored, layout, self.path) if layout else as_stored
        if self.network:
            nested = {name: TIMM_BACKBONE + name for name in stored}
            in_timm = Named({nested[name]: value for name, value in stored.items()}, nested)
            named = self._closest([named, as_stored, in_timm])
        else:
            # The number of heads does not affect the tensors. Passing 1 avoids the warning that the number is unknown.
            network = backbone_of(with_counters(named.weights), self.path, heads=1)
            require_complete(named.weights, network, self.path)
        renamed = {keys[name]: ours for name, ours in named.names.items()}
        return Named(named.weights, renamed, source)

    def _closest(self, candidates: Sequence[Named]) -> Named:
        """Return the candidate whose tensors have the names of the user's network.

        The candidates have the same tensors under different names. If no candidate matches, raise the error of the candidate
        with the fewest missing and unknown names.
        """
        faults = [name_faults(with_counters(named.weights), self.network) for named in candidates]
        missing, unknown = best = min(faults, key=lambda fault: len(fault[0]) + len(fault[1]))
        if missing or unknown:
            raise other_architecture(self.path, missing, unknown)
        return candidates[faults.index(best)]

    def _read_as_stored(self, prefix: str, source: str) -> Named:
        """Read all tensors below a prefix under their own names. Users must give a config with the architecture."""
        keys = self._below(prefix)
        weights = self._floats(keys, lambda name: True)
        return Named(weights, {key: name for name, key in keys.items()}, source)

    def _floats(self, keys: Mapping[str, str], selects: Callable[[str], bool]) -> dict[str, Tensor]:
        """Return a dictionary from names without prefix to the selected tensors.

        Args:
            keys: Maps names without prefix to the keys of the file.
            selects: Function that returns whether a name is selected.

        Raises:
            UserError: 'no-floats' if a value is not a tensor of weights.
        """
        selected = {name: self.tensors[key] for name, key in keys.items() if selects(name)}
        for name, value in selected.items():
            kind = wrong_kind(value, whole=not name.endswith(FLOATS))
            if kind:
                raise UserError(
                    f'{self.path}: the weights {keys[name]} are {kind}; give a file whose weights are floats',
                    code='no-floats',
                )
        return selected


def with_counters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add the batch counters that some formats omit. The counters do not affect batch norms with a fixed momentum."""
    for key in [key for key in weights if key.endswith('.running_mean')]:
        weights.setdefault(key.replace('running_mean', 'num_batches_tracked'), torch.tensor(0))
    return weights


def read_tensors(path: str | Path) -> tuple[dict[str, Any], dict, dict[str, str]]:
    """Return the tensors of a checkpoint, its record of origin, and its run's settings.

    The names of tensors do not have the prefixes of wrappers such as DDP. A value that is not a tensor but has a dotted name
    is probably meant as a weight. It is returned too, so that an error can report its type.
    """
    loaded = load_checkpoint(path)
    inner = loaded
    # Training scripts nest the weights under one or more of these keys.
    while envelope := next((name for name in ENVELOPES if isinstance(inner.get(name), dict)), None):
        inner = inner[envelope]
    meta = loaded.get('meta')
    if isinstance(meta, dict):
        origin, settings = meta.get(ORIGIN), meta.get('settings')
    else:
        origin, settings = getattr(loaded, ORIGIN, None), None
    origin = dict(origin) if isinstance(origin, dict) else {}
    settings = settings if isinstance(settings, dict) else {}
    settings = {key: value for key, value in settings.items() if isinstance(key, str)}
    # Earlier versions of mmairl stored the source format as `format`. In safetensors, `format` is always 'pt'.
    stored_format = origin.pop('format', 'pt')
    if stored_format != 'pt':
        origin.setdefault('source_format', stored_format)
    return _flat(inner), origin, settings


def _flat(values: dict, prefix: str = '') -> dict[str, Any]:
    """Return a dictionary from dotted names to tensors. The names do not have the prefixes of wrappers such as DDP.

    Tensors in a dictionary under a key of NESTED are included. All other nested dictionaries are left out.
    """
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f'{prefix}{key}'
        while name.startswith(WRAPPERS):
            name = name.partition('.')[2]
        if isinstance(value, np.ndarray):
            # An array stays as it is if torch lacks its type of numbers.
            with suppress(TypeError, ValueError):
                value = torch.from_numpy(value)
        if isinstance(value, dict):
            flat |= _flat(value, f'{name}.') if key in NESTED else {}
        elif isinstance(value, (Tensor, np.ndarray)) or '.' in name:
            flat[name] = value
    return flat
