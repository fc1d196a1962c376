"""Whether a checkpoint file is whole: what its zip archive says of itself, checked to the last record.

A file that torch writes is a zip archive, and each of its records carries a CRC-32 that `torch.load` does not look at, so
that a bit that flipped on a disk or on the way is loaded as a weight. Here every record is read once and its sum compared,
and the archive's two accounts of where the records lie are held against each other, for torch believes one and other
programs the other.
"""

import struct
import zipfile
from pathlib import Path
from typing import IO

CHUNK = 1 << 20
LOCAL = struct.Struct('<4s5H3I2H')  # the header in front of a record; its last two numbers are lengths
DESCRIPTORS = (0, 12, 16, 20, 24)  # bytes behind a record that repeat its sum and sizes, if it has any
ENDINGS = (22, 22 + 76)  # bytes behind the list of records, the second with the 64-bit sizes that torch writes
DIRECTORY = 0x10  # the attribute of a folder; torch reads nothing from such a record and reports success


def is_archive(path: Path) -> bool:
    """Whether torch would take the file for a zip archive."""
    with path.open('rb') as file:
        return file.read(4) == b'PK\x03\x04'


def damage(path: Path) -> str | None:
    """What is wrong with the file, as a phrase to follow its name, or None; reads it once, one MiB at a time.

    >>> damage(Path('work_dirs/demo/epoch_10.pth'))  # doctest: +SKIP
    'is truncated or damaged: its record epoch_10/data/7 does not have the sum that was written with it'
    """
    if path.stat().st_size == 0:
        return 'is empty (0 bytes)'
    found = _wrong(path)
    return found and f'is truncated or damaged: {found}'


def _wrong(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive, path.open('rb') as file:
            records = sorted(archive.infolist(), key=lambda record: record.header_offset)
            return _misplaced(records, archive, file) or next(filter(None, map(_odd, records)), None) or _sums(archive)
    except Exception:  # zipfile raises a dozen kinds for broken archives: BadZipFile, struct.error, NotImplementedError
        return 'it is no whole zip archive, as torch writes them'


def _misplaced(records: list[zipfile.ZipInfo], archive: zipfile.ZipFile, file: IO[bytes]) -> str | None:
    """The records fill the file from its first byte to the list of records, which fills it to the last."""
    names = [record.orig_filename.casefold() for record in records]  # torch looks names up without regard to case
    if not records or len(set(names)) < len(names) or len({name.partition('/')[0] for name in names}) > 1:
        return 'its list of records names none, one twice or two archives'
    at = 0
    for record in [*records, None]:
        begins = record.header_offset if record else archive.start_dir
        if begins - at not in ((0,) if at == 0 else DESCRIPTORS):
            return f'its records do not follow one another at byte {at}'
        at = begins + (_length(record, file) if record else 0)
    listed = sum(46 + len(entry.orig_filename.encode()) + len(entry.extra) + len(entry.comment) for entry in records)
    if file.seek(0, 2) - archive.start_dir - listed not in ENDINGS:
        return 'it does not end where its list of records does'
    return None


def _length(record: zipfile.ZipInfo, file: IO[bytes]) -> int:
    """Bytes of a record with its header."""
    file.seek(record.header_offset)
    header = LOCAL.unpack(file.read(LOCAL.size))
    return LOCAL.size + header[-2] + header[-1] + record.compress_size


def _odd(record: zipfile.ZipInfo) -> str | None:
    """What torch never writes, and would read otherwise than the sum is taken."""
    stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
    if not stored or record.external_attr & DIRECTORY or record.orig_filename.endswith('/'):
        return f'its record {record.filename} is compressed or a folder, which torch does not write'
    return None


def _sums(archive: zipfile.ZipFile) -> str | None:
    """Read each record to its end, where zipfile compares the sum."""
    for record in archive.infolist():
        try:
            with archive.open(record) as content:
                while content.read(CHUNK):
                    pass
        except zipfile.BadZipFile:
            return f'its record {record.filename} does not have the sum that was written with it'
    return None
