"""The result of indexing one shard, and checks for all shard formats."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mmairl.errors import UserError

MAX_CLASSES = 10**6  # if labels are numbers
Kind = TypeVar('Kind')


@dataclass
class ShardRows:
    """The position, the size, the label and the name (without extension) of each image in a shard.

    In a Parquet file, `starts` are the numbers of row groups, `sizes` are positions in them, and the names are empty.

    Attributes:
        label_kind: 'none', 'numbers', 'names' (`classes` has the names that occur) or 'classes' (the file lists them).
        groups: Number of images in each unit that must be read as a whole; empty if images can be read one by one.
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
        """Raise if the shard has no image, or if a label is out of range."""
        if not self.starts:
            raise UserError(
                f'{shard}: the shard has no image, such as a member NAME.jpg or NAME.png; leave it out',
                code='empty-shard',
            )
        count = MAX_CLASSES if self.label_kind == 'numbers' else len(self.classes)
        wrong = [label for label in self.labels if not -1 <= label < count]
        if wrong:
            raise UserError(
                f'{shard}: a label is neither -1 nor in the range of {count} classes ({wrong[0]}); correct the labels, or '
                'write names',
                code='bad-label',
            )


def parse_json(text: bytes, kind: type[Kind], source: str) -> Kind:
    """Decode untrusted JSON to a declared type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f'{source}: {error}; write the shard again, or leave it out', code='bad-shard-json'
        ) from error
