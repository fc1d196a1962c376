"""Recognize the checkpoints of many projects, and translate the names of their tensors.

A *format* states where a project's checkpoint stores the backbones of student and teacher. A *layout* states how the tensors
of a backbone are named. layouts.yaml lists both. mmairl uses torchvision's names for ResNets and mmpretrain's for ViTs.
"""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from mmairl.errors import UserError
from mmairl.io import Declared, read_yaml

# Training scripts nest the dictionary of weights under one of these keys, or under several, one inside the other.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
# VISSL has dictionaries with these names inside the dictionary of weights.
NESTED = ('trunk', 'heads')
# If other tensors may have the prefix of a format, too, the format matches if the prefix is followed by one of these names
# of a ResNet's or ViT's stem.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token', 'conv_proj.')


class Format(Declared):
    """Where the checkpoints of one project store their backbones.

    Attributes:
        name: Name of the format in messages.
        student: Prefix of the keys of the student's backbone.
        teacher: Prefix of the keys of the teacher's backbone, or None if the project has no teacher.
    """

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether all tensors with the student's prefix belong to a backbone, of any architecture, and none to a head."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def matches(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


class Layout(Declared):
    """One way to name the tensors of a backbone. Comments in layouts.yaml describe the fields."""

    name: str
    marks: list[str]
    tables: list[str] = []
    without: str = ''

    def matches(self, keys: Collection[str], prefix: str = '') -> bool:
        if self.without and prefix + self.without in keys:
            return False
        return all(prefix + mark in keys for mark in self.marks)


class Known(Declared):
    """The content of layouts.yaml."""

    formats: list[Format]
    tables: dict[str, dict[str, str]]
    layouts: list[Layout]


KNOWN = read_yaml(Path(__file__).with_suffix('.yaml'), Known)


def detect_format(keys: Collection[str]) -> Format | None:
    """Return the format of a checkpoint with these keys, or None if the format is unknown.

    If several formats match, a format whose teacher is in the file is preferred, and next a format that has no teacher.
    """

    def rank(form: Format) -> int:
        if form.teacher is None:
            return 1
        return 0 if any(key.startswith(form.teacher) for key in keys) else 2

    matches = [form for form in KNOWN.formats if form.matches(keys)]
    return min(matches, key=rank, default=None)


# A prefix that contains one of these words belongs to a teacher, which must not be mistaken for a student.
TEACHER = re.compile(r'teacher|momentum|target|ema|key|_k\.', re.IGNORECASE)
# C4 detectors have the last stage of the backbone in their head. Each pair is the prefix of this stage in one project's
# files, and the prefix that replaces it.
LAST_STAGES = (('roi_heads.res5.', 'res5.'), ('roi_head.shared_head.', ''))
# Tensors with these names do not influence features: heads, tokens of masked patches, queues, and the frequencies of
# rotary position embeddings, which the network computes itself.
IGNORED = re.compile(
    r'(fc|heads?|head_\w+|classifier\w*|linear|projector\w*|projection\w*|predict\w+|prototypes|decoder\w*|last_layer|'
    r'mask_token|masked_embed|embeddings\.mask_token|pooler|queue\w*|stem\.fc|rope\.periods|rope_embeddings\.inv_freq)(\.|$)'
)
# mmpretrain's TIMMBackbone adds this prefix to timm's names.
TIMM_BACKBONE = 'timm_model.'


def layout_of(keys: Collection[str]) -> Layout | None:
    """Return the layout of a backbone whose keys have no prefix, or None if the layout is unknown."""
    return next((layout for layout in KNOWN.layouts if layout.matches(keys)), None)


def layout_prefixes(keys: Collection[str]) -> list[str]:
    """Return each prefix that is followed by the keys of a known layout, from the shortest prefix to the longest."""
    marks = {layout.marks[0] for layout in KNOWN.layouts}
    prefixes = {key.removesuffix(mark) for key in keys for mark in marks if key.endswith(mark)}
    found = []
    for prefix in sorted(prefixes, key=len):
        at_a_dot = prefix == '' or prefix.endswith('.')
        if not at_a_dot or prefix.endswith(TIMM_BACKBONE):
            continue
        if any(layout.matches(keys, prefix) for layout in KNOWN.layouts):
            found.append(prefix)
    return found


class Named(NamedTuple):
    """The tensors of a file, renamed to the names that mmairl uses.

    Attributes:
        weights: Maps mmairl's names to the tensors.
        names: Maps each name in the file to mmairl's name.
        source: The format of the file.
    """

    weights: dict[str, Tensor]
    names: dict[str, str]
    source: str = ''


def to_ours(tensors: Mapping[str, Tensor], layout: Layout, path: str) -> Named:
    """Rename the tensors of a backbone from a project's names to mmairl's.

    Raises:
        UserError: 'duplicate-tensor' if two tensors get the same name.
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
                f"{path}: '{other}' and '{key}' are two names of one tensor in the format {layout.name}; remove one of the two "
                'from the file',
                code='duplicate-tensor',
            )
    weights = join_registers({renamed[key]: value for key, value in joined.items()})
    return Named(weights, {key: renamed[joint] for key, joint in origins.items()})


def rename(key: str, table: str, to_ours: bool = False) -> str:
    """Translate mmairl's name of a tensor to another project's name, according to a table of layouts.yaml.

    With `to_ours`, translate the other project's name to mmairl's.

    >>> rename('layer1.0.bn2.bias', 'detectron2')
    'res2.0.conv2.norm.bias'
    """
    for ours, theirs in KNOWN.tables[table].items():
        old, new = (theirs, ours) if to_ours else (ours, theirs)
        anchor = '' if old.startswith('.') else '^'
        pattern = anchor + re.escape(old).replace(r'\#', r'(\d+)')
        template = new.replace('#', '{}')
        key = re.sub(pattern, lambda match, new=template: new.format(*match.groups()), key)
    return key


def join_attention(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Concatenate Hugging Face's tensors for query, key and value, if all three exist and have the same shape.

    Returns:
        The tensors after concatenation, and a dictionary that maps each key of `tensors` to the key of the result that
        contains the tensor.
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
    """Append a ViT's register tokens to its class token, because mmairl's network stores both in one parameter.

    The position embeddings of the registers are zeros. The class token also gets zeros if the file has no position embedding
    for it. If a tensor has an unexpected shape, nothing is changed.
    """
    names = ('cls_token', 'reg_token', 'register_tokens', 'pos_embed')
    tokens = {name: weights[name] for name in names if name in weights}
    if not {'cls_token', 'pos_embed'} <= tokens.keys():
        return weights
    shapes = {(token.ndim, *token.shape[::2]) for token in tokens.values()}
    if len(shapes) > 1 or tokens['cls_token'].ndim != 3 or tokens['cls_token'].shape[1] != 1:
        return weights
    positions = tokens.pop('pos_embed')
    joined = torch.cat(list(tokens.values()), dim=1)
    # Patches form a square, so if the number of positions is not a square, the first position belongs to the class token.
    has_class = int(math.isqrt(positions.shape[1]) ** 2 != positions.shape[1])
    zeros = positions.new_zeros(1, joined.shape[1] - has_class, positions.shape[2])
    kept = {key: value for key, value in weights.items() if key not in names[1:3]}
    kept['cls_token'] = joined
    kept['pos_embed'] = torch.cat(
        [positions[:, :has_class], zeros, positions[:, has_class:]], dim=1
    )
    return kept
