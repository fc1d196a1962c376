"""The index of a single shard, and checks that apply to all shard formats."""

from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from mmairl.errors import UserError

MAX_CLASSES = 10**6  # labels that are numbers must be below this limit
Kind = TypeVar('Kind')


@dataclass
class ShardRows:
    """The index of a shard: the position, the size, the label and the name (without extension) of each image.

    For a Parquet file, `starts` contains the row group of each image, and `sizes` contains the row in this group. For Arrow
    and Parquet files, the names are empty.

    Attributes:
        label_kind: The form of the labels in the shard: 'none', 'numbers', 'names' (the labels are names, and `classes`
            contains all of them) or 'classes' (the labels are numbers, and the shard states the names in `classes`).
        groups: Number of images in each unit that must be read as a whole. The list is empty if images can be read one by
            one.
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
                f'{shard}: the shard has no image (in a tar archive, an image is a member such as NAME.jpg); leave the shard '
                'out',
                code='empty-shard',
            )
        count = MAX_CLASSES if self.label_kind == 'numbers' else len(self.classes)
        wrong = [label for label in self.labels if not -1 <= label < count]
        if wrong:
            raise UserError(
                f"{shard}: a label must be from 0 to {count - 1}, or -1 for no label ('{wrong[0]}'); correct the labels, or "
                'store class names instead of numbers',
                code='bad-label',
            )


def parse_json(text: bytes, kind: type[Kind], source: str) -> Kind:
    """Decode untrusted JSON. Raise a UserError if the content does not have the type `kind`."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(
            f'{source}: {error}; write the shard again, or leave it out', code='bad-shard-json'
        ) from error
