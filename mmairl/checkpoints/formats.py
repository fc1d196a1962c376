"""How each project lays out a checkpoint and names the tensors of a backbone.

Where student and teacher are, and how the tensors are named, is a project's format. Our own names are torchvision's for
ResNets and mmpretrain's for ViTs.
"""

import json
import logging
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.registry import init_default_scope
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmairl.errors import UserError, building, printable

# What a checkpoint wraps its weights in, from the outside in.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
NESTED = ('trunk', 'heads')  # VISSL's weights lie one level down
# The stem of a ResNet or a ViT under each of the names that layouts give it.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token', 'conv_proj.')


@dataclass(frozen=True)
class Format:
    """One project's way to lay out a checkpoint: the prefixes of its student's backbone and of its teacher's, if any."""

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether nothing but the backbone lies below the prefix; then it may be of any kind, not a ResNet or ViT alone."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def fits(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


# Names of a teacher, which is never read in place of a student.
TEACHER = re.compile(r'teacher|momentum|target|ema|key|_k\.', re.IGNORECASE)
# Detectors of the C4 kind hold a backbone's last stage in their heads, detectron2's and mmdet's.
LAST_STAGES = (('roi_heads.res5.', 'res5.'), ('roi_head.shared_head.', ''))
# The most particular first: a format's names may hold another's.
FORMATS = (
    Format('mmselfsup (MoCo)', 'encoder_q.0.', 'encoder_k.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.module.0.'),
    Format('mmselfsup (BYOL)', 'online_net.0.', 'target_net.0.'),
    Format('MoCo v1 or v2', 'encoder_q.', 'encoder_k.'),
    Format('MoCo v3', 'base_encoder.', 'momentum_encoder.'),
    Format("the paper's release", 'online_encoder.', 'target_encoder.'),
    Format("the paper's release", 'student_encoder.', 'teacher_encoder.'),
    Format('solo-learn', 'encoder.', 'momentum_encoder.'),
    Format('solo-learn', 'backbone.', 'momentum_backbone.'),
    Format('lightly', 'backbone.', 'teacher_backbone.'),
    Format('lightly', 'backbone.', 'backbone_momentum.'),
    Format('stable-pretraining', 'backbone.student.', 'backbone.teacher.'),
    Format('mmairl', 'backbone.', 'teacher.backbone.'),
    Format('mmpretrain (MoCo)', 'backbone.', 'encoder_k.module.0.'),
    Format('mmpretrain (BYOL)', 'backbone.', 'target_net.module.0.'),
    Format('mmpretrain (MoCo v3)', 'backbone.', 'momentum_encoder.module.0.'),
    Format('detectron2 (FPN)', 'backbone.bottom_up.'),
    Format('mmairl or OpenMMLab', 'backbone.'),
    Format('VISSL', 'trunk._feature_blocks.'),
    Format('VISSL', 'trunk.base_model._feature_blocks.'),
    Format('VISSL', '_feature_blocks.'),
    Format('SimSiam', 'encoder.'),
    Format('student and teacher', 'student.', 'teacher.'),
    Format('plain (torchvision, timm, Hugging Face, detectron2)', ''),
)


def recognise(keys: Collection[str]) -> Format | None:
    """The format of a checkpoint with these keys: rather one whose teacher is there too, or one that has none."""

    def rank(form: Format) -> int:
        return (
            1 if form.teacher is None else 2 * all(not key.startswith(form.teacher) for key in keys)
        )

    return min((form for form in FORMATS if form.fits(keys)), key=rank, default=None)


Names = tuple[tuple[str, str], ...]

# Our names and another project's by pairs, tried on each key in this order and in either direction. What begins with a dot
# may be anywhere in a key, the rest is its beginning; `#` is a number.
DETECTRON2: Names = (
    ('bn1.', 'stem.conv1.norm.'),
    ('conv1.', 'stem.conv1.'),
    ('layer1.', 'res2.'),
    ('layer2.', 'res3.'),
    ('layer3.', 'res4.'),
    ('layer4.', 'res5.'),
    ('.downsample.1.', '.shortcut.norm.'),
    ('.downsample.0.', '.shortcut.'),
    ('.bn#.', '.conv#.norm.'),
)
# torchvision's children one after another, as lightly's examples have them, and Hugging Face's ResNets.
SEQUENTIAL: Names = (
    ('conv1.', '0.'),
    ('bn1.', '1.'),
    *((f'layer{stage}.', f'{stage + 3}.') for stage in (1, 2, 3, 4)),
)
STAGES: Names = (
    ('conv1.', 'embedder.embedder.convolution.'),
    ('bn1.', 'embedder.embedder.normalization.'),
    *((f'layer{stage}.', f'encoder.stages.{stage - 1}.layers.') for stage in (1, 2, 3, 4)),
    ('.downsample.0.', '.shortcut.convolution.'),
    ('.downsample.1.', '.shortcut.normalization.'),
    *((f'.conv{at}.', f'.layer.{at - 1}.convolution.') for at in (1, 2, 3)),
    *((f'.bn{at}.', f'.layer.{at - 1}.normalization.') for at in (1, 2, 3)),
)
TIMM: Names = (
    ('ln1.', 'norm.'),
    ('layers.#.ln#.', 'blocks.#.norm#.'),
    ('layers.#.attn.gamma1.weight', 'blocks.#.ls1.gamma'),
    ('layers.#.ffn.gamma2.weight', 'blocks.#.ls2.gamma'),
    ('layers.#.ffn.w#.', 'blocks.#.mlp.w#.'),
    ('layers.#.ffn.layers.0.0.', 'blocks.#.mlp.fc1.'),
    ('layers.#.ffn.layers.1.', 'blocks.#.mlp.fc2.'),
    ('layers.', 'blocks.'),
    ('patch_embed.projection.', 'patch_embed.proj.'),
)
TORCHVISION_VIT: Names = (
    ('cls_token', 'class_token'),
    ('pos_embed', 'encoder.pos_embedding'),
    ('patch_embed.projection.', 'conv_proj.'),
    ('ln1.', 'encoder.ln.'),
    ('.attn.qkv.', '.self_attention.in_proj_'),
    ('.attn.proj.', '.self_attention.out_proj.'),
    ('.ffn.layers.0.0.', '.mlp.0.'),
    ('.ffn.layers.1.', '.mlp.3.'),
    ('layers.#.ln#.', 'encoder.layers.encoder_layer_#.ln_#.'),
    ('layers.', 'encoder.layers.encoder_layer_'),
)
# timm's names and Hugging Face's, of its ViT (DINO), Dinov2 and Dinov2WithRegisters, where qkv are three tensors.
HUGGING_FACE: Names = (
    ('cls_token', 'embeddings.cls_token'),
    ('reg_token', 'embeddings.register_tokens'),
    ('pos_embed', 'embeddings.position_embeddings'),
    ('patch_embed.proj.', 'embeddings.patch_embeddings.projection.'),
    ('norm.', 'layernorm.'),
    ('blocks.', 'encoder.layer.'),
    ('.norm1.', '.layernorm_before.'),
    ('.norm2.', '.layernorm_after.'),
    ('.attn.qkv.', '.attention.attention.query.'),
    ('.attn.proj.', '.attention.output.dense.'),
    ('.ls#.gamma', '.layer_scale#.lambda1'),
    ('.mlp.w12.', '.mlp.weights_in.'),
    ('.mlp.w3.', '.mlp.weights_out.'),
    ('.mlp.fc1.', '.intermediate.dense.'),
    ('.mlp.fc2.', '.output.dense.'),
)
# timm's DINOv3, which our network of it holds as `vit`, and Hugging Face's.
DINOV3: Names = (('vit.', ''),)
HUGGING_FACE_DINOV3: Names = (
    ('cls_token', 'embeddings.cls_token'),
    ('reg_token', 'embeddings.register_tokens'),
    ('patch_embed.proj.', 'embeddings.patch_embeddings.'),
    ('blocks.', 'layer.'),
    ('.attn.qkv.weight', '.attention.q_proj.weight'),
    ('.attn.q_bias', '.attention.q_proj.bias'),
    ('.attn.v_bias', '.attention.v_proj.bias'),
    ('.attn.proj.', '.attention.o_proj.'),
    ('.gamma_#', '.layer_scale#.lambda1'),
    ('.mlp.fc1_g.', '.mlp.gate_proj.'),
    ('.mlp.fc2.', '.mlp.down_proj.'),
)


@dataclass(frozen=True)
class Layout:
    """One way to name the tensors of a backbone.

    Args:
        name: The name in messages.
        marks: Keys that every file of this layout has. The first also finds its prefix.
        tables: Renames from our names to the file's, the last step first.
        without: A key that no file of this layout has.
    """

    name: str
    marks: tuple[str, ...]
    tables: tuple[Names, ...] = ()
    without: str = ''

    def fits(self, keys: Collection[str], prefix: str = '') -> bool:
        return all(prefix + mark in keys for mark in self.marks) and not (
            self.without and prefix + self.without in keys
        )


# The most particular first.
LAYOUTS = (
    Layout('detectron2', ('stem.conv1.weight', 'res2.0.conv1.weight'), (DETECTRON2,)),
    Layout("torchvision's ResNet in a Sequential", ('4.0.conv1.weight', '0.weight'), (SEQUENTIAL,)),
    Layout("Hugging Face's ResNet", ('embedder.embedder.convolution.weight',), (STAGES,)),
    Layout("torchvision's ViT", ('conv_proj.weight', 'class_token'), (TORCHVISION_VIT,)),
    Layout(
        "Hugging Face's DINOv3 with gates",
        (
            'embeddings.patch_embeddings.weight',
            'embeddings.cls_token',
            'layer.0.mlp.gate_proj.weight',
        ),
        ((*HUGGING_FACE_DINOV3, ('.mlp.fc1_x.', '.mlp.up_proj.')), DINOV3),
    ),
    Layout(
        "Hugging Face's DINOv3",
        ('embeddings.patch_embeddings.weight', 'embeddings.cls_token'),
        ((*HUGGING_FACE_DINOV3, ('.mlp.fc1.', '.mlp.up_proj.')), DINOV3),
    ),
    Layout(
        "Hugging Face's ViT",
        ('embeddings.patch_embeddings.projection.weight', 'embeddings.cls_token'),
        (HUGGING_FACE, TIMM),
    ),
    Layout(
        "timm's DINOv3",
        ('reg_token', 'cls_token', 'blocks.0.norm1.weight'),
        (DINOV3,),
        without='pos_embed',
    ),
    Layout("timm's ViT", ('patch_embed.proj.weight', 'blocks.0.norm1.weight'), (TIMM,)),
    Layout("mmairl's DINOv3", ('vit.cls_token', 'vit.blocks.0.norm1.weight')),
    Layout("mmpretrain's ViT", ('patch_embed.projection.weight', 'layers.0.ln1.weight')),
    Layout("torchvision's ResNet", ('layer1.0.conv1.weight', 'conv1.weight')),
)
# Tensors next to a backbone that its features do not depend on: heads, tokens of masked patches, queues, counted angles.
IGNORED = re.compile(
    r'(fc|heads?|head_\w+|classifier\w*|linear|projector\w*|projection\w*|predict\w+|prototypes|decoder\w*|last_layer|'
    r'mask_token|masked_embed|embeddings\.mask_token|pooler|queue\w*|stem\.fc|rope\.periods|rope_embeddings\.inv_freq)(\.|$)'
)
WRAPPED = 'timm_model.'  # what mmpretrain's TIMMBackbone puts before timm's names


def layout_of(keys: Collection[str]) -> Layout | None:
    """Return the layout of these keys, which have no prefix."""
    return next((layout for layout in LAYOUTS if layout.fits(keys)), None)


def prefixes_of(keys: Collection[str]) -> list[str]:
    """Return each prefix below which the keys have a known layout, the shortest first."""
    marks = {layout.marks[0] for layout in LAYOUTS}
    ends = {key[: -len(mark)] for key in keys for mark in marks if key.endswith(mark)}
    whole = [end for end in ends if end == '' or (end.endswith('.') and not end.endswith(WRAPPED))]
    return sorted(
        (end for end in whole if any(layout.fits(keys, end) for layout in LAYOUTS)), key=len
    )


def to_ours(
    tensors: Mapping[str, Tensor], layout: Layout, path: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file without prefix under our names, and our name of each key.

    Raises:
        UserError: 'duplicate-tensor' if two keys have the same name of ours.
    """
    joined, origins = joined_attention(tensors)
    renamed = {key: key for key in joined}
    for table in layout.tables:
        renamed = {key: rename(name, table, to_ours=True) for key, name in renamed.items()}
    first: dict[str, str] = {}
    for key, name in renamed.items():
        if (other := first.setdefault(name, key)) != key:
            raise UserError(
                f"{path}: '{other}' and '{key}' are the same tensor by the names of {layout.name}; remove one",
                code='duplicate-tensor',
            )
    weights = with_registers({renamed[key]: value for key, value in joined.items()})
    return weights, {key: renamed[joint] for key, joint in origins.items()}


def rename(key: str, names: Names, to_ours: bool = False) -> str:
    for pair in names:
        old, new = reversed(pair) if to_ours else pair
        pattern = ('' if old.startswith('.') else '^') + re.escape(old).replace(r'\#', r'(\d+)')
        key = re.sub(
            pattern, lambda match, new=new: new.replace('#', '{}').format(*match.groups()), key
        )
    return key


def joined_attention(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Concatenate Hugging Face's query, key and value where all three exist and have one shape.

    Returns:
        The tensors, and for each key of `tensors` the key of the result that holds it.
    """
    joined = dict(tensors)
    origins = {key: key for key in tensors}
    for query in tensors:
        parts = [
            query,
            *(
                query.replace('query', name).replace('q_proj', f'{name[0]}_proj')
                for name in ('key', 'value')
            ),
        ]
        if len(set(parts)) < 3 or not all(part in joined for part in parts):
            continue
        if len({tensors[part].shape for part in parts}) > 1 or tensors[query].ndim == 0:
            continue
        joined[query] = torch.cat([joined[query], *map(joined.pop, parts[1:])])
        origins |= dict.fromkeys(parts, query)
    return joined, origins


def with_registers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge a ViT's register tokens into its class token, and add zeros to the table of positions for each of them.

    This is how models/backbones.py stores them. The class token also gets a position of zeros if the file has none for it.
    Tokens of unexpected shapes are returned as they are.
    """
    weights = dict(weights)
    names = [
        key for key in ('cls_token', 'reg_token', 'register_tokens', 'pos_embed') if key in weights
    ]
    if (
        'cls_token' not in names
        or 'pos_embed' not in names
        or any(weights[key].ndim != 3 for key in names)
    ):
        return weights
    if len({weights[key].shape[::2] for key in names}) > 1 or weights['cls_token'].shape[1] != 1:
        return weights
    registers = [weights.pop(key) for key in names[1:-1]]
    weights['cls_token'] = torch.cat([weights['cls_token'], *registers], dim=1)
    places = weights['pos_embed']
    own = int(
        math.isqrt(places.shape[1]) ** 2 != places.shape[1]
    )  # of the class token, next to the square of patches
    zeros = places.new_zeros(1, weights['cls_token'].shape[1] - own, places.shape[2])
    weights['pos_embed'] = torch.cat([places[:, :own], zeros, places[:, own:]], dim=1)
    return weights


# Blocks per stage, and whether a block is a bottleneck, to the depth.
DEPTHS = {
    ((2, 2, 2, 2), False): 18,
    ((3, 4, 6, 3), False): 34,
    ((3, 4, 6, 3), True): 50,
    ((3, 4, 23, 3), True): 101,
    ((3, 8, 36, 3), True): 152,
    ((3, 24, 36, 3), True): 200,
}


# The heads of released ViTs, to the width. MoCo v3's of 384 has 12.
HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16}


def sizes(weights: Mapping[str, Tensor], key: str, ndim: int, path: str) -> torch.Size:
    """Return the shape of a tensor that describes its network.

    Raises:
        UserError: 'incomplete-network' if it is missing or has another number of dimensions.
    """
    if key not in weights:
        raise UserError(
            f"{path}: '{key}' is missing; give a file with the whole backbone",
            code='incomplete-network',
        )
    if weights[key].ndim != ndim:
        raise UserError(
            f"{path}: '{key}' must have {ndim} dimensions ('{tuple(weights[key].shape)}'); give the config of its network",
            code='other-network',
        )
    return weights[key].shape


def numbers(weights: Mapping[str, Tensor], begin: str) -> int:
    """Return how many numbers follow `begin` in the keys."""
    found = (re.match(rf'{re.escape(begin)}(\d+)\.', key) for key in weights)
    return len({match[1] for match in found if match})


def backbone_of(
    weights: Mapping[str, Tensor],
    path: str = 'the checkpoint',
    heads: int | None = None,
    norm_eps: float | None = None,
) -> dict:
    """Return the `backbone=` of a config for weights under our names.

    Args:
        weights: Tensors of a ResNet, of a ViT with a class token, or of DINOv3's ViT.
        path: The file, for messages.
        heads: Attention heads of a ViT, which tensors do not show. None takes those of released ViTs of this width.
        norm_eps: Epsilon of a ViT's layer norms. None is 1e-6.

    Raises:
        UserError: 'unknown-network' for another network, 'incomplete-network' if a tensor is missing.
    """
    if 'vit.cls_token' in weights:
        return dinov3_of(weights, heads, path)
    return (
        vit_of(weights, path, heads, norm_eps)
        if 'cls_token' in weights
        else resnet_of(weights, path)
    )


class WithoutValues(TorchFunctionMode):
    """Create parameters without memory. With `torch.device('meta')`, mmpretrain's ResNet could not read its drop rates."""

    def __torch_function__(
        self, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.empty, torch.zeros, torch.ones) and kwargs.get('device') is None:
            kwargs['device'] = 'meta'
        return func(*args, **kwargs)


def tensors_of(network: Mapping) -> Mapping[str, Tensor]:
    """Return the names and shapes of a known network's tensors, without values."""
    return _tensors_of(json.dumps(network, sort_keys=True))


@lru_cache(64)
def _tensors_of(network: str) -> Mapping[str, Tensor]:
    import mmairl.models  # noqa: F401  registers mmpretrain's backbones, which takes seconds
    from mmairl.registry import MODELS

    init_default_scope('mmairl')
    with building('the network that the weights show'), WithoutValues():
        return MODELS.build(json.loads(network)).state_dict()


def require_complete(weights: Mapping[str, Tensor], network: Mapping, path: str) -> None:
    """Raise unless the weights are exactly the tensors of a known network.

    Raises:
        UserError: 'incomplete-network' if tensors are missing and nothing else is wrong, 'other-network' otherwise.
    """
    expected = tensors_of(network)
    missing = [key for key in expected if key not in weights]
    unknown = [key for key in weights if key not in expected]
    shaped = [
        f"'{key}' has the shape {tuple(value.shape)} and not {tuple(expected[key].shape)}"
        for key, value in weights.items()
        if key in expected and value.shape != expected[key].shape
    ]
    kind = (
        f'{network["type"].removeprefix("mmpretrain.")}-{network["depth"]}'
        if 'depth' in network
        else network['type']
    )
    if not missing and not unknown and not shaped:
        return
    parts = [
        f'{what}: {first_few(keys)}'
        for what, keys in (('missing', missing), ('unknown', unknown))
        if keys
    ]
    raise UserError(
        f'{path}: tensors are not those of a {kind} ({"; ".join([*parts, *shaped[:3]])}); give a config with its backbone, or '
        'the prefix of another network in the file',
        code='other-network' if unknown or shaped else 'incomplete-network',
    )


def first_few(names: Collection[str], most: int = 3, separator: str = ', ') -> str:
    shown = separator.join(list(names)[:most])
    return f'{shown} (and {len(names) - most} more)' if len(names) > most else shown


def usual_heads(places: Tensor, tokens: int, path: str) -> int:
    """The heads of a ViT that does not tell them, from its table of positions; a warning unless all released ones have them."""
    width = places.shape[2]
    moco = width == 384 and set(places[0, tokens].tolist()) == {
        0,
        1,
    }  # its table of sines, which others learn
    heads = 12 if moco else HEADS.get(width, max(1, width // 64))
    if moco or width not in HEADS:
        said = f'{path} does not tell the heads of its ViT: {heads} of {width // heads} dimensions are taken'
        print_log(
            f'{printable(said)}; give a config if it has others',
            logger='current',
            level=logging.WARNING,
        )
    return heads


def in_channels(channels: int) -> dict[str, int]:
    """Name the channels of a network that does not take three: those of three take what a viewer shows, RGB of 8 bits."""
    return {} if channels == 3 else dict(in_channels=channels)


def dinov3_of(
    weights: Mapping[str, Tensor], heads: int | None = None, path: str = 'the checkpoint'
) -> dict:
    """Return the `backbone=` of DINOv3's ViT. Heads have 64 dimensions, and 128 in the one of 7 billion weights."""
    width, channels, patch, _ = sizes(weights, 'vit.patch_embed.proj.weight', 4, path)
    return dict(
        type='RotaryVisionTransformer',
        embed_dims=width,
        num_layers=numbers(weights, 'vit.blocks.'),
        num_heads=heads or max(1, width // (128 if width == 4096 else 64)),
        feedforward_channels=sizes(weights, 'vit.blocks.0.mlp.fc2.weight', 2, path)[1],
        registers=sizes(weights, 'vit.reg_token', 3, path)[1],
        patch_size=patch,
        **in_channels(channels),
        qkv_bias='vit.blocks.0.attn.q_bias' in weights,
        gated='vit.blocks.0.mlp.fc1_g.weight' in weights,
    )


def vit_of(
    weights: Mapping[str, Tensor],
    path: str,
    heads: int | None = None,
    norm_eps: float | None = None,
) -> dict:
    if 'pos_embed' not in weights:
        raise UserError(
            f"{path}: the ViT has no table of positions, and not the names of timm's or Hugging Face's DINOv3; give weights of "
            'DINO, DINOv2, DINOv3 or DeiT, or a config with its backbone',
            code='unknown-network',
        )
    width, channels, patch, _ = sizes(weights, 'patch_embed.projection.weight', 4, path)
    tokens = sizes(weights, 'cls_token', 3, path)[1]
    places = sizes(weights, 'pos_embed', 3, path)[1]
    gated = 'layers.0.ffn.w3.weight' in weights
    if gated:
        inner = sizes(weights, 'layers.0.ffn.w3.weight', 2, path)[1] * 3 // 2
    else:
        inner = sizes(weights, 'layers.0.ffn.layers.0.0.bias', 1, path)[0]
    heads = heads or usual_heads(weights['pos_embed'], tokens, path)
    arch = dict(
        embed_dims=width,
        num_layers=numbers(weights, 'layers.'),
        num_heads=heads,
        feedforward_channels=inner,
    )
    return dict(
        type='VisionTransformer',
        arch=arch,
        registers=tokens - 1,
        img_size=math.isqrt(max(0, places - tokens)) * patch,
        patch_size=patch,
        **in_channels(channels),
        qkv_bias='layers.0.attn.qkv.bias' in weights,
        layer_scale_init_value=float('layers.0.attn.gamma1.weight' in weights),
        layer_cfgs=dict(ffn_type='swiglu_fused' if gated else 'origin'),
        **({} if norm_eps in (None, 1e-6) else dict(norm_cfg=dict(type='LN', eps=norm_eps))),
    )


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict:
    """Return the `backbone=` of a config for a ResNet's weights.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    blocks = {
        tuple(map(int, match.groups()))
        for key in weights
        if (match := re.match(r'layer(\d)\.(\d+)\.', key))
    }
    stages = tuple(sum(stage == number for stage, _ in blocks) for number in (1, 2, 3, 4))
    if 'conv1.weight' not in weights or not blocks:
        raise UserError(
            f'{path} holds no ResNet or ViT whose layout mmairl knows (keys: {first_few(weights)}); give a config with its '
            'backbone',
            code='unknown-network',
        )
    if 0 in stages:
        raise UserError(
            f"{path}: the ResNet has no 'layer{stages.index(0) + 1}'; give a file with the whole backbone",
            code='incomplete-network',
        )
    depth = DEPTHS.get((stages, 'layer1.0.conv3.weight' in weights))
    if depth is None:
        raise UserError(
            f'{path} holds no ResNet whose depth is known (blocks {stages}); give a config with its backbone',
            code='unknown-network',
        )
    stem_channels, channels, _, side = sizes(weights, 'conv1.weight', 4, path)
    return dict(
        type='mmpretrain.ResNet_CIFAR' if side == 3 else 'ResNet',  # by its stem
        depth=depth,
        stem_channels=stem_channels,
        base_channels=sizes(weights, 'layer1.0.conv1.weight', 4, path)[0],
        **in_channels(channels),
    )
