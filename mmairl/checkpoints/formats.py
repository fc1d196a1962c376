"""Recognize the checkpoints of many projects, and translate the names of their tensors.

formats.yaml lists where each project stores the backbones of student and teacher, and how it names the tensors of a backbone.
mmairl uses torchvision's names for ResNets and mmpretrain's for ViTs.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

from torch import Tensor

from mmairl.io import Declared, read_yaml

# A prefix that contains one of these words belongs to a teacher, which must not be mistaken for a student.
TEACHER = re.compile(r'teacher|momentum|target|ema|key|_k\.', re.IGNORECASE)
# Tensors of a ResNet or ViT with these names do not influence features: heads, tokens of masked patches, and queues.
IGNORED = re.compile(
    r'(fc|heads?|head_\w+|classifier\w*|linear|projector\w*|projection\w*|predict\w+|prototypes|decoder\w*|last_layer|'
    r'mask_token|masked_embed|pooler|queue\w*)(\.|$)'
)
# The prefixes of mmairl's and OpenMMLab's checkpoints.
BACKBONES = ('backbone.', 'teacher.backbone.')


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


class Layout(Declared):
    """One way to name the tensors of a backbone. Comments in formats.yaml describe the fields."""

    marks: list[str]
    table: str = ''

    def matches(self, keys: Collection[str], prefix: str = '') -> bool:
        return all(prefix + mark in keys for mark in self.marks)


class Known(Declared):
    """The content of formats.yaml."""

    formats: list[Format]
    tables: dict[str, dict[str, str]]
    layouts: list[Layout]


KNOWN = read_yaml(Path(__file__).with_suffix('.yaml'), Known)


def prefixes(keys: Collection[str], network: Collection[str] = ()) -> set[str]:
    """Return each prefix that is followed by the keys of a known layout, or by the last key of a given network.

    If there is no such prefix, return those of mmairl's and OpenMMLab's checkpoints, which may contain any network.
    """
    last = list(network)[-1:]
    ends = [*last, *(layout.marks[0] for layout in KNOWN.layouts)]

    def is_start(prefix: str) -> bool:
        is_given = any(prefix + end in keys for end in last)
        return is_given or any(layout.matches(keys, prefix) for layout in KNOWN.layouts)

    before = {key.removesuffix(end) for end in ends for key in keys if key.endswith(end)}
    found = {prefix for prefix in before if prefix[-1:] in ('', '.') and is_start(prefix)}
    return found or {name for name in BACKBONES if any(key.startswith(name) for key in keys)}


def detect_format(found: Collection[str]) -> Format | None:
    """Return the format of a checkpoint whose backbones have the prefixes `found`, or None if the format is unknown.

    If several formats match, a format whose teacher is in the file is preferred, and next a format that has no teacher.
    """

    def rank(form: Format) -> int:
        if form.teacher is None:
            return 1
        return 0 if form.teacher in found else 2

    return min((form for form in KNOWN.formats if form.student in found), key=rank, default=None)


def to_ours(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return a dictionary from the names of a backbone's tensors to mmairl's names. It is empty if the layout is unknown."""
    layout = next((layout for layout in KNOWN.layouts if layout.matches(tensors)), None)
    if layout is None:
        return {}
    return {
        key: rename(key, layout.table, to_ours=True) if layout.table else key for key in tensors
    }


def rename(key: str, table: str, to_ours: bool = False) -> str:
    """Translate mmairl's name of a tensor to another project's name, according to a table of formats.yaml.

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
