"""Read the backbone out of any checkpoint, by the formats of `weights.formats`: whole, and with weights that are floats."""

import ast
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.checkpoints.formats import (
    ENVELOPES,
    IGNORED,
    LAST_STAGES,
    NESTED,
    TEACHER,
    WRAPPED,
    WRAPPERS,
    Format,
    backbone_of,
    first_few,
    layout_of,
    prefixes_of,
    recognise,
    require_complete,
    to_ours,
)
from mmairl.checkpoints.hub_config import HubConfig, Input, hub_config, is_number, statistics
from mmairl.checkpoints.load import is_released, load_checkpoint, not_finite, wrong_kind
from mmairl.checkpoints.pickles import ORIGIN
from mmairl.errors import UserError, printable

LEARNED = (
    'weight',
    'bias',
    'running_mean',
    'running_var',
)  # the names that no counter or table of positions has
HUB_FILES = ('model.safetensors', 'pytorch_model.bin')


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

    @cached_property
    def hub(self) -> HubConfig:
        """The settings files next to a file that does not describe itself."""
        described = (
            self.settings
            or 'source_format' in self.origin
            or is_released(self.path)
            or not self.path
        )
        return HubConfig(Path()) if described else hub_config(Path(self.path))

    @property
    def heads(self) -> int | None:
        """The heads of a ViT by the file's record, its run's settings, a config.json next to it or its project, if any."""
        keys = ('num_heads', 'arch.num_heads', 'arch')
        told = [
            self.origin.get('heads'),
            *(self.settings.get(f'model.backbone.{key}') for key in keys),
        ]
        if told[-1]:
            from mmpretrain.models.backbones.vision_transformer import VisionTransformer

            told.append(VisionTransformer.arch_zoo.get(str(told[-1]), {}).get('num_heads'))
        told.append(self.hub.heads)
        if (
            'MoCo v3' in self.source
            and self.weights.get('pos_embed', torch.empty(0)).shape[-1] == 384
        ):
            told.append(12)
        return next((int(text) for text in told if re.fullmatch(r'[1-9]\d?', str(text))), None)

    @property
    def norm_eps(self) -> float | None:
        """The epsilon of a ViT's layer norms by the file's record or a config.json next to it, if any."""
        with suppress(ValueError):
            return (
                float(self.origin['norm_eps']) if 'norm_eps' in self.origin else self.hub.norm_eps
            )
        return None

    @property
    def input(self) -> Input:
        """The images that the backbone expects, by its run's settings, its record or the files next to it."""
        if self.settings:
            return input_of(self.settings)
        if 'mean' in self.origin and 'std' in self.origin:
            named = {
                name: statistics(self.origin[name], name, self.path) for name in ('mean', 'std')
            }
            size = str(self.origin.get('size', Input.size))
            return Input(
                **named,
                size=int(size) if re.fullmatch(r'[1-9]\d{0,3}', size) else Input.size,
                origin='its record',
            )
        if is_released(self.path):
            return Input(origin='torchvision')
        return self.hub.input() or Input()

    @property
    def record(self) -> dict:
        """The origin that a file made from this backbone stores."""
        known: dict[str, Any] = {'heads': self.heads, 'norm_eps': self.norm_eps}
        if (given := self.input).origin:
            known |= {'mean': list(given.mean), 'std': list(given.std), 'size': given.size}
        known = {name: value for name, value in known.items() if value is not None}
        found = {'file': Path(self.path).name, 'source_format': self.source, 'part': self.part}
        return {**self.origin, **known, **found}

    @property
    def network(self) -> dict:
        """The `backbone=` of a config that has exactly these weights.

        Raises:
            UserError: If it is no known network, or `config.json` next to the file describes another one.
        """
        found = backbone_of(self.weights, self.path, self.heads, self.norm_eps)
        width, heads = (found.get('arch', found).get(name) for name in ('embed_dims', 'num_heads'))
        if width and width % heads:
            raise UserError(
                f"{self.path}: {heads} attention heads do not divide the width ('{width}'); correct the number in config.json, "
                'or give a config with its backbone',
                code='other-network',
            )
        require_complete(self.weights, found, self.path)
        self.hub.require_network(found)
        if found['type'].endswith('_CIFAR'):
            return self._small_stem(found)
        return found

    def _small_stem(self, network: dict) -> dict:
        """Return the network with the padding of the 3x3 stem, which weights do not show."""
        if self.source.startswith('solo-learn'):
            return {**network, 'type': 'SoloLearnResNet'}
        warn(
            f"{self.path}: the padding of the ResNet's 3x3 stem is unknown; 1 is used. solo-learn pads 2: give a config with "
            "backbone type 'SoloLearnResNet' if it comes from there"
        )
        return network


def warn(text: str) -> None:
    print_log(printable(text), logger='current', level=logging.WARNING)


def warn_of_assumed_statistics(backbone: Backbone, how: str) -> None:
    """Warn that ImageNet's statistics are used because none are stated; `how` says how to give others."""
    mean, std = (', '.join(map(str, values)) for values in (Input.mean, Input.std))
    warn(
        f"{backbone.path}: neither the file nor a config.json or preprocessor_config.json next to it states its images' "
        f"statistics; ImageNet's are used (mean {mean}, std {std}): give others by {how}"
    )


def input_of(settings: Mapping[str, str]) -> Input:
    """Return the images of a training run of ours, as its settings state them.

    Settings come from a file: values of another type count as not stated.
    """
    ends = ('.mean', '.std', '.views', 'dataset.channels')
    values = {key: _literal(text) for key, text in settings.items() if key.endswith(ends)}
    stated = {}
    for name in ('mean', 'std'):
        numbers = values.get(f'model.data_preprocessor.{name}')
        if isinstance(numbers, (list, tuple)) and all(map(is_number, numbers)):
            stated[name] = numbers
    views = [value for key, value in values.items() if key.endswith('.views')]
    channels = [value for key, value in values.items() if key.endswith('.channels')]
    return Input(
        **stated,
        size=next(_sizes(views), Input.size),
        channels=next((value for value in channels if isinstance(value, int)), None),
        origin='its training run',
    )


def _literal(text: object) -> Any:
    try:
        return ast.literal_eval(text) if isinstance(text, str) else None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def _sizes(values: Any) -> Iterator[int]:
    """Yield the crop sizes in nested lists of transforms."""
    if isinstance(values, (list, tuple)):
        for value in values:
            yield from _sizes(value)
    elif isinstance(values, dict) and isinstance(values.get('size'), int):
        yield values['size']


def read_backbone(
    path: str | Path,
    part: str = 'student',
    prefix: str | None = None,
    network: Mapping[str, Tensor] | None = None,
) -> Backbone:
    """Return the backbone of the student or the teacher in a checkpoint of any known project.

    Args:
        path: A checkpoint, a folder of Hugging Face's with one, or a released model such as 'torchvision:resnet50'.
        part: 'student' or 'teacher'.
        prefix: The beginning of the keys of the backbone. None finds it.
        network: The tensors of the network to fill, if it is not a ResNet or ViT. Heads beyond it are left out.

    Raises:
        UserError: If no backbone is found, if it is incomplete, or if a tensor of the file is not accounted for.

    >>> read_backbone('moco_v2_200ep_pretrain.pth.tar', 'teacher').weights['conv1.weight'].shape  # doctest: +SKIP
    torch.Size([64, 3, 7, 7])
    """
    if part not in ('student', 'teacher'):
        raise UserError(
            f"part must be student or teacher ('{part}'); correct it", code='unknown-part'
        )
    file = weights_file(path)
    tensors, origin, settings = read_tensors(file)
    search = Search(str(file), tensors, part, network)
    weights, renamed, source = search.at(prefix) if prefix is not None else search.find()
    if broken := not_finite(weights):
        warn(
            f'{len(broken)} tensors of {file} hold NaN or infinity, as {broken[0]}: the run that made them has diverged'
        )
    dropped = [key for key in tensors if key not in renamed]
    return Backbone(
        with_counters(weights), str(file), source, part, renamed, dropped, origin, settings
    )


def weights_file(path: str | Path) -> str | Path:
    """Return the file of weights in a folder of Hugging Face's, or `path` if it is no folder."""
    if is_released(path) or not Path(path).expanduser().is_dir():
        return path
    folder = Path(path).expanduser()
    found = next((folder / name for name in HUB_FILES if (folder / name).is_file()), None)
    if found is None:
        raise UserError(
            f'{folder} is a folder without {" or ".join(HUB_FILES)}; give the file with the weights',
            code='no-weights-in-folder',
        )
    return found


Read = tuple[
    dict[str, Tensor], dict[str, str], str
]  # weights under our names, our name of each key, the source


@dataclass(frozen=True)
class Search:
    """Find one backbone among the tensors of a file."""

    path: str
    tensors: Mapping[str, Any]
    part: str
    network: Mapping[str, Tensor] | None = None

    def find(self) -> Read:
        """Read the backbone below the prefix of a known format, or below the only prefix that has a whole network."""
        form = recognise(self.tensors)
        prefix = form and (form.student if self.part == 'student' else form.teacher)
        if form and (prefix is None or not any(key.startswith(prefix) for key in self.tensors)):
            raise self.absent(form)
        error = self.absent(form)
        if form:
            try:
                return self.whole(prefix, form.name)
            except UserError as failed:
                error = failed
        # Where a format is known, another network of the file is never taken in place of its student or teacher.
        if self.part == 'student' and prefix != '':
            within = prefix or ''
            found = {
                place: read for place, read in self.whole_networks() if place.startswith(within)
            }
            if len(found) > 1:
                raise UserError(
                    f'{self.path}: backbones are below {", ".join(map(repr, found))}; give the prefix of one (--prefix)',
                    code='several-backbones',
                )
            if found:
                (place, read), *_ = found.items()
                if place not in SOURCES:
                    print_log(
                        printable(f"{self.path}: the backbone is read below the prefix '{place}'"),
                        logger='current',
                    )
                return read
        if (
            form
            and form.pure
            and error.code in ('unknown-network', 'other-network')
            and not self.network
        ):
            return self.as_stored(prefix, form.name)  # of a kind that a config must tell
        if form is None and (places := self.prefixes()):
            return self.whole(places[0], '')  # raises what is wrong with it
        raise error

    def absent(self, form: Format | None) -> UserError:
        """Return the error for a file in which no format has the asked part."""
        if form is None:
            seen = (
                f'its keys look like {list(self.tensors)[:3]}'
                if self.tensors
                else 'it has no weights at all'
            )
            return UserError(
                f'{self.path} holds no {self.part} backbone that mmairl knows: {seen}; give a ResNet or ViT by the names of '
                'mmairl, MoCo, mmpretrain, torchvision, timm, Hugging Face, VISSL or detectron2, or the prefix of its keys',
                code='no-backbone',
            )
        wanted = f" (no key starts with '{form.teacher}')" if form.teacher else ''
        return UserError(
            f'{self.path} holds no {self.part}{wanted}: by its keys it is {form.name}; use --part student',
            code='no-part',
        )

    def at(self, prefix: str) -> Read:
        """Read the backbone below a prefix that the user gave."""
        source = f"prefix '{prefix}'"
        if not any(key.startswith(prefix) for key in self.tensors):
            raise UserError(
                f"{self.path}: no key begins with the prefix ('{prefix}'); its keys look like {list(self.tensors)[:3]}",
                code='unknown-prefix',
            )
        try:
            return self.whole(prefix, source)
        except UserError as error:
            if error.code not in ('unknown-network', 'other-network') or layout_of(
                self.below(prefix)
            ):
                raise
            return self.as_stored(prefix, source)

    def whole_networks(self) -> Iterator[tuple[str, Read]]:
        """Yield each prefix with a whole network below it, unless a shorter prefix has it."""
        seen: list[str] = []
        for prefix in self.prefixes():
            if TEACHER.search(prefix) or any(prefix.startswith(shorter) for shorter in seen):
                continue
            with suppress(UserError):
                read = self.whole(prefix, SOURCES.get(prefix, f"prefix '{prefix}'"))
                seen.append(prefix)
                yield prefix, read

    def prefixes(self) -> list[str]:
        """Return the prefixes below which a known network may be, and, if one is to be filled, it, the shortest first."""
        found = set(prefixes_of(self.tensors))
        if self.network:
            name = next(reversed(self.network)).removeprefix(WRAPPED)
            ends = (key[: -len(name)] for key in self.tensors if key.endswith(name))
            found |= {end for end in ends if end == '' or end.endswith('.')}
        return sorted(found, key=len)

    def below(self, prefix: str) -> dict[str, str]:
        """Return the keys of the file below a prefix, by their names without it."""
        keys = {key.removeprefix(prefix): key for key in self.tensors if key.startswith(prefix)}
        if prefix == 'backbone.':
            for begin, stage in LAST_STAGES:
                for key in self.tensors:
                    if key.startswith(begin):
                        keys.setdefault(stage + key.removeprefix(begin), key)
        return keys

    def whole(self, prefix: str, source: str) -> Read:
        """Read the known network, or the network to fill, below a prefix.

        Raises:
            UserError: If it is another or incomplete, or if a tensor is not accounted for.
        """
        if self.network:
            return self.filled(prefix, source)
        keys = self.below(prefix)
        layout = layout_of(keys)
        tensors = self.floats(keys, lambda name: not IGNORED.match(name))
        weights, renamed = (
            to_ours(tensors, layout, self.path)
            if layout
            else (tensors, {name: name for name in tensors})
        )
        weights = with_counters(weights)
        # Tensors do not depend on the number of heads, of which `Backbone.network` may warn.
        require_complete(weights, backbone_of(weights, self.path, heads=1), self.path)
        return weights, {keys[name]: ours for name, ours in renamed.items()}, source

    def filled(self, prefix: str, source: str) -> Read:
        """Read the tensors of `network`, by the names of a known layout, as they are, or as TIMMBackbone wraps them."""
        keys = self.below(prefix)
        layout = layout_of(keys)
        tensors = self.floats(keys, lambda name: name in self.network or not IGNORED.match(name))
        namings = [(tensors, {name: name for name in tensors})]
        if layout and layout.tables:
            namings.insert(0, to_ours(tensors, layout, self.path))
        if all(name.startswith(WRAPPED) for name in self.network):
            namings.append(
                (
                    {WRAPPED + name: x for name, x in tensors.items()},
                    {name: WRAPPED + name for name in tensors},
                )
            )
        faults = []
        for named, renamed in namings:
            weights = with_counters(dict(named))
            missing = [name for name in self.network if name not in weights]
            unknown = [name for name in weights if name not in self.network]
            if not missing and not unknown:
                return weights, {keys[name]: ours for name, ours in renamed.items()}, source
            faults.append((len(missing) + len(unknown), missing, unknown))
        _, missing, unknown = min(faults, key=lambda fault: fault[0])
        parts = [
            *(f'it lacks {name}' for name in missing),
            *(f'it has {name} beyond the config' for name in unknown),
        ]
        raise UserError(
            f'checkpoint {self.path} holds another architecture: {first_few(parts, separator="; ")}; give the config it was '
            'trained with, or the prefix of another network in the file (--prefix)',
            code='other-network' if unknown else 'incomplete-network',
        )

    def as_stored(self, prefix: str, source: str) -> Read:
        """Read all tensors below a prefix under their own names."""
        keys = self.below(prefix)
        return (
            self.floats(keys, lambda name: True),
            {key: name for name, key in keys.items()},
            source,
        )

    def floats(self, keys: Mapping[str, str], selects: Callable[[str], bool]) -> dict[str, Tensor]:
        """Return the selected tensors by their names without prefix, all of which must be weights."""
        chosen = {name: self.tensors[key] for name, key in keys.items() if selects(name)}
        for name, value in chosen.items():
            if kind := wrong_kind(value, whole=not name.endswith(LEARNED)):
                raise UserError(
                    f'{self.path}: the weights {keys[name]} are {kind}; give a file whose weights are floats',
                    code='no-floats',
                )
        return chosen


PLAIN = 'plain (torchvision, timm, Hugging Face, detectron2)'
# Prefixes of files that are plain to their own package: the base models of Hugging Face.
SOURCES = dict.fromkeys(
    ('', 'vit.', 'resnet.', 'dinov2.', 'dinov2_with_registers.', 'dinov3_vit.', 'vit_mae.'), PLAIN
)


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
    origin, settings = (
        dict(noted) if isinstance(noted, dict) else {} for noted in (origin, settings)
    )
    # Files of before stored their source's format under the name that safetensors keep for 'pt'.
    if (before := origin.pop('format', 'pt')) != 'pt':
        origin.setdefault('source_format', before)
    return tensors, origin, settings


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
