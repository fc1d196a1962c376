"""The images of one shard and the checks that all shard formats share."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mmairl.errors import UserError

MAX_CLASSES = 10**6  # with numeric labels
Kind = TypeVar('Kind')


@dataclass
class ShardRows:
    """Where each image of a shard is, its label, and its name without the extension.

    In a Parquet file, `starts` are row groups, `sizes` are rows in them, and names are empty.

    Attributes:
        label_kind: 'none', 'numbers', 'names' (`classes` are the names that occur) or 'classes' (the file lists them).
        groups: Sizes of the parts that can only be read as a whole; empty if each image can be read alone.
    """

    starts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    label_kind: str = 'none'
    classes: list[str] = field(default_factory=list)
    about: dict = field(default_factory=dict)
    groups: list[int] = field(default_factory=list)

    def check(self, shard: str) -> None:
        """Raise if there is no image, or if a label is out of range."""
        if not self.starts:
            raise UserError(
                f'{shard}: the shard has no image (a member NAME.jpg, .jpeg, .png or .webp); leave it out',
                code='empty-shard',
            )
        count = MAX_CLASSES if self.label_kind == 'numbers' else len(self.classes)
        wrong = [label for label in self.labels if not -1 <= label < count]
        if wrong:
            raise UserError(
                f'{shard}: labels must be numbers of its {count} classes from 0 on, or -1 ({wrong[0]}); correct the labels, '
                'or write names',
                code='bad-label',
            )


def parse_json(text: bytes, kind: type[Kind], source: str) -> Kind:
    """Return untrusted JSON as a declared type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f'{source}: {error}; write the shard again, or leave it out', code='bad-shard-json'
        ) from error
