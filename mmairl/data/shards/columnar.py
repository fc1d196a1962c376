"""Reading of images from Arrow and Parquet files, such as those that Hugging Face's library `datasets` writes."""

import io
import os
from contextlib import AbstractContextManager
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from mmengine.logging import print_log

from mmairl.data.decode import installed
from mmairl.data.reading import read_file
from mmairl.data.shards.rows import ShardRows, parse_json
from mmairl.errors import UserError, explained, printable

# In a Parquet file, a column of a row group may expand to INFLATED bytes, or to INFLATION bytes per byte of the file, whichever
# is more.
INFLATED = 2**28
INFLATION = 50
# A process caches this many row groups, so that the default `window` of ResumableSampler fits into the cache.
GROUPS = 16


class Columns(NamedTuple):
    """The names of the columns with images and labels, and the class names that the file states.

    `label` is None if the file has no labels, and `classes` is empty if the file states no class names.
    """

    image: str
    label: str | None
    classes: list[str]

    @property
    def used(self) -> list[str]:
        return [self.image, self.label] if self.label else [self.image]


class Feature(msgspec.Struct):
    """The description of a column in the metadata that `datasets` stores in a file."""

    kind: Any = msgspec.field(name='_type', default='Value')
    names: list[str] = []


class HubInfo(msgspec.Struct, frozen=True):
    features: dict[str, Feature | list] = {}


class HubNote(msgspec.Struct):
    info: HubInfo = HubInfo()


def pyarrow(name: str) -> Any:
    with installed('pyarrow', f'{name}: Arrow and Parquet files'):
        import pyarrow.ipc
        import pyarrow.parquet
    return pyarrow


def intact(name: str, kind: str) -> AbstractContextManager[None]:
    """Turn pyarrow's errors about a damaged file into a UserError."""
    # ArrowInvalid and ArrowIndexError are derived from these classes.
    errors = (ValueError, OSError, IndexError)
    fault = f'{name}: the file is not {kind} file, or it is truncated or damaged'
    return explained(fault, 'copy the file again', errors, code='damaged-table')


def read_arrow(file: Path, name: str) -> ShardRows:
    """Index the images of an Arrow file. The position of an image is a range of bytes in the file."""
    pa = pyarrow(name)
    with pa.memory_map(os.fspath(file)) as mapped, intact(name, 'an Arrow'):
        content = mapped.read_buffer()
        opened = pa.ipc.open_file if bytes(content[:6]) == b'ARROW1' else pa.ipc.open_stream
        table = opened(content).read_all()
        columns = find_columns(table.schema, name)
        table = table.select(columns.used)
        table.validate(full=True)  # wrong offsets would read memory outside the file
        rows = labeled_rows(table, columns, name)
        chunks = [
            images.field('bytes') if pa.types.is_struct(images.type) else images
            for images in table.column(columns.image).chunks
            if len(images)
        ]
        if chunks and all(images.null_count == len(images) for images in chunks):
            raise UserError(
                f'{name}: the shard contains paths instead of images; store the images by dataset.save_to_disk(...)',
                code='paths-in-arrow',
            )
        for images in chunks:
            is_large = pa.types.is_large_binary(images.type)
            offsets = np.frombuffer(images.buffers()[1], np.int64 if is_large else np.int32)
            offsets = offsets[images.offset :][: len(images) + 1].astype(np.int64)
            if offsets[0] == offsets[-1]:
                # All images of this chunk are empty, so the chunk may have no buffer for their content.
                rows.starts += [0] * len(images)
                rows.sizes += [0] * len(images)
                continue
            place = images.buffers()[2].address - content.address
            if not 0 <= place < content.size:
                raise UserError(
                    f'{name}: compressed Arrow files are not supported; write the file without compression',
                    code='compressed-arrow',
                )
            rows.starts += (place + offsets[:-1]).tolist()
            rows.sizes += np.diff(offsets).tolist()
        return rows


def read_parquet(file: Path, name: str) -> ShardRows:
    """Index the images of a Parquet file. The position of an image is a row group and a row in this group.

    A row group is the smallest unit that can be read.
    """
    opened, columns = open_parquet(file, name)
    rows = labeled_rows(opened.read([columns.label] if columns.label else []), columns, name)
    for group in range(opened.num_row_groups):
        count = opened.metadata.row_group(group).num_rows
        rows.groups.append(count)
        rows.starts += [group] * count
        rows.sizes += range(count)
    return rows


def labeled_rows(table: Any, columns: Columns, name: str) -> ShardRows:
    """Return an index with the labels of a table, but without the positions of the images. A missing label becomes -1."""
    rows = ShardRows(labels=[-1] * len(table), names=[b''] * len(table), classes=columns.classes)
    rows.label_kind = 'classes' if columns.classes else 'none'
    if columns.label:
        labels = table.column(columns.label)
        if not pyarrow(name).types.is_integer(labels.type):
            encoded = labels.combine_chunks().dictionary_encode()
            labels = encoded.indices
            rows.label_kind = 'names'
            rows.classes = encoded.dictionary.to_pylist()
        elif not columns.classes:
            rows.label_kind = 'numbers'
        rows.labels = [-1 if label is None else label for label in labels.to_pylist()]
    return rows


def open_parquet(file: Path | io.FileIO, name: str) -> tuple[Any, Columns]:
    pa = pyarrow(name)
    with intact(name, 'a Parquet'):
        opened = pa.parquet.ParquetFile(file)
        columns = find_columns(opened.schema_arrow, name)
        size = os.stat(file.fileno() if isinstance(file, io.FileIO) else file).st_size
        require_plausible_sizes(opened.metadata, size, columns.used, name)
        # In a small file, a few bytes can represent gigabytes of repeated values. The columns are therefore read as
        # dictionaries, which store each value once.
        if size <= INFLATED:
            paths = [opened.schema.column(number).path for number in range(len(opened.schema))]
            repeated = [path for path in paths if path.partition('.')[0] in columns.used]
            metadata = opened.metadata
            opened = pa.parquet.ParquetFile(file, metadata=metadata, read_dictionary=repeated)
    return opened, columns


def require_plausible_sizes(metadata: Any, size: int, used: list[str], name: str) -> None:
    """Raise if the columns of a Parquet file would expand to far more data than is plausible for images in such a file."""
    faults = [] if 0 <= metadata.num_rows <= size else [f'{metadata.num_rows} rows']
    limit = max(INFLATED, INFLATION * size)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for part in map(group.column, range(group.num_columns)):
            is_used = part.path_in_schema.partition('.')[0] in used
            if is_used and part.total_uncompressed_size > limit:
                faults.append(f'{part.total_uncompressed_size} bytes in {part.path_in_schema}')
    if faults:
        raise UserError(
            f'{name}: a file of {size} bytes would expand to {faults[0]}; write the file again, or leave it out',
            code='inflated-parquet',
        )


opened_once = lru_cache(open_parquet)


@lru_cache(GROUPS)
def row_group(file: io.FileIO, name: str, group: int) -> Any:
    """Return all images of a row group. The images are compressed together, so a single image cannot be read alone."""
    opened, columns = opened_once(file, name)
    # The chunks of the column are not combined, because pyarrow cannot combine chunks of more than 2 GB in total.
    return opened.read_row_group(group, [columns.image], use_threads=False).column(0)


def parquet_image(file: io.FileIO, name: str, group: int, row: int) -> bytes:
    """Return the file content of an image.

    `Dataset.to_parquet` may store only the path of an image. In this case, read the file at this path, which is relative to
    the folder of the shard.
    """
    image = row_group(file, name, group)[row].as_py()
    if isinstance(image, dict):
        path = image.get('path')
        image = image['bytes']
        if image is None and path:
            file = Path(name).parent / path
            return read_file(file, file.parent)
    return image or b''


def find_columns(schema: Any, name: str) -> Columns:
    """Find the columns with images and labels by their types and names and, if the file has it, the metadata of `datasets`."""
    types = pyarrow(name).types
    note = (schema.metadata or {}).get(b'huggingface', b'{}')
    where = f'{name}: the metadata of `datasets`'
    features = parse_json(note, HubNote, where).info.features
    kind_of = {
        column: feature.kind for column, feature in features.items() if isinstance(feature, Feature)
    }
    texts = [field.name for field in schema if is_text(field.type, types)]
    images = [
        field.name
        for field in schema
        if is_image(field.type, types) and kind_of.get(field.name, 'Image') == 'Image'
    ]
    if not images:
        urls = f' (columns with text, such as URLs: {", ".join(texts)})' if texts else ''
        raise UserError(
            f'{name}: none of the columns {", ".join(schema.names)} contains image files{urls}; download the images into '
            'shards, for example by img2dataset, or cast a column to datasets.Image',
            code='no-image-column',
        )
    for column in schema.names:
        if kind_of.get(column) == 'ClassLabel':
            return Columns(images[0], column, features[column].names)
    unused = ''
    for column in [key for key in ('label', 'cls') if key in schema.names]:
        kind = schema.field(column).type
        if column in texts or types.is_integer(kind):
            return Columns(images[0], column, [])
        unused = (
            f'{name}: the column {column} ({kind}) is not used as labels, because labels must be integers or names; cast the '
            'column'
        )
    if unused:
        print_log(printable(unused), logger='current', level=WARNING)
    return Columns(images[0], None, [])


def is_image(kind: Any, types: Any) -> bool:
    if types.is_struct(kind):
        index = kind.get_field_index('bytes')
        return index >= 0 and is_image(kind.field(index).type, types)
    return types.is_binary(kind) or types.is_large_binary(kind)


def is_text(kind: Any, types: Any) -> bool:
    kind = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_string(kind) or types.is_large_string(kind)
