"""Indexing of images in tar archives that WebDataset or tools/pack.py wrote.

A file in an archive is called a member. The names of members are untrusted data and are never opened as paths.
"""

import os
import re
from collections.abc import Iterator
from logging import WARNING
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import msgspec
from mmengine.logging import print_log

from mmairl.data.decode import extensions
from mmairl.data.shards.rows import ShardRows, parse_json
from mmairl.errors import UserError, printable

BLOCK = 512
SMALL = 2**20  # a label, a JSON file or an extended header has at most this many bytes
NOTE = 2**26  # a note of tools/pack.py, which lists all classes, has at most this many bytes
# These types of members are regular files. Type 7 is a contiguous file.
REGULAR = (b'0', b'\0', b'7')
# The types of members whose content is in another member, or is not stored in one piece.
WITHOUT_CONTENT = {b'1': 'a hard link', b'S': 'a sparse file'}
LABELS = {b'cls', b'json'}  # the extensions of members that contain the label of an image
LONG_NAME = b'L'
EXTENDED = b'x'
GLOBAL = b'g'
RECORD = re.compile(rb'(\d{1,20}) ([^=]+)=')
# tools/pack.py stores its notes in this folder. webdataset skips them, because the name starts and ends with two underscores.
ABOUT = b'__mmairl__/'
NUMBER = re.compile('-?[0-9]{1,18}')
Kind = TypeVar('Kind')
Label = int | str | None


class Member(NamedTuple):
    """The position and the size of a member's content in the archive."""

    start: int
    size: int


# A sample contains the members that belong to an image. The keys are extensions without the dot.
Sample = dict[bytes, Member]


class LabelFile(msgspec.Struct):
    """The keys in the JSON file of an image that may contain the label of the image. Other keys are ignored."""

    label: Label = None
    cls: Label = None


class PackNote(msgspec.Struct, omit_defaults=True):
    """The settings of tools/pack.py, which it stores as a note in each archive."""

    classes: list[str] = []
    short_side: int = 0
    quality: int = 0


def image_kinds() -> set[bytes]:
    """Return the extensions by which members are recognized as images, without the dot."""
    return {ending[1:].encode() for ending in extensions()} | {b'avif', b'jp2', b'ico'}


def read_tar(file: Path, shard: str) -> ShardRows:
    """Index the images of a tar archive. `shard` is the name of the archive in messages."""
    rows = ShardRows()
    labels: dict[bytes, Label] = {}
    with file.open('rb', buffering=0) as opened:
        reader = TarReader(opened.fileno(), shard)
        for name, sample in reader.samples():
            if name.startswith(ABOUT):
                note = reader.json(sample, PackNote, name, NOTE)
                rows.about = rows.about or msgspec.to_builtins(note)
                continue
            image = reader.image(sample, name)
            rows.starts.append(image.start)
            rows.sizes.append(image.size)
            if name in labels:
                reader.fail(name, 'the archive has two images of this name', 'duplicate-image')
            labels[name] = reader.label(sample, name)
            first = next(iter(labels.values()))
            if type(labels[name]) is not type(first):
                fault = f'its label {labels[name]!r:.40} and the first label of the archive, {first!r:.40}, differ in type'
                reader.fail(name, fault, 'mixed-labels')
    rows.names = list(labels)
    rows.labels = list(labels.values())
    if not labels or first is None:
        rows.labels = [-1] * len(labels)
    elif isinstance(first, int):
        rows.label_kind = 'numbers'
    else:
        rows.label_kind = 'names'
        rows.classes = sorted(set(rows.labels))
        number = {name: position for position, name in enumerate(rows.classes)}
        rows.labels = [number[name] for name in rows.labels]
    if 'classes' in rows.about:
        rows.label_kind = 'classes'
        rows.classes = rows.about['classes']
    return rows


class TarReader:
    """Reads the members of a tar archive in order. It is five times as fast as the standard library's tarfile.

    Args:
        file: File descriptor of the open archive.
        shard: Name of the archive in messages.
    """

    def __init__(self, file: int, shard: str) -> None:
        self.file = file
        self.shard = shard

    def samples(self) -> Iterator[tuple[bytes, Sample]]:
        """Yield the name of each image and the members that belong to it.

        As in WebDataset, these are consecutive members whose names are the same up to the first dot.
        """
        name, sample = b'', {}
        for path, member in self.members():
            folder, slash, base = path.removeprefix(b'./').rpartition(b'/')
            stem, dot, kind = base.partition(b'.')
            if not dot or not stem:
                continue
            key = folder + slash + stem
            if key != name:
                if sample:
                    yield name, sample
                name, sample = key, {}
            kind = kind.lower()
            if kind in sample:
                self.fail(name, 'two members of this image have the same name', 'duplicate-member')
            sample[kind] = member
        if sample:
            yield name, sample

    def members(self) -> Iterator[tuple[bytes, Member]]:
        """Yield the path and the position of each regular file."""
        end = os.fstat(self.file).st_size
        position = 0
        extended: dict = {}
        skipped = []
        while True:
            header = os.pread(self.file, BLOCK, position)
            if len(header) < BLOCK:
                self.damaged('cut short (it has no end mark)')
            if not any(header):
                self.report_skipped(skipped)
                return
            size = extended.get('size', octal(header[124:136]))
            if size < 0 or not has_valid_sum(header):
                self.damaged(f'not a tar archive, or damaged at byte {position}')
            start = position + BLOCK
            if start + size > end:
                self.damaged(f'cut short within the member {readable(header[:100])}')
            kind = header[156:157]
            member = Member(start, size)
            position = start + -(-size // BLOCK) * BLOCK
            if kind in (LONG_NAME, EXTENDED):
                extended |= self.extended_header(kind, member)
                continue
            if kind == GLOBAL:
                continue
            name = extended.get('path') or path_in(header)
            fault = WITHOUT_CONTENT.get(kind) or extended.get('sparse')
            extended = {}
            if kind in REGULAR and not fault:
                yield name, member
            elif name.rpartition(b'.')[2].lower() in image_kinds() | LABELS:
                if fault:
                    raise UserError(
                        f'{self.shard}: the member {readable(name)} is {fault}, whose content cannot be read in place; write '
                        'the archive again with tar --hard-dereference and without --sparse',
                        code='image-without-content',
                    )
                skipped.append(name)

    def report_skipped(self, names: list[bytes]) -> None:
        if names:
            print_log(
                f'{self.shard}: {len(names)} members are named like images or labels but are links, folders or devices '
                f'(the first: {readable(names[0])}); they are left out (tar --dereference stores the targets of links)',
                logger='current',
                level=WARNING,
            )

    def extended_header(self, kind: bytes, member: Member) -> dict:
        """Read a header that describes the next member. Return the path, the size and the sparse format that it states.

        GNU's header contains only a long path. The POSIX header has records of the form 'LENGTH KEY=VALUE'.
        """
        text = self.content(member)
        if kind == LONG_NAME:
            return dict(path=text.rstrip(b'\0'))
        values = {}
        position = 0
        while record := RECORD.match(text, position):
            position += int(record[1])
            if position <= record.end():
                break
            value = text[record.end() : position - 1]
            if record[2] == b'path':
                values['path'] = value
            elif record[2] == b'size':
                values['size'] = int(value) if value.isdigit() and len(value) < 20 else -1
            elif record[2].startswith(b'GNU.sparse.'):
                values['sparse'] = WITHOUT_CONTENT[b'S']
        if text[position:].strip(b'\0'):
            self.damaged(f'damaged at byte {member.start}')
        return values

    def content(self, member: Member, limit: int = SMALL) -> bytes:
        """Return the content of a small member. Raise if the member is larger than `limit`."""
        if member.size > limit:
            raise UserError(
                f'{self.shard}: a label, a JSON member or a header has {member.size} bytes, but the limit is {limit}; '
                'write the shard again, or leave it out',
                code='member-too-large',
            )
        return os.pread(self.file, member.size, member.start)

    def image(self, sample: Sample, name: bytes) -> Member:
        # A .npy file counts as the image only if the sample has no image in another format.
        kinds = [kind for kind in sample if kind in image_kinds()] or sample.keys() & {b'npy'}
        if len(kinds) != 1:
            members = ', '.join(readable(kind) for kind in sample)
            fault = f'expected one image among the members with this name, found {len(kinds)} ({members})'
            self.fail(name, fault, 'not-one-image')
        return sample[next(iter(kinds))]

    def label(self, sample: Sample, name: bytes) -> Label:
        if b'cls' not in sample:
            record = self.json(sample, LabelFile, name)
            return record.cls if record.label is None else record.label
        text = self.content(sample[b'cls']).decode(errors='replace').strip()
        return int(text) if NUMBER.fullmatch(text) else text

    def json(self, sample: Sample, kind: type[Kind], name: bytes, limit: int = SMALL) -> Kind:
        text = self.content(sample[b'json'], limit) if b'json' in sample else b'{}'
        return parse_json(text, kind, f'{self.shard}: {readable(name)}.json')

    def fail(self, name: bytes, fault: str, code: str) -> NoReturn:
        raise UserError(
            f'{self.shard}: image {readable(name)}: {fault}; write the shard again, or leave it out',
            code=code,
        )

    def damaged(self, fault: str) -> NoReturn:
        raise UserError(
            f'{self.shard}: the shard is {fault}; copy the shard again', code='damaged-tar'
        )


def readable(name: bytes) -> str:
    return printable(name.partition(b'\0')[0].decode(errors='replace'))


def path_in(header: bytes) -> bytes:
    """Return the path of the member in a header. In the ustar format, the header stores it as a prefix and a name."""
    name = header[:100].rstrip(b'\0')
    if header[257:263] == b'ustar\0' and header[345]:
        name = header[345:500].rstrip(b'\0') + b'/' + name
    return name


def has_valid_sum(header: bytes) -> bool:
    """Return whether the checksum of a header is correct.

    It is the sum of the header's bytes, where the bytes of the checksum itself count as spaces.
    """
    return octal(header[148:156]) == sum(header[:148]) + 8 * ord(' ') + sum(header[156:])


def octal(field: bytes) -> int:
    """Return the number in a field of a header, or -1 if the field is invalid.

    Numbers are stored in octal. Numbers with too many octal digits for the field are stored in binary.
    """
    if field[0] & 0x80:
        return int.from_bytes(field[1:], 'big')
    try:
        return int(field.strip(b'\0 ') or b'0', 8)
    except ValueError:
        return -1


def member_key(name: str, taken: set[str]) -> str:
    """Return the name of an image in its shard: the path of the image without its extension.

    WebDataset requires that the name is unique in its shard and that its last part has no dots. Parts such as '..' are left
    out, because they could lead out of the folder where the archive is unpacked.
    """
    parts = [part for part in name.split('/') if part not in ('', '.', '..')]
    folder, slash, base = '/'.join(parts).rpartition('/')
    stem = base.rpartition('.')[0] or base
    key = folder + slash + stem.replace('.', '_')
    if key in taken:
        key = folder + slash + base.replace('.', '_')
    while key in taken:
        key += '_'
    taken.add(key)
    return key
