"""Read the settings files of model hubs, and check that mmairl's networks implement these settings.

The check is necessary because different networks can have the same tensors, such as ResNets with and without anti-aliased
strides. timm and Hugging Face store settings in `config.json`, and Hugging Face also in `preprocessor_config.json`. For each
field of `config.json`, hub_config.yaml lists the values that mmairl's network implements, or states that the field does not
affect features.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mmairl.errors import UserError
from mmairl.io import Declared, read_json, read_yaml

CONFIG = 'config.json'
PREPROCESSOR = 'preprocessor_config.json'
LARGEST_SIDE = 8192
INTERPOLATIONS = ('nearest', 'bilinear', 'bicubic')
PILLOW_INTERPOLATIONS = {0: 'nearest', 2: 'bilinear', 3: 'bicubic'}


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

    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)
    size: int = 224
    channels: int | None = None
    interpolation: str = 'bilinear'
    origin: str = ''


@dataclass(frozen=True)
class HubConfig:
    """The contents of the settings files next to a checkpoint. The content of a file that does not exist is empty."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)

    @property
    def timm(self) -> bool:
        return isinstance(self.config.get('architecture'), str)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of config.json, including those inside timm's `model_args`."""
        args = self.config.get('model_args')
        if not self.timm or not isinstance(args, dict):
            return self.config
        return {**self.config, **args, 'model_args': {}}

    @property
    def heads(self) -> Any:
        return self.config.get('num_attention_heads') or self.fields.get('num_heads')

    @property
    def norm_eps(self) -> float | None:
        """The epsilon of layer norms in Hugging Face's config.json, or None if the file does not state it."""
        value = self.config.get('layer_norm_eps')
        return float(value) if is_number(value) and 0 < value < 1 else None

    def input(self) -> Input | None:
        """Return the properties of images that the files state, or None if the files do not state any."""
        if {'image_mean', 'do_normalize', 'do_rescale'} & self.preprocessor.keys():
            return _hugging_face_input(self.preprocessor, self.path / PREPROCESSOR)
        # Early files of timm state the properties of images at the top level, not in `pretrained_cfg`.
        timm = self.config.get('pretrained_cfg') or self.config
        if isinstance(timm, dict) and ('mean' in timm or 'std' in timm):
            return _timm_input(timm, self.path / CONFIG)
        return None

    def require_network(self, network: Mapping[str, Any]) -> None:
        """Raise an error unless `config.json` describes this network.

        Args:
            network: The `backbone=` of a config.

        Raises:
            UserError: 'other-network' if a field is unknown or has a value that the network does not implement.
        """
        kind = network['type'].removeprefix('mmpretrain.').removesuffix('_CIFAR')
        path = self.path / CONFIG
        fields = self.fields
        table = (FIELDS.timm if self.timm else FIELDS.hugging_face)[kind]
        if network.get('gated'):
            accepted = {**table.accepted, 'hidden_act': ['silu']}
            table = msgspec.structs.replace(table, accepted=accepted)
        family = 'architecture' if self.timm else 'model_type'
        if family not in fields:
            # The file does not name its network, so only the fields that are listed for the detected network are checked.
            known = {key: value for key, value in fields.items() if key in table.accepted}
            table.require(known, path)
            return
        if not re.fullmatch(table.names, str(fields[family])):
            raise UserError(
                f"{path}: {family} does not match the weights ('{fields[family]}'); give a config with the backbone of this "
                'checkpoint',
                code='other-network',
            )
        table.require({key: value for key, value in fields.items() if key != family}, path)
        self._require_registers(network.get('registers', 0))

    def _require_registers(self, registers: int) -> None:
        """Raise an error if config.json states another number of registers than the weights have.

        The weights are probably incomplete in this case.
        """
        named = re.search(r'_reg(\d+)', self.config['architecture']) if self.timm else None
        if named:
            stated = int(named[1])
        else:
            name = 'reg_tokens' if self.timm else 'num_register_tokens'
            stated = self.fields.get(name, registers)
        if stated != registers:
            raise UserError(
                f'{self.path / CONFIG}: states {stated} registers, but the weights contain {registers}; give the complete '
                'weights of this network',
                code='other-network',
            )


class Network(Declared):
    """The fields of config.json for one network.

    Attributes:
        names: A regular expression for the names of the network.
        accepted: For each field, the values that mmairl's network implements.
        ignored: Groups of fields that do not affect features.
    """

    names: str
    accepted: dict[str, list[Any]]
    ignored: list[str]

    def require(self, fields: Mapping[str, Any], path: Path) -> None:
        """Raise an error unless each field is ignored or has an accepted value."""
        ignored = ' '.join(FIELDS.ignored[group] for group in self.ignored).split()
        for name, value in fields.items():
            if name in self.accepted:
                options = self.accepted[name]
                if not any(type(value) is type(right) and value == right for right in options):
                    raise UserError(
                        f"{path}: {name} must be {' or '.join(map(str, options))} ('{value}'), because mmairl implements no "
                        'other value; give a config with the backbone of this checkpoint',
                        code='other-network',
                    )
            elif name not in ignored:
                raise UserError(
                    f"{path}: unknown field '{name}' ('{value}'), which may change the network; give a config with the "
                    'backbone of this checkpoint, or remove the field if it does not affect features',
                    code='other-network',
                )


class Fields(Declared):
    """The content of hub_config.yaml."""

    ignored: dict[str, str]
    hugging_face: dict[str, Network]
    timm: dict[str, Network]


FIELDS = read_yaml(Path(__file__).with_suffix('.yaml'), Fields)


def hub_config(file: Path) -> HubConfig:
    """Return the settings files in the folder of `file`.

    Raises:
        UserError: If one of them is not a JSON object.
    """
    paths = [file.with_name(name) for name in (CONFIG, PREPROCESSOR)]
    return HubConfig(
        file.parent, *(read_json(path, dict) if path.is_file() else {} for path in paths)
    )


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parse_statistics(value: Any, name: str, path: str | Path, scale: float = 1.0) -> list[float]:
    """Return one number per channel from a field of a settings file, divided by `scale`. Text is parsed as JSON.

    >>> parse_statistics('[0.5, 0.5, 0.5]', 'mean', 'a.safetensors')
    [0.5, 0.5, 0.5]
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    numbers = [value] * 3 if is_number(value) else value
    valid = isinstance(numbers, (list, tuple)) and numbers and all(map(is_number, numbers))
    if not valid or (name.endswith('std') and min(numbers) <= 0):
        number = 'positive number' if name.endswith('std') else 'number'
        raise UserError(
            f"{path}: {name} must be one {number} per channel ('{value}'); correct the file, or pass mean and std",
            code='bad-statistics',
        )
    return [float(number) if scale == 1 else number / scale for number in numbers]


def side(value: Any, name: str, path: Path) -> int:
    """Return the smaller side of an image size, which may have any form that timm and Hugging Face use."""
    if isinstance(value, dict):
        value = [value[key] for key in ('height', 'width', 'shortest_edge') if key in value]
    sides = value[-2:] if isinstance(value, (list, tuple)) else [value]
    whole = [length for length in sides if isinstance(length, int) and 0 < length <= LARGEST_SIDE]
    if not sides or whole != list(sides):
        raise UserError(
            f"{path}: {name} must be a size in pixels ('{value}'); correct the file",
            code='bad-size',
        )
    return min(whole)


def _timm_input(fields: Mapping[str, Any], path: Path) -> Input:
    missing = [name for name in ('mean', 'std') if name not in fields]
    if missing:
        raise UserError(
            f'{path}: {missing[0]} is missing; add it to the file, or pass mean and std',
            code='bad-statistics',
        )
    shape = fields.get('input_size')
    interpolation = fields.get('interpolation')
    return Input(
        mean=parse_statistics(fields['mean'], 'mean', path),
        std=parse_statistics(fields['std'], 'std', path),
        size=Input.size if shape is None else side(shape, 'input_size', path),
        interpolation=interpolation if interpolation in INTERPOLATIONS else Input.interpolation,
        origin=path.name,
    )


def _hugging_face_input(fields: Mapping[str, Any], path: Path) -> Input:
    factor = fields.get('rescale_factor', 1 / 255) if fields.get('do_rescale', True) else 1
    if not is_number(factor) or factor <= 0:
        raise UserError(
            f"{path}: rescale_factor must be positive ('{factor}'); correct the file",
            code='bad-statistics',
        )
    # Hugging Face's mean and std are for pixel values from 0 to `scale`. mmairl's are for values from 0 to 1.
    scale = 255 * factor
    if math.isclose(scale, 1, rel_tol=1e-6):
        scale = 1.0
    raw = not fields.get('do_normalize', True)
    mean, std = (0.0, 1.0) if raw else (fields.get('image_mean'), fields.get('image_std'))
    # If images are cropped, the size is that of the crop.
    is_cropped = fields.get('do_center_crop', 'crop_size' in fields)
    name = 'crop_size' if is_cropped and fields.get('crop_size') is not None else 'size'
    size = fields.get(name)
    return Input(
        mean=parse_statistics(mean, 'image_mean', path, scale),
        std=parse_statistics(std, 'image_std', path, scale),
        size=Input.size if size is None else side(size, name, path),
        interpolation=PILLOW_INTERPOLATIONS.get(fields.get('resample'), Input.interpolation),
        origin=path.name,
    )
