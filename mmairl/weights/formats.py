"""How each project lays out a checkpoint and names the tensors of a backbone.

Where student and teacher are, and how the tensors are named, is a project's format. Our own names are torchvision's for
ResNets and mmpretrain's for ViTs.
"""

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from mmengine.logging import print_log
from torch import Tensor

from mmairl.errors import UserError, printable

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
    Format('plain (torchvision, timm, Hugging Face, detectron2)', ''),
)


def recognise(keys: Collection[str]) -> Format | None:
    """The format of a checkpoint with these keys: rather one whose teacher is there too, or one that has none."""

    def rank(form: Format) -> int:
        return 1 if form.teacher is None else 2 * all(not key.startswith(form.teacher) for key in keys)

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
# The first name of every tensor of a ResNet or ViT, in any layout; what begins otherwise is a head.
BACKBONE = re.compile(
    r'(conv1|bn1|layer[1-4]|stem|res[2-5]|vit|cls_token|pos_embed|reg_token|register_tokens|patch_embed|blocks|norm|layers|ln1|pre_norm|'
    r'class_token|conv_proj|encoder\.(?:pos_embedding|ln|layers\.encoder_layer_\d+))(\.|$)'
)


def rename(key: str, names: Names, to_ours: bool = False) -> str:
    for pair in names:
        old, new = reversed(pair) if to_ours else pair
        pattern = ('' if old.startswith('.') else '^') + re.escape(old).replace(r'\#', r'(\d+)')
        key = re.sub(pattern, lambda match, new=new: new.replace('#', '{}').format(*match.groups()), key)
    return key


def names_of(keys: Iterable[str]) -> Names:
    """The names that these keys, free of any prefix, have in place of ours."""
    keys = set(keys)
    if 'stem.conv1.weight' in keys:
        return DETECTRON2
    if '4.0.conv1.weight' in keys:
        return SEQUENTIAL
    if 'conv_proj.weight' in keys:
        return TORCHVISION_VIT
    if not any(key.startswith('blocks.') for key in keys):
        return ()
    return DINOV3 if 'blocks.0.gamma_1' in keys and 'pos_embed' not in keys else TIMM


def of_hugging_face(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a ViT of Hugging Face's by timm's names, with qkv in one, and of a ResNet's by ours."""
    if any(key.endswith(STAGES[0][1] + 'weight') for key in tensors):
        return {rename(key.removeprefix('resnet.'), STAGES, to_ours=True): value for key, value in tensors.items()}
    table = next((key for key in tensors if key.endswith('embeddings.cls_token')), None)
    if table is None:
        return dict(tensors)
    bare = {key.removeprefix(table.removesuffix('embeddings.cls_token')): value for key, value in tensors.items()}
    for key in [
        key for key in bare if '.attention.attention.query.' in key or key.endswith('.attention.q_proj.weight')
    ]:
        others = [key.replace('query', name).replace('q_proj', f'{name[0]}_proj') for name in ('key', 'value')]
        bare[key] = torch.cat([bare[key], *map(bare.pop, others)])
    names = HUGGING_FACE
    if 'layer.0.norm1.weight' in bare:
        gated = (('.mlp.fc1_x.' if 'layer.0.mlp.gate_proj.weight' in bare else '.mlp.fc1.', '.mlp.up_proj.'),)
        names = HUGGING_FACE_DINOV3 + gated
    return {rename(key, names, to_ours=True): value for key, value in bare.items()}


def with_registers(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a ViT's weights with its register tokens behind the class token, and a position, of zeros, for each of them.

    So the network of models/vit.py has them. The class token gets a position of zeros where the file has none.
    """
    weights = dict(weights)
    registers = [weights.pop(key) for key in ('reg_token', 'register_tokens') if key in weights]
    places = weights.get('pos_embed')
    if places is None or 'cls_token' not in weights or weights['cls_token'].shape[1] > 1:
        return weights
    weights['cls_token'] = torch.cat([weights['cls_token'], *registers], dim=1)
    own = int(math.isqrt(places.shape[1]) ** 2 != places.shape[1])  # of the class token, beside the square of patches
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


def backbone_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint', heads: int | None = None) -> dict:
    """The `backbone=` of a config that these weights fit: a ResNet, or a ViT with a class token and so many `heads`."""
    if 'vit.cls_token' in weights:
        return dinov3_of(weights, heads)
    return vit_of(weights, path, heads) if 'cls_token' in weights else resnet_of(weights, path)


def usual_heads(places: Tensor, tokens: int, path: str) -> int:
    """The heads of a ViT that does not tell them, from its table of positions; a warning unless all released ones have them."""
    width = places.shape[2]
    moco = width == 384 and set(places[0, tokens].tolist()) == {0, 1}  # its table of sines, which others learn
    heads = 12 if moco else HEADS.get(width, max(1, width // 64))
    if moco or width not in HEADS:
        said = f'{path} does not tell the heads of its ViT: {heads} of {width // heads} dimensions are taken'
        print_log(f'{printable(said)}; give a config if it has others', logger='current', level=logging.WARNING)
    return heads


def in_channels(channels: int) -> dict[str, int]:
    """Name the channels of a network that does not take three: those of three take what a viewer shows, RGB of 8 bits."""
    return {} if channels == 3 else dict(in_channels=channels)


def dinov3_of(weights: Mapping[str, Tensor], heads: int | None = None) -> dict:
    """The `backbone=` of DINOv3's ViT. Heads have 64 dimensions, and 128 in the one of 7 billion weights."""
    width, channels, patch, _ = weights['vit.patch_embed.proj.weight'].shape
    return dict(
        type='RotaryVisionTransformer',
        embed_dims=width,
        num_layers=1 + max(int(key.split('.')[2]) for key in weights if key.startswith('vit.blocks.')),
        num_heads=heads or max(1, width // (128 if width == 4096 else 64)),
        feedforward_channels=weights['vit.blocks.0.mlp.fc2.weight'].shape[1],
        registers=weights['vit.reg_token'].shape[1],
        patch_size=patch,
        **in_channels(channels),
        qkv_bias='vit.blocks.0.attn.q_bias' in weights,
        gated='vit.blocks.0.mlp.fc1_g.weight' in weights,
    )


def vit_of(weights: Mapping[str, Tensor], path: str, heads: int | None = None) -> dict:
    if 'pos_embed' not in weights:
        raise UserError(
            f"{path} holds a ViT without a table of positions, and not by the names of timm's or Hugging Face's DINOv3; give "
            'weights of DINO, DINOv2, DINOv3 or DeiT'
        )
    width, channels, patch, _ = weights['patch_embed.projection.weight'].shape
    tokens, gated = weights['cls_token'].shape[1], 'layers.0.ffn.w3.weight' in weights
    inner = (
        weights['layers.0.ffn.w3.weight'].shape[1] * 3 // 2 if gated else len(weights['layers.0.ffn.layers.0.0.bias'])
    )
    layers = 1 + max(int(key.split('.')[1]) for key in weights if key.startswith('layers.'))
    heads = heads or usual_heads(weights['pos_embed'], tokens, path)
    arch = dict(embed_dims=width, num_layers=layers, num_heads=heads, feedforward_channels=inner)
    return dict(
        type='VisionTransformer',
        arch=arch,
        registers=tokens - 1,
        img_size=math.isqrt(weights['pos_embed'].shape[1] - tokens) * patch,
        patch_size=patch,
        **in_channels(channels),
        qkv_bias='layers.0.attn.qkv.bias' in weights,
        layer_scale_init_value=float('layers.0.attn.gamma1.weight' in weights),
        layer_cfgs=dict(ffn_type='swiglu_fused' if gated else 'origin'),
    )


def resnet_of(weights: Mapping[str, Tensor], path: str = 'the checkpoint') -> dict:
    """The `backbone=` of a config that these weights fit.

    >>> import torchvision
    >>> resnet_of(torchvision.models.resnet18().state_dict())
    {'type': 'ResNet', 'depth': 18, 'stem_channels': 64, 'base_channels': 64}
    """
    blocks = {tuple(map(int, match.groups())) for key in weights if (match := re.match(r'layer(\d)\.(\d+)\.', key))}
    stages = tuple(sum(stage == number for stage, _ in blocks) for number in (1, 2, 3, 4))
    depth = DEPTHS.get((stages, 'layer1.0.conv3.weight' in weights))
    if depth is None or 'conv1.weight' not in weights:
        raise UserError(
            f'{path} holds no ResNet whose depth is known (blocks {stages}); give --config with its backbone'
        )
    return dict(
        type='mmpretrain.ResNet_CIFAR' if weights['conv1.weight'].shape[-1] == 3 else 'ResNet',  # by its stem
        depth=depth,
        stem_channels=weights['conv1.weight'].shape[0],
        base_channels=weights['layer1.0.conv1.weight'].shape[0],
        **in_channels(weights['conv1.weight'].shape[1]),
    )
