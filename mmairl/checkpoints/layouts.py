"""How each project nests a checkpoint and names the tensors of a backbone.

Our own names are torchvision's for ResNets and mmpretrain's for ViTs.
"""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from mmairl.errors import UserError

# Keys under which checkpoints nest their weights, tried at each level.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
NESTED = ('trunk', 'heads')  # VISSL nests its weights one level deeper
# First parts of the names of a ResNet's or a ViT's stem, in any layout.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token', 'conv_proj.')


@dataclass(frozen=True)
class Format:
    """One project's checkpoints.

    Args:
        name: The name in messages.
        student: Prefix of the student's backbone.
        teacher: Prefix of the teacher's backbone, if the project has a teacher.
    """

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether the prefix is that of a backbone without heads, which may then be of any architecture."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def matches(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


# Prefixes of teachers, which are never read in place of a student.
TEACHER = re.compile(r'teacher|momentum|target|ema|key|_k\.', re.IGNORECASE)
# C4 detectors keep the last stage of the backbone in their head: detectron2's and mmdet's prefixes, and ours.
LAST_STAGES = (('roi_heads.res5.', 'res5.'), ('roi_head.shared_head.', ''))
# The first match wins, so a format comes before those whose prefixes begin like its own.
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


def detect_format(keys: Collection[str]) -> Format | None:
    """Return the format of a checkpoint with these keys.

    A format whose teacher is in the file is preferred to one without a teacher, and that to one whose teacher is missing.
    """

    def rank(form: Format) -> int:
        if form.teacher is None:
            return 1
        return 0 if any(key.startswith(form.teacher) for key in keys) else 2

    matches = [form for form in FORMATS if form.matches(keys)]
    return min(matches, key=rank, default=None)


Names = tuple[tuple[str, str], ...]


def _names(table: str) -> Names:
    """Parse a table of two columns: our name and another project's.

    `rename` tries the pairs on each key in this order. A name with a leading dot may be anywhere in a key, any other name
    is its beginning. `#` is a number.
    """
    rows = (line.split() for line in table.strip().splitlines())
    return tuple((ours, theirs) for ours, theirs in rows)


DETECTRON2 = _names("""
    bn1.             stem.conv1.norm.
    conv1.           stem.conv1.
    layer1.          res2.
    layer2.          res3.
    layer3.          res4.
    layer4.          res5.
    .downsample.1.   .shortcut.norm.
    .downsample.0.   .shortcut.
    .bn#.            .conv#.norm.
""")
# torchvision's children in a Sequential, as in lightly's examples.
SEQUENTIAL = _names("""
    conv1.           0.
    bn1.             1.
    layer1.          4.
    layer2.          5.
    layer3.          6.
    layer4.          7.
""")
HUGGING_FACE_RESNET = _names("""
    conv1.           embedder.embedder.convolution.
    bn1.             embedder.embedder.normalization.
    layer1.          encoder.stages.0.layers.
    layer2.          encoder.stages.1.layers.
    layer3.          encoder.stages.2.layers.
    layer4.          encoder.stages.3.layers.
    .downsample.0.   .shortcut.convolution.
    .downsample.1.   .shortcut.normalization.
    .conv1.          .layer.0.convolution.
    .conv2.          .layer.1.convolution.
    .conv3.          .layer.2.convolution.
    .bn1.            .layer.0.normalization.
    .bn2.            .layer.1.normalization.
    .bn3.            .layer.2.normalization.
""")
TIMM = _names("""
    ln1.                           norm.
    layers.#.ln#.                  blocks.#.norm#.
    layers.#.attn.gamma1.weight    blocks.#.ls1.gamma
    layers.#.ffn.gamma2.weight     blocks.#.ls2.gamma
    layers.#.ffn.w#.               blocks.#.mlp.w#.
    layers.#.ffn.layers.0.0.       blocks.#.mlp.fc1.
    layers.#.ffn.layers.1.         blocks.#.mlp.fc2.
    layers.                        blocks.
    patch_embed.projection.        patch_embed.proj.
""")
TORCHVISION_VIT = _names("""
    cls_token                      class_token
    pos_embed                      encoder.pos_embedding
    patch_embed.projection.        conv_proj.
    ln1.                           encoder.ln.
    .attn.qkv.                     .self_attention.in_proj_
    .attn.proj.                    .self_attention.out_proj.
    .ffn.layers.0.0.               .mlp.0.
    .ffn.layers.1.                 .mlp.3.
    layers.#.ln#.                  encoder.layers.encoder_layer_#.ln_#.
    layers.                        encoder.layers.encoder_layer_
""")
# timm's names and Hugging Face's for ViT (DINO), Dinov2 and Dinov2WithRegisters, which store q, k and v separately.
HUGGING_FACE_VIT = _names("""
    cls_token                      embeddings.cls_token
    reg_token                      embeddings.register_tokens
    pos_embed                      embeddings.position_embeddings
    patch_embed.proj.              embeddings.patch_embeddings.projection.
    norm.                          layernorm.
    blocks.                        encoder.layer.
    .norm1.                        .layernorm_before.
    .norm2.                        .layernorm_after.
    .attn.qkv.                     .attention.attention.query.
    .attn.proj.                    .attention.output.dense.
    .ls#.gamma                     .layer_scale#.lambda1
    .mlp.w12.                      .mlp.weights_in.
    .mlp.w3.                       .mlp.weights_out.
    .mlp.fc1.                      .intermediate.dense.
    .mlp.fc2.                      .output.dense.
""")
DINOV3: Names = (('vit.', ''),)  # our network holds timm's as `vit`
# timm's names and Hugging Face's for DINOv3.
HUGGING_FACE_DINOV3 = _names("""
    cls_token                      embeddings.cls_token
    reg_token                      embeddings.register_tokens
    patch_embed.proj.              embeddings.patch_embeddings.
    blocks.                        layer.
    .attn.qkv.weight               .attention.q_proj.weight
    .attn.q_bias                   .attention.q_proj.bias
    .attn.v_bias                   .attention.v_proj.bias
    .attn.proj.                    .attention.o_proj.
    .gamma_#                       .layer_scale#.lambda1
    .mlp.fc1_g.                    .mlp.gate_proj.
    .mlp.fc2.                      .mlp.down_proj.
""")
GATED_MLP: Names = (('.mlp.fc1_x.', '.mlp.up_proj.'),)
PLAIN_MLP: Names = (('.mlp.fc1.', '.mlp.up_proj.'),)


@dataclass(frozen=True)
class Layout:
    """One way to name the tensors of a backbone.

    Args:
        name: The name in messages.
        marks: Keys in every file of this layout. The first also finds the prefix.
        tables: Renames from our names to the file's, the last one first.
        without: A key in no file of this layout.
    """

    name: str
    marks: tuple[str, ...]
    tables: tuple[Names, ...] = ()
    without: str = ''

    def matches(self, keys: Collection[str], prefix: str = '') -> bool:
        if self.without and prefix + self.without in keys:
            return False
        return all(prefix + mark in keys for mark in self.marks)


DINOV3_MARKS = ('embeddings.patch_embeddings.weight', 'embeddings.cls_token')
# The first match wins.
LAYOUTS = (
    Layout('detectron2', ('stem.conv1.weight', 'res2.0.conv1.weight'), (DETECTRON2,)),
    Layout("torchvision's ResNet in a Sequential", ('4.0.conv1.weight', '0.weight'), (SEQUENTIAL,)),
    Layout(
        "Hugging Face's ResNet",
        ('embedder.embedder.convolution.weight',),
        (HUGGING_FACE_RESNET,),
    ),
    Layout("torchvision's ViT", ('conv_proj.weight', 'class_token'), (TORCHVISION_VIT,)),
    Layout(
        "Hugging Face's DINOv3 with gates",
        (*DINOV3_MARKS, 'layer.0.mlp.gate_proj.weight'),
        (HUGGING_FACE_DINOV3 + GATED_MLP, DINOV3),
    ),
    Layout("Hugging Face's DINOv3", DINOV3_MARKS, (HUGGING_FACE_DINOV3 + PLAIN_MLP, DINOV3)),
    Layout(
        "Hugging Face's ViT",
        ('embeddings.patch_embeddings.projection.weight', 'embeddings.cls_token'),
        (HUGGING_FACE_VIT, TIMM),
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
# Tensors that features do not depend on: heads, tokens of masked patches, queues, computed angles.
IGNORED = re.compile(
    r'(fc|heads?|head_\w+|classifier\w*|linear|projector\w*|projection\w*|predict\w+|prototypes|decoder\w*|last_layer|'
    r'mask_token|masked_embed|embeddings\.mask_token|pooler|queue\w*|stem\.fc|rope\.periods|rope_embeddings\.inv_freq)(\.|$)'
)
TIMM_BACKBONE = 'timm_model.'  # mmpretrain's TIMMBackbone adds this prefix to timm's names


def layout_of(keys: Collection[str]) -> Layout | None:
    """Return the layout of keys without a prefix."""
    return next((layout for layout in LAYOUTS if layout.matches(keys)), None)


def layout_prefixes(keys: Collection[str]) -> list[str]:
    """Return each prefix below which the keys have a known layout, the shortest first."""
    marks = {layout.marks[0] for layout in LAYOUTS}
    prefixes = {key.removesuffix(mark) for key in keys for mark in marks if key.endswith(mark)}
    found = []
    for prefix in sorted(prefixes, key=len):
        at_a_dot = prefix == '' or prefix.endswith('.')
        if not at_a_dot or prefix.endswith(TIMM_BACKBONE):
            continue
        if any(layout.matches(keys, prefix) for layout in LAYOUTS):
            found.append(prefix)
    return found


def to_ours(
    tensors: Mapping[str, Tensor], layout: Layout, path: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a file under our names, and our name of each key.

    Raises:
        UserError: 'duplicate-tensor' if two keys get the same name.
    """
    joined, origins = join_attention(tensors)
    renamed = {key: key for key in joined}
    for table in layout.tables:
        renamed = {key: rename(name, table, to_ours=True) for key, name in renamed.items()}
    first: dict[str, str] = {}
    for key, name in renamed.items():
        other = first.setdefault(name, key)
        if other != key:
            raise UserError(
                f"{path}: '{other}' and '{key}' are the same tensor by the names of {layout.name}; remove one",
                code='duplicate-tensor',
            )
    weights = join_registers({renamed[key]: value for key, value in joined.items()})
    return weights, {key: renamed[joint] for key, joint in origins.items()}


def rename(key: str, names: Names, to_ours: bool = False) -> str:
    """Return another project's name of a tensor, or with `to_ours` our name.

    >>> rename('layer1.0.bn2.bias', DETECTRON2)
    'res2.0.conv2.norm.bias'
    """
    for ours, theirs in names:
        old, new = (theirs, ours) if to_ours else (ours, theirs)
        anchor = '' if old.startswith('.') else '^'
        pattern = anchor + re.escape(old).replace(r'\#', r'(\d+)')
        template = new.replace('#', '{}')
        key = re.sub(pattern, lambda match, new=template: new.format(*match.groups()), key)
    return key


def join_attention(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Concatenate Hugging Face's query, key and value where all three exist and have one shape.

    Returns:
        The tensors, and for each key of `tensors` the key of the result that holds it.
    """
    joined = dict(tensors)
    origins = {key: key for key in tensors}
    for query in tensors:
        parts = [query]
        for name in ('key', 'value'):
            parts.append(query.replace('query', name).replace('q_proj', f'{name[0]}_proj'))
        if len(set(parts)) < 3 or not all(part in joined for part in parts):
            continue
        if len({tensors[part].shape for part in parts}) > 1 or tensors[query].ndim == 0:
            continue
        joined[query] = torch.cat([tensors[part] for part in parts])
        for part in parts[1:]:
            del joined[part]
        origins |= dict.fromkeys(parts, query)
    return joined, origins


def join_registers(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Merge a ViT's register tokens into its class token and give each a position of zeros, as our network stores them.

    The class token also gets zeros if the file has no position for it. Tokens of unexpected shapes are not changed.
    """
    names = ('cls_token', 'reg_token', 'register_tokens', 'pos_embed')
    tokens = {name: weights[name] for name in names if name in weights}
    if not {'cls_token', 'pos_embed'} <= tokens.keys():
        return weights
    shapes = {token.shape[::2] for token in tokens.values() if token.ndim == 3}
    if len(shapes) > 1 or any(token.ndim != 3 for token in tokens.values()):
        return weights
    positions = tokens.pop('pos_embed')
    if tokens['cls_token'].shape[1] != 1:
        return weights
    joined = torch.cat(list(tokens.values()), dim=1)
    # Patches form a square; one more position is that of the class token.
    has_class = int(math.isqrt(positions.shape[1]) ** 2 != positions.shape[1])
    zeros = positions.new_zeros(1, joined.shape[1] - has_class, positions.shape[2])
    kept = {key: value for key, value in weights.items() if key not in names[1:3]}
    kept['cls_token'] = joined
    kept['pos_embed'] = torch.cat(
        [positions[:, :has_class], zeros, positions[:, has_class:]], dim=1
    )
    return kept
