"""The images in a shard: tar archives (WebDataset's and our own), Arrow and Parquet files of `datasets`.

Names in a tar archive are data: they are never opened as paths.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from zlib import adler32

import msgspec
import numpy as np
from mmengine.logging import print_log
from msgspec import Meta

from mmairl.data.decode import extensions
from mmairl.data.reading import read_file
from mmairl.errors import UserError, printable
from mmairl.io import typed

BLOCK = 512  # of a tar archive
SMALL = 2**20  # bytes of a label, a JSON file or an extended header
NOTE = 2**26  # bytes of the note of tools/pack.py, which lists all classes
INFLATED = (
    2**28
)  # bytes that a compressed column of a Parquet file may expand to, unless it is large itself
INFLATION = 50  # such a column may expand so many times
REGULAR = (b'0', b'\0', b'7')  # kinds of members whose content follows; '7' is a contiguous file
LOST = {
    b'1': 'a hard link',
    b'S': 'a sparse file',
}  # kinds of members whose content is elsewhere or rearranged
DIGITS = 20  # of a length in an extended header, at most
ARRAY = b'npy'
ABOUT = b'__mmairl__/'  # the folder of what tools/pack.py says about an archive; webdataset skips such names
KINDS = {int: 'numbers', str: 'names', type(None): 'none'}  # of labels
CLASSES = 10**6  # that labels by numbers can have
NUMBER = re.compile('-?[0-9]{1,18}')
GROUPS = (
    16  # row groups that a process keeps, as many as the window of the sampler's order by shards
)
Kind = TypeVar('Kind')
Member = tuple[int, int, bytes]  # start, size and first bytes


def image_kinds() -> set[bytes]:
    """Return the endings of images in archives, without the dot."""
    return {ending[1:].encode() for ending in extensions()} | {b'avif', b'jp2', b'ico'}


class Labelled(msgspec.Struct):
    """The class in the JSON beside an image; no other key is read."""

    label: Annotated[int, Meta(ge=-1, lt=CLASSES)] | str | None = None
    cls: Annotated[int, Meta(ge=-1, lt=CLASSES)] | str | None = None


class About(msgspec.Struct, omit_defaults=True):
    """The note of tools/pack.py in an archive."""

    classes: list[str] = []
    short_side: int = 0
    quality: int = 0


def told(text: bytes, kind: type[Kind], where: str) -> Kind:
    """JSON as a declared type."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UserError(f'{where}: {error}; write that shard again, or leave it out') from error


@dataclass
class Rows:
    """The images of one shard: where each lies, its label, and its name without the extension.

    In a Parquet file, `starts` are row groups and `sizes` the rows in them, and there are no names. `kind` is that of the
    labels: 'none', 'numbers', 'names' (in `classes` as they occur) or 'classes' (a list that the file brings).
    """

    starts: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray
    names: list[bytes]
    kind: str
    classes: list[str]
    about: dict
    groups: Sequence[
        int
    ] = ()  # sizes of the parts that can only be read whole; () where each image can be read alone


def rows_of(file: Path, name: str) -> Rows:
    """The images of a shard; `name` is what messages call it."""
    rows = {'.tar': tar_rows, '.arrow': arrow_rows, '.parquet': parquet_rows}[file.suffix](
        file, name
    )
    if not len(rows.starts):
        raise UserError(
            f'the shard {name} holds no image (a member NAME.jpg, .jpeg, .png or .webp); leave it out'
        )
    count, low, high = (
        CLASSES if rows.kind == 'numbers' else len(rows.classes),
        rows.labels.min(),
        rows.labels.max(),
    )
    if low < -1 or high >= count:
        raise UserError(
            f'the shard {name} has the label {low if low < -1 else high}, and labels are numbers of its {count} classes from '
            '0 on, or -1; correct the labels, or write names'
        )
    return rows


# ---- tar archives


def tar_rows(file: Path, shard: str) -> Rows:
    places, names, labels, about = [], [], [], {}
    with file.open('rb', buffering=0) as opened:
        for name, sample in samples(opened.fileno(), shard):
            if name.startswith(ABOUT):
                about = about or msgspec.to_builtins(
                    json_of(opened.fileno(), sample, About, name, shard, NOTE)
                )
                continue
            labels.append(label_of(opened.fileno(), sample, name, shard))
            # Beside an image, an array is something else.
            images = [kind for kind in sample if kind in image_kinds()] or [
                kind for kind in sample if kind == ARRAY
            ]
            if len(images) != 1:
                held = ', '.join(printable(kind.decode(errors='replace')) for kind in sample)
                refuse(
                    shard,
                    name,
                    f'has {len(images) or "no"} images among its members ({held}); it must have one',
                )
            places.append(sample[images[0]][:2])
            names.append(name)
    if doubled := [name for name, times in Counter(names).items() if times > 1]:
        refuse(shard, doubled[0], 'is there twice')
    for name, label in zip(names, labels):
        if type(label) is not type(labels[0]):
            refuse(
                shard,
                name,
                f'is labelled {label!r:.40} and the first one {labels[0]!r:.40}, not of one kind',
            )
    kind, classes = KINDS[type(labels[0])] if labels else 'none', []
    if kind == 'names':
        classes = sorted(set(labels))
        number = {name: at for at, name in enumerate(classes)}
        labels = [number[label] for label in labels]
    elif kind == 'none':
        labels = [-1] * len(labels)
    if 'classes' in about:
        kind, classes = 'classes', about['classes']
    starts, sizes = np.array(places, np.int64).reshape(-1, 2).T
    return Rows(starts, sizes, np.array(labels, np.int64), names, kind, classes, about)


def samples(file: int, shard: str) -> Iterator[tuple[bytes, dict[bytes, Member]]]:
    """The members of a tar archive put together as WebDataset does: neighbours with one name before the first dot."""
    name, sample = b'', {}
    for path, member in members(file, shard):
        folder, slash, base = path.removeprefix(b'./').rpartition(b'/')
        stem, dot, kind = base.partition(b'.')
        if not dot or not stem:
            continue
        if (key := folder + slash + stem) != name:
            if sample:
                yield name, sample
            name, sample = key, {}
        if (kind := kind.lower()) in sample:
            refuse(shard, name, 'has two members of one name')
        sample[kind] = member
    if sample:
        yield name, sample


def content(file: int, member: Member, shard: str, limit: int = SMALL) -> bytes:
    """Return the content of a small member."""
    start, size, first = member
    if size > limit:
        raise UserError(
            f'{shard}: a label, a note or an extended header has {size} bytes, and at most {limit} are read; write that '
            'shard again, or leave it out',
            code='member-too-large',
        )
    return first if len(first) == size else os.pread(file, size, start)


def label_of(file: int, sample: dict[bytes, Member], name: bytes, shard: str) -> int | str | None:
    if b'cls' not in sample:
        record = json_of(file, sample, Labelled, name, shard)
        return record.cls if record.label is None else record.label
    text = content(file, sample[b'cls'], shard).decode(errors='replace').strip()
    return int(text) if NUMBER.fullmatch(text) else text


def json_of(
    file: int,
    sample: dict[bytes, Member],
    kind: type[Kind],
    name: bytes,
    shard: str,
    limit: int = SMALL,
) -> Kind:
    text = content(file, sample[b'json'], shard, limit) if b'json' in sample else b'{}'
    return told(text, kind, f'{named(name)}.json in the shard {shard}')


def named(name: bytes) -> str:
    return printable(name.partition(b'\0')[0].decode(errors='replace'))


def refuse(shard: str, name: bytes, fault: str) -> NoReturn:
    raise UserError(
        f'the image {named(name)} in the shard {shard} {fault}; write that shard again, or leave it out'
    )


def members(file: int, shard: str) -> Iterator[tuple[bytes, Member]]:
    """The regular files of a tar archive, each with its path."""
    end, at, records = os.fstat(file).st_size, 0, {}
    while True:
        head = os.pread(file, 2 * BLOCK, at)
        if len(head) < BLOCK:
            raise UserError(
                f'the shard {shard} is cut short: its end mark is missing; copy it again'
            )
        if not head[0] and not any(head[:BLOCK]):
            return
        # A header's sum is taken with its own field as spaces; Adler's checksum, which is in C, begins with the same sum.
        expected = octal(head[148:156]) - 8 * ord(' ') + sum(head[148:156])
        if (adler32(head[:BLOCK]) % 2**16 - 1 - expected) % 65521:
            raise UserError(
                f'the shard {shard} is no tar archive, or damaged at byte {at}; copy it again'
            )
        start, size = at + BLOCK, records.get('size', octal(head[124:136]))
        if size < 0:
            raise UserError(
                f'the shard {shard} is damaged at byte {at}; copy it again', code='damaged-tar'
            )
        at = start + -(-size // BLOCK) * BLOCK
        if start + size > end:
            raise UserError(
                f'the shard {shard} is cut short in its member {named(head[:100])}; copy it again'
            )
        kind, member = head[156:157], (start, size, head[BLOCK : BLOCK + size])
        if kind in b'Lx':  # what does not fit into the next member's header
            text = content(file, member, shard)
            try:
                records.update(extended(kind, text))
            except ValueError as error:
                raise UserError(
                    f'the shard {shard} is damaged at byte {start}; copy it again',
                    code='damaged-tar',
                ) from error
            continue
        if kind in REGULAR or kind in LOST:
            name = records.get('path') or path_of(head)
            lost = LOST.get(kind) or records.get('sparse')
            if lost and name.rpartition(b'.')[2].lower() in image_kinds():
                raise UserError(
                    f'{shard}: the image {named(name)} is stored as {lost}, without its content; write the archive again '
                    'by tar --hard-dereference, and without --sparse',
                    code='image-without-content',
                )
            if not lost:
                yield name, member
        if kind != b'g':
            records = {}


def path_of(head: bytes) -> bytes:
    """Return the path in a header, which has a prefix in the ustar format."""
    name = head[:100].rstrip(b'\0')
    if head[257:263] == b'ustar\0' and head[345]:
        name = head[345:500].rstrip(b'\0') + b'/' + name
    return name


def octal(field: bytes) -> int:
    """A number of a tar header; one above 8 GB is in binary."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], 'big')
    try:
        return int(field.strip(b'\0 ') or b'0', 8)
    except ValueError:
        return -1


def extended(kind: bytes, text: bytes) -> dict[str, bytes | int | str]:
    """Return GNU's long name, or path, size and a sparse format from the records of POSIX, each 'LENGTH KEY=VALUE'."""
    if kind == b'L':
        return dict(path=text.rstrip(b'\0'))
    records, at = {}, 0
    last = max(
        text.rfind(b'path='), text.rfind(b'size=')
    )  # WebDataset writes only a time of change
    while at <= last:
        digits, _, _ = text[at : at + DIGITS].partition(b' ')
        length, begin = int(digits), at + len(digits) + 1
        if at + length <= begin:
            raise ValueError('a record without content')
        key, _, value = text[begin : at + length].rstrip(b'\n').partition(b'=')
        if key == b'path':
            records['path'] = value
        elif key == b'size':
            records['size'] = int(value)
        elif key.startswith(b'GNU.sparse.'):
            records['sparse'] = LOST[b'S']
        at += length
    return records


# ---- Arrow and Parquet


def arrow_rows(file: Path, name: str) -> Rows:
    """The images of an Arrow file as `dataset.save_to_disk` writes it: their bytes lie in it one after the other."""
    pa = arrow(name)
    with pa.memory_map(os.fspath(file)) as mapped:
        whole = mapped.read_buffer()
        try:
            table = (pa.ipc.open_file if bytes(whole[:6]) == b'ARROW1' else pa.ipc.open_stream)(
                whole
            ).read_all()
            column, label, classes = columns(table.schema, name)
            if not label:
                report_unused_labels(table.schema, name)
            table = table.select([column, label] if label else [column])
            table.validate(full=True)  # offsets that lead out of the file would be read
        except (pa.ArrowInvalid, pa.ArrowIndexError, OSError) as error:
            raise UserError(
                f'the shard {name} is no Arrow file, or cut short or damaged ({error}); copy it again',
                code='damaged-arrow',
            ) from error
        starts, sizes = [], []
        for images in table.column(column).chunks:
            images = images.field('bytes') if pa.types.is_struct(images.type) else images
            if images.null_count and images.null_count == len(images):
                raise UserError(
                    f'the shard {name} holds paths and no images; dataset.save_to_disk(...) puts both in one'
                )
            wide = np.int64 if pa.types.is_large_binary(images.type) else np.int32
            offsets = np.frombuffer(images.buffers()[1], wide)[images.offset :][
                : len(images) + 1
            ].astype(np.int64)
            place = images.buffers()[2].address - whole.address
            if not 0 <= place < whole.size:
                raise UserError(
                    f'the shard {name} is compressed, so its images have no place; write it without compression'
                )
            starts.append(place + offsets[:-1])
            sizes.append(np.diff(offsets))
        return columnar(starts, sizes, table.column(label) if label else None, classes)


def parquet_rows(file: Path, name: str) -> Rows:
    opened, _, label, classes = parquet(file, name)
    groups = [opened.metadata.row_group(group).num_rows for group in range(opened.num_row_groups)]
    starts = [np.full(count, group) for group, count in enumerate(groups)]
    if not label:
        report_unused_labels(opened.schema_arrow, name)
    labels = opened.read([label]).column(label) if label else None
    return columnar(starts, [np.arange(count) for count in groups], labels, classes, groups)


def refuse_inflated(metadata: Any, size: int, used: set[str | None], name: str) -> None:
    """Raise if a small Parquet file stands for far more data than an image file compresses to."""
    fault = f'{metadata.num_rows} rows' if not 0 <= metadata.num_rows <= size else ''
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for part in map(group.column, range(group.num_columns)):
            inflated = part.total_uncompressed_size
            if part.path_in_schema.partition('.')[0] in used and inflated > max(
                INFLATED, INFLATION * size
            ):
                fault = f'{inflated} bytes in {part.path_in_schema}'
    if fault:
        raise UserError(
            f'{name}: the file has {size} bytes and states {fault}; write it again, or leave it out',
            code='inflated-parquet',
        )


def columnar(
    starts: list, sizes: list, labels: Any, classes: list[str], groups: Sequence[int] = ()
) -> Rows:
    """Rows from the parts of a table and its column of labels, of which a missing one is unknown."""
    places = [
        np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
        for parts in (starts, sizes)
    ]
    kind, numbers = 'classes' if classes else 'none', np.full(len(places[0]), -1)
    if labels is not None:
        if not arrow('').types.is_integer(labels.type):
            encoded = labels.combine_chunks().dictionary_encode()
            kind, labels, classes = 'names', encoded.indices, encoded.dictionary.to_pylist()
        elif not classes:
            kind = 'numbers'
        numbers = labels.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return Rows(*places, numbers, [b''] * len(numbers), kind, classes, {}, groups)


def arrow(name: str) -> Any:
    try:
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(
            f'{name}: Arrow and Parquet files are read by the package `pyarrow`; pip install pyarrow'
        ) from error
    return pyarrow


def parquet(file: Path | io.FileIO, name: str) -> tuple[Any, str, str | None, list[str]]:
    """Open a Parquet file; return it with its columns of images and of labels, and the names of the classes."""
    pa = arrow(name)
    try:
        opened = pa.parquet.ParquetFile(file)
        column, label, classes = columns(opened.schema_arrow, name)
        size = os.stat(file.fileno() if isinstance(file, io.FileIO) else file).st_size
        refuse_inflated(opened.metadata, size, {column, label}, name)
        if (
            size <= INFLATED
        ):  # keep repeated values as a dictionary: a few bytes can stand for gigabytes
            parts = map(opened.schema.column, range(len(opened.schema)))
            repeated = [
                part.path for part in parts if part.path.partition('.')[0] in {column, label}
            ]
            opened = pa.parquet.ParquetFile(
                file, metadata=opened.metadata, read_dictionary=repeated
            )
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(
            f'the shard {name} is no Parquet file, or cut short ({error}); copy it again'
        ) from error
    return opened, column, label, classes


@lru_cache
def table(file: io.FileIO, name: str) -> tuple[Any, str]:
    """An open Parquet file and its column of images."""
    return parquet(file, name)[:2]


@lru_cache(GROUPS)
def row_group(file: io.FileIO, name: str, group: int) -> Any:
    """The images of a row group: a Parquet file is compressed group by group, so none can be read alone."""
    opened, column = table(file, name)
    return opened.read_row_group(group, [column], use_threads=False).column(0).combine_chunks()


def parquet_image(file: io.FileIO, name: str, group: int, row: int) -> bytes:
    """The bytes of an image; of `Dataset.to_parquet`, which may leave them where they were, the file at its path."""
    image = row_group(file, name, group)[row].as_py()
    if isinstance(image, dict):
        path, image = image.get('path'), image['bytes']
        if image is None and path:
            file = Path(name).parent / path
            return read_file(file, file.parent)
    return image or b''


def columns(schema: Any, name: str) -> tuple[str, str | None, list[str]]:
    """The column of images, that of labels, and their names: as `datasets` notes them, or else by their types."""
    types = arrow(name).types
    note = (schema.metadata or {}).get(b'huggingface', b'{}')  # of `datasets`, about its columns
    noted = (
        told(note, dict[str, Any], f'the note in the shard {name}')
        .get('info', {})
        .get('features', {})
    )
    kinds = {
        column: feature.get('_type')
        for column, feature in noted.items()
        if isinstance(feature, dict)
    }
    held = [field for field in schema if is_image(field.type, types)]
    images = [field.name for field in held if kinds.get(field.name, 'Image') == 'Image']
    texts = [field.name for field in schema if is_text(field.type, types)]
    if not images:
        urls = f' ({", ".join(texts)} hold text, such as URLs)' if texts else ''
        raise UserError(
            f'the shard {name} has no column of images among {", ".join(schema.names)}{urls}; it must hold the bytes of '
            'the files, so download the images first (img2dataset writes shards), or cast the column to datasets.Image'
        )
    label = next(
        (
            column
            for column, kind in kinds.items()
            if kind == 'ClassLabel' and column in schema.names
        ),
        None,
    )
    if label:
        return (
            images[0],
            label,
            typed(noted[label].get('names'), list[str], f'the classes of {name}'),
        )
    integers = [field.name for field in schema if types.is_integer(field.type)]
    return (
        images[0],
        next((column for column in ('label', 'cls') if column in integers + texts), None),
        [],
    )


def report_unused_labels(schema: Any, name: str) -> None:
    """Warn about columns that are named like labels and have another type."""
    unused = [f'{field.name} ({field.type})' for field in schema if field.name in ('label', 'cls')]
    if unused:
        print_log(
            f'{name}: {", ".join(unused)} is not used as labels, which must be integers or names; cast it',
            logger='current',
            level=WARNING,
        )


def is_image(kind: Any, types: Any) -> bool:
    if types.is_struct(kind):
        return any(kind[at].name == 'bytes' for at in range(kind.num_fields))
    return types.is_binary(kind) or types.is_large_binary(kind)


def is_text(kind: Any, types: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)
