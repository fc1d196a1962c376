"""Settings files of model hubs, and the values that mmairl's networks implement.

Weights do not determine a network: ResNets with anti-aliased strides have the same tensors as those without. timm and
Hugging Face write `config.json`, Hugging Face also `preprocessor_config.json`. Each field of `config.json` is either
compared with the values that mmairl's network implements, or listed as without influence on features.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmairl.errors import UserError
from mmairl.io import read_json

CONFIG = 'config.json'
PREPROCESSOR = 'preprocessor_config.json'
LARGEST_SIDE = 8192
INTERPOLATIONS = ('nearest', 'bilinear', 'bicubic')
PILLOW_INTERPOLATIONS = {0: 'nearest', 2: 'bilinear', 3: 'bicubic'}


@dataclass(frozen=True)
class Input:
    """The images a backbone expects.

    Args:
        mean: Mean of each channel, of values from 0 to 1.
        std: Standard deviation of each channel.
        size: Side of the crop in pixels.
        channels: Number of channels. None means 8-bit RGB.
        interpolation: How images are resized.
        origin: Where the statistics were found. '' means nowhere: they are ImageNet's.
    """

    mean: Sequence[float] = (0.485, 0.456, 0.406)
    std: Sequence[float] = (0.229, 0.224, 0.225)
    size: int = 224
    channels: int | None = None
    interpolation: str = 'bilinear'
    origin: str = ''


@dataclass(frozen=True)
class HubConfig:
    """The contents of the settings files next to a checkpoint; empty where there are none."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)
    preprocessor: dict[str, Any] = field(default_factory=dict)

    @property
    def timm(self) -> bool:
        return isinstance(self.config.get('architecture'), str)

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of config.json, with timm's `model_args` among them."""
        args = self.config.get('model_args')
        if not self.timm or not isinstance(args, dict):
            return self.config
        return {**self.config, **args, 'model_args': {}}

    @property
    def heads(self) -> Any:
        return self.config.get('num_attention_heads') or self.fields.get('num_heads')

    @property
    def norm_eps(self) -> float | None:
        """Return Hugging Face's epsilon of layer norms, or None if it is not stated."""
        value = self.config.get('layer_norm_eps')
        return float(value) if is_number(value) and 0 < value < 1 else None

    def input(self) -> Input | None:
        """Return the images that the files describe, or None if they do not describe any."""
        if {'image_mean', 'do_normalize', 'do_rescale'} & self.preprocessor.keys():
            return _hugging_face_input(self.preprocessor, self.path / PREPROCESSOR)
        # Early files of timm state the images without a section of their own.
        timm = self.config.get('pretrained_cfg') or self.config
        if isinstance(timm, dict) and ('mean' in timm or 'std' in timm):
            return _timm_input(timm, self.path / CONFIG)
        return None

    def require_network(self, network: Mapping[str, Any]) -> None:
        """Raise unless `config.json` describes this network, the `backbone=` of a config.

        Raises:
            UserError: 'other-network' if a field has a value that another network has, or is unknown.
        """
        kind = network['type'].removeprefix('mmpretrain.').removesuffix('_CIFAR')
        path = self.path / CONFIG
        fields = self.fields
        table = TIMM[kind] if self.timm else HUGGING_FACE[kind]
        if network.get('gated'):
            table = replace(table, accepted={**table.accepted, 'hidden_act': ['silu']})
        family = 'architecture' if self.timm else 'model_type'
        if family not in fields:
            # The file does not describe a network. Fields that it shares with Hugging Face must still agree.
            known = {key: value for key, value in fields.items() if key in table.accepted}
            table.require(known, path)
            return
        if not table.names.fullmatch(str(fields[family])):
            raise UserError(
                f"{path}: {family} is '{fields[family]}', which mmairl does not build from these weights; give a "
                'config with its backbone',
                code='other-network',
            )
        table.require({key: value for key, value in fields.items() if key != family}, path)
        self._require_registers(network.get('registers', 0))

    def _require_registers(self, registers: int) -> None:
        """Raise if config.json states another number of registers: such a file is incomplete."""
        named = re.search(r'_reg(\d+)', self.config['architecture']) if self.timm else None
        if named:
            stated = int(named[1])
        else:
            name = 'reg_tokens' if self.timm else 'num_register_tokens'
            stated = self.fields.get(name, registers)
        if stated != registers:
            raise UserError(
                f'{self.path / CONFIG}: the network has {stated} registers, the file {registers}; give a complete file',
                code='other-network',
            )


@dataclass(frozen=True)
class Table:
    """The fields of config.json for one network.

    Args:
        names: The names of the network.
        accepted: Values that our network implements, by field.
        ignored: Fields without influence on features, or that shapes of tensors show.
    """

    names: re.Pattern
    accepted: Mapping[str, Sequence[Any]]
    ignored: Collection[str]

    def require(self, fields: Mapping[str, Any], path: Path) -> None:
        """Raise unless every field is ignored or has an accepted value."""
        for name, value in fields.items():
            if name in self.accepted:
                options = self.accepted[name]
                if not any(type(value) is type(right) and value == right for right in options):
                    raise UserError(
                        f"{path}: {name} is '{value}', expected {' or '.join(map(str, options))}: mmairl builds no "
                        'such network from these weights; give a config with its backbone',
                        code='other-network',
                    )
            elif name not in self.ignored:
                raise UserError(
                    f"{path}: unknown field '{name}' ('{value}'), which may change the network; give a config with its "
                    'backbone, or remove the field if it has no influence on features',
                    code='other-network',
                )


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Fields of every configuration of Hugging Face: tasks, text generation, output formats, storage.
GENERIC = words(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels add_cross_attention architectures
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label image_size initializer_range
    is_decoder is_encoder_decoder label2id length_penalty license max_length min_length no_repeat_ngram_size num_beam_groups
    num_beams num_channels num_labels num_return_sequences output_attentions output_hidden_states output_scores pad_token_id
    prefix problem_type pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id
    suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class
    top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 use_cache
    """
)
# Fields that shapes of tensors show, that only training uses, or that select outputs that mmairl does not read.
BACKBONE = words('out_features out_indices _out_features _out_indices stage_names')
TRANSFORMER = words(
    """
    hidden_size num_hidden_layers num_attention_heads intermediate_size mlp_ratio patch_size qkv_bias hidden_dropout_prob
    attention_probs_dropout_prob attention_dropout drop_path_rate layerscale_value num_register_tokens layer_norm_eps
    encoder_stride pooler_act pooler_output_size use_mask_token use_swiglu_ffn apply_layernorm reshape_hidden_states
    mask_ratio norm_pix_loss decoder_hidden_size decoder_intermediate_size decoder_num_attention_heads decoder_num_hidden_layers
    """
)
ROTARY = words(
    """
    query_bias value_bias use_gated_mlp pos_embed_shift pos_embed_jitter pos_embed_rescale return_class_token
    """
)
HUGGING_FACE = {
    'ResNet': Table(
        re.compile('resnet'),
        dict(
            hidden_act=['relu'], downsample_in_first_stage=[False], downsample_in_bottleneck=[False]
        ),
        GENERIC | BACKBONE | {'embedding_size', 'hidden_sizes', 'depths', 'layer_type'},
    ),
    'VisionTransformer': Table(
        re.compile('vit|vit_mae|vit_msn|dinov2|dinov2_with_registers'),
        dict(hidden_act=['gelu']),
        GENERIC | BACKBONE | TRANSFORMER,
    ),
    'RotaryVisionTransformer': Table(
        re.compile('dinov3_vit'),
        dict(
            hidden_act=['gelu'],
            layer_norm_eps=[1e-5],
            rope_theta=[100.0, 100],
            rope_parameters=[dict(rope_theta=theta, rope_type='default') for theta in (100.0, 100)],
            key_bias=[False],
            proj_bias=[True],
            mlp_bias=[True],
        ),
        (GENERIC | BACKBONE | TRANSFORMER | ROTARY) - {'layer_norm_eps'},
    ),
}
# timm's fields: `pretrained_cfg`, which describes images and files, and the fields of early files.
TIMM_FIELDS = words(
    """
    num_classes num_features pretrained_cfg label_names label_descriptions license model_type architectures url hf_hub_id
    custom_load input_size fixed_input_size interpolation crop_pct crop_mode mean std pool_size first_conv classifier tag
    origin_url paper_name paper_ids notes test_input_size test_crop_pct test_interpolation min_input_size file source
    model_args transformers_version torch_dtype dtype id2label label2id num_labels initializer_range do_pooling
    """
)
# timm's `model_args` that shapes of tensors show or that only training uses.
RESNET_ARGUMENTS = words('in_chans drop_rate drop_path_rate channels')
VIT_ARGUMENTS = RESNET_ARGUMENTS | words(
    """
    img_size patch_size embed_dim depth num_heads mlp_ratio qkv_bias init_values class_token reg_tokens no_embed_class
    dynamic_img_size strict_img_size pos_drop_rate proj_drop_rate attn_drop_rate patch_drop_rate num_reg_tokens
    """
)
PATCHES = r'_patch\d+(_reg\d+)?(_\d+|_dinov2)(_miil)?'
TIMM = {
    'ResNet': Table(
        re.compile(r'(tv_|gluon_|ssl_|swsl_)?resnet(18|34|50|101|152|200)(_v1b)?'),
        dict(global_pool=['avg', '']),
        TIMM_FIELDS | RESNET_ARGUMENTS,
    ),
    'VisionTransformer': Table(
        re.compile(
            rf'(vit|deit3?)_(tiny|small|medium|base|large|huge|giant|gigantic){PATCHES}|flexivit_(small|base|large)'
        ),
        dict(global_pool=['token', 'avg', '']),
        TIMM_FIELDS | VIT_ARGUMENTS,
    ),
    'RotaryVisionTransformer': Table(
        re.compile(r'vit_(small|small_plus|base|large|huge_plus|7b)_patch\d+_dinov3(_qkvb)?'),
        dict(global_pool=['token', 'avg', '']),
        TIMM_FIELDS | VIT_ARGUMENTS,
    ),
}


def hub_config(file: Path) -> HubConfig:
    """Return the settings files in the folder of `file`.

    Raises:
        UserError: If one of them is not a JSON object.
    """
    contents = {}
    for name, key in ((CONFIG, 'config'), (PREPROCESSOR, 'preprocessor')):
        path = file.with_name(name)
        if path.is_file():
            contents[key] = read_json(path, dict)
    return HubConfig(file.parent, **contents)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def parse_statistics(value: Any, name: str, path: str | Path, scale: float = 1.0) -> list[float]:
    """Return one number per channel, divided by `scale`. Text is parsed as JSON.

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
        raise UserError(
            f"{path}: {name} must be one number per channel ('{value}'); correct it, or give other statistics",
            code='bad-statistics',
        )
    return [float(number) if scale == 1 else number / scale for number in numbers]


def side(value: Any, name: str, path: Path) -> int:
    """Return the smaller side of a size in any form that timm and Hugging Face use."""
    if isinstance(value, dict):
        value = [value[key] for key in ('height', 'width', 'shortest_edge') if key in value]
    sides = value[-2:] if isinstance(value, (list, tuple)) else [value]
    whole = [length for length in sides if isinstance(length, int) and 0 < length <= LARGEST_SIDE]
    if not sides or whole != list(sides):
        raise UserError(
            f"{path}: {name} must be a size in pixels ('{value}'); correct it", code='bad-size'
        )
    return min(whole)


def _timm_input(fields: Mapping[str, Any], path: Path) -> Input:
    missing = [name for name in ('mean', 'std') if name not in fields]
    if missing:
        raise UserError(
            f'{path}: {missing[0]} is missing; add it, or give the statistics',
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
            f"{path}: rescale_factor must be positive ('{factor}'); correct it",
            code='bad-statistics',
        )
    scale = 255 * factor  # the package's largest pixel value; ours is 1
    if math.isclose(scale, 1, rel_tol=1e-6):
        scale = 1.0
    raw = not fields.get('do_normalize', True)
    mean, std = (0.0, 1.0) if raw else (fields.get('image_mean'), fields.get('image_std'))
    # The size is that of the crop, if there is one.
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
