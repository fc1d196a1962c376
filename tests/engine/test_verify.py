"""What `damage` notices in a checkpoint file, and that torch alone would not."""

import io
import shutil
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.verify import damage
from mmairl.errors import UserError


@pytest.fixture
def whole(tmp_path) -> Path:
    path = tmp_path / 'whole.pth'
    torch.save(dict(state_dict=dict(a=torch.arange(1000.0), b=torch.arange(7))), path)
    return path


def record(path: Path, ending: str) -> tuple[int, zipfile.ZipInfo]:
    """Where a record's content begins, and what the list of records says of it."""
    with zipfile.ZipFile(path) as archive:
        info = next(info for info in archive.infolist() if info.filename.endswith(ending))
    header = path.read_bytes()[info.header_offset : info.header_offset + 30]
    name, extra = struct.unpack('<2H', header[26:])
    return info.header_offset + 30 + name + extra, info


def rewritten(path: Path, at: int, new: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[at : at + len(new)] = new
    path.write_bytes(content)
    return path


def listed(path: Path, ending: str) -> int:
    """Where the entry of a record begins in the list of records at the end of the file."""
    with zipfile.ZipFile(path) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            if info.filename.endswith(ending):
                return at
            at += 46 + len(info.orig_filename) + len(info.extra) + len(info.comment)
    raise AssertionError(ending)


def test_what_torch_writes_is_whole(whole):
    assert damage(whole) is None


@pytest.mark.parametrize('buffered', [True, False])
def test_what_torch_writes_to_a_buffer_or_a_file_is_whole(tmp_path, buffered):
    values, path = dict(state_dict={f'{n}': torch.ones(n) for n in range(70)}), tmp_path / 'a.pth'
    target = io.BytesIO() if buffered else path
    torch.save(values, target)
    if buffered:
        path.write_bytes(target.getvalue())
    assert damage(path) is None


def test_a_flipped_bit_in_a_weight_is_named_though_torch_takes_it(whole):
    at, _ = record(whole, 'data/0')
    before = torch.load(whole, weights_only=True)['state_dict']['a']
    rewritten(whole, at + 2, b'\x01')
    assert not torch.equal(torch.load(whole, weights_only=True)['state_dict']['a'], before)
    with pytest.raises(UserError, match=r'truncated or damaged: its record whole/data/0 does not have the sum'):
        load_checkpoint(whole)


def test_a_record_that_claims_to_be_a_folder_is_refused_for_torch_reads_nothing_from_it(whole):
    before = torch.load(whole, weights_only=True)['state_dict']['a']
    rewritten(whole, listed(whole, 'data/0') + 38, b'\x10')  # the external attributes
    with zipfile.ZipFile(whole) as archive:
        assert archive.testzip() is None
    assert not torch.equal(torch.load(whole, weights_only=True)['state_dict']['a'], before)
    assert 'folder' in damage(whole)


@pytest.mark.parametrize('field', range(12, 28))
def test_sums_and_sizes_of_the_list_are_held_against_the_records(whole, field):
    at = listed(whole, 'data/0') + field
    changed = bytes([whole.read_bytes()[at] ^ 4])
    rewritten(whole, at, changed)
    assert (damage(whole) is None) == (field < 16)  # the first four bytes are the time of day


def test_a_name_that_differs_between_the_record_and_the_list_is_refused(whole):
    _, info = record(whole, 'data/0')
    rewritten(whole, info.header_offset + 30, b'W')
    assert 'damaged' in damage(whole)


@pytest.mark.parametrize('more', [b'\0', b'PK\x05\x06', bytes(5000)])
def test_bytes_before_after_or_between_the_records_are_refused(whole, more):
    content = whole.read_bytes()
    _, info = record(whole, 'data/0')
    for at in (0, info.header_offset, len(content)):
        whole.write_bytes(content[:at] + more + content[at:])
        assert damage(whole)


def test_every_cut_is_noticed(whole):
    content = whole.read_bytes()
    for end in [0, 1, 3, 4, 21, 22, *range(100, len(content), 97), len(content) - 1]:
        whole.write_bytes(content[:end])
        assert damage(whole), end


def test_two_records_of_one_name_are_refused(whole, tmp_path):
    """zipfile would read the last of them and torch another."""
    both = tmp_path / 'both.pth'
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(both, 'w') as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        name = next(name for name in source.namelist() if name.endswith('data/0'))
        with pytest.warns(UserWarning, match='Duplicate'):
            target.writestr(name, bytes(4000))
    assert 'twice' in damage(both)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(both, 'w') as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
        target.writestr(name.upper(), bytes(4000))
    assert 'twice' in damage(both)


def test_a_compressed_record_is_refused(whole, tmp_path):
    packed = tmp_path / 'packed.pth'
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(packed, 'w', zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    assert 'compressed' in damage(packed)


def test_a_zip_archive_that_is_no_checkpoint_is_one_sentence(tmp_path):
    path = Path(shutil.make_archive(str(tmp_path / 'a'), 'zip', tmp_path, '.'))
    with zipfile.ZipFile(path, 'w') as archive:
        archive.writestr('a/text', 'text')
    assert damage(path) is None
    with pytest.raises(UserError, match='zip archive but not a checkpoint'):
        load_checkpoint(path)
