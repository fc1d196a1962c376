"""The structure of each project's checkpoints, and its names for the tensors of a backbone.

mmairl itself uses torchvision's names for ResNets and mmpretrain's for ViTs.
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

# Keys under which checkpoints nest their weights, tried at each level.
ENVELOPES = ('state_dict', 'model', 'classy_state_dict', 'base_model', 'model_state', 'network')
WRAPPERS = ('module.', '_orig_mod.')
NESTED = ('trunk', 'heads')  # VISSL nests its weights one level deeper
# Beginnings of the names of a ResNet's or a ViT's stem in any layout.
STEMS = ('conv1.weight', 'stem.', 'patch_embed.', 'cls_token', 'conv_proj.')


class Format(Declared):
    """One project's checkpoints.

    Attributes:
        name: The name in messages.
        student: Prefix of the student's backbone.
        teacher: Prefix of the teacher's backbone, if the project has a teacher.
    """

    name: str
    student: str
    teacher: str | None = None

    @property
    def pure(self) -> bool:
        """Whether the prefix belongs to a backbone without heads, which may be of any architecture."""
        return self.student.endswith(('backbone.', '.0.', '_feature_blocks.', 'bottom_up.'))

    def matches(self, keys: Collection[str]) -> bool:
        begins = self.student if self.pure else tuple(self.student + stem for stem in STEMS)
        return any(key.startswith(begins) for key in keys)


class Layout(Declared):
    """One way to name the tensors of a backbone; layouts.yaml describes the fields."""

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
    """Return the format of a checkpoint with these keys.

    Of several matches, formats whose teacher is in the file have priority, then formats without a teacher.
    """

    def rank(form: Format) -> int:
        if form.teacher is None:
            return 1
        return 0 if any(key.startswith(form.teacher) for key in keys) else 2

    matches = [form for form in KNOWN.formats if form.matches(keys)]
    return min(matches, key=rank, default=None)


# Prefixes of teachers, which must not be mistaken for a student.
TEACHER = re.compile(r'teacher|momentum|target|ema|key|_k\.', re.IGNORECASE)
# C4 detectors have the last stage of the backbone in their head: its prefix in the file, and the one that replaces it.
LAST_STAGES = (('roi_heads.res5.', 'res5.'), ('roi_head.shared_head.', ''))
# Tensors without influence on features: heads, tokens of masked patches, queues, computed angles.
IGNORED = re.compile(
    r'(fc|heads?|head_\w+|classifier\w*|linear|projector\w*|projection\w*|predict\w+|prototypes|decoder\w*|last_layer|'
    r'mask_token|masked_embed|embeddings\.mask_token|pooler|queue\w*|stem\.fc|rope\.periods|rope_embeddings\.inv_freq)(\.|$)'
)
TIMM_BACKBONE = 'timm_model.'  # mmpretrain's TIMMBackbone adds this prefix to timm's names


def layout_of(keys: Collection[str]) -> Layout | None:
    """Return the layout of keys that have no prefix."""
    return next((layout for layout in KNOWN.layouts if layout.matches(keys)), None)


def layout_prefixes(keys: Collection[str]) -> list[str]:
    """Return the prefixes, the shortest first, below which the keys have a known layout."""
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
    """Tensors under mmairl's names, mmairl's name for each key of the file, and the format of the file."""

    weights: dict[str, Tensor]
    names: dict[str, str]
    source: str = ''


def to_ours(tensors: Mapping[str, Tensor], layout: Layout, path: str) -> Named:
    """Return the tensors of a file under mmairl's names.

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
                f"{path}: '{other}' and '{key}' are two names of one tensor in the format {layout.name}; remove one",
                code='duplicate-tensor',
            )
    weights = join_registers({renamed[key]: value for key, value in joined.items()})
    return Named(weights, {key: renamed[joint] for key, joint in origins.items()})


def rename(key: str, table: str, to_ours: bool = False) -> str:
    """Translate a tensor's name to another project's by a table of layouts.yaml, or with `to_ours` in reverse.

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
    """Concatenate Hugging Face's query, key and value if all three exist with the same shape.

    Returns:
        The tensors, and for each key of `tensors` the key of the result that contains it.
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
    """Merge a ViT's register tokens into its class token, as mmairl's network stores them.

    The registers get positions of zeros, as does the class token if the file has no position for it. Tokens of unexpected
    shapes are not changed.
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
    # The patches form a square. An additional position belongs to the class token.
    has_class = int(math.isqrt(positions.shape[1]) ** 2 != positions.shape[1])
    zeros = positions.new_zeros(1, joined.shape[1] - has_class, positions.shape[2])
    kept = {key: value for key, value in weights.items() if key not in names[1:3]}
    kept['cls_token'] = joined
    kept['pos_embed'] = torch.cat(
        [positions[:, :has_class], zeros, positions[:, has_class:]], dim=1
    )
    return kept
