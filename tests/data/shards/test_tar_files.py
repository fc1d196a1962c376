"""Tar archives: names, labels, damaged archives, hostile members, and members without content."""

import io
import json
import os
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data.archives import archive, png, tar
from harness.errors import raises_code

from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.shards import tar_files
from mmairl.data.shards.dataset import Shards
from mmairl.data.subsets import ListedSubset
from mmairl.errors import UserError

pytestmark = pytest.mark.usefixtures('own_cache')
PIXELS = np.random.default_rng(0).integers(0, 256, (10, 9, 7, 3), dtype=np.uint8)
FILES = [png(pixels) for pixels in PIXELS]
IMAGE = png(np.full((8, 8, 3), 7, 'uint8'))
GOOD = archive({'a.png': IMAGE, 'a.cls': b'1'})


def sample(key: str, number: int, label: bytes | None = None) -> dict[str, bytes]:
    return {f'{key}.png': FILES[number]} | ({} if label is None else {f'{key}.cls': label})


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, kind: bytes, content: bytes) -> bytes:
    return header(name, kind, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def write(folder: Path, content: bytes) -> Path:
    path = folder / 'a.tar'
    path.write_bytes(content)
    return path


@pytest.mark.parametrize('form', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_non_ascii_names_are_read(tmp_path, form):
    deep = '/'.join(['d' * 45] * 2) + '/' + 'n' * 90
    names = [deep, 'ç/ü', 'a.b/c', '2']
    if form == tarfile.USTAR_FORMAT:
        names = ['d' * 90 + '/' + 'n' * 60, 'a.b/c', '2']
    members = {'./.hidden.png': b'', 'README': b'', '__x__/y': b''}
    for number, key in enumerate(names):
        members |= sample(key, number)
    data = Shards(tar(tmp_path / 'a.tar', members, form))
    assert [data.contents.name(row) for row in range(len(names))] == names
    assert torch.equal(data.raw(2), torch.from_numpy(PIXELS[2]).permute(2, 0, 1))
    assert data.classes == []
    assert data.name(1) == f'{tmp_path}/a.tar/{names[1]}'


def test_hostile_names_are_never_opened(tmp_path):
    (tmp_path / 'outside.png').write_bytes(FILES[9])
    names = ['/etc/passwd.png', '../../outside.png', 'new\nline.png']
    path = tar(tmp_path / 'a.tar', dict(zip(names, FILES)))
    before = sorted(tmp_path.rglob('*'))
    data = Shards(path)
    assert [int(data.raw(row)[0, 0, 0]) for row in range(3)] == PIXELS[:3, 0, 0, 0].tolist()
    assert {file for file in tmp_path.rglob('*') if 'cache' not in file.parts} == set(before)


def test_links_and_devices_are_left_out_and_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(tar_files, 'print_log', log := Mock())
    links = b''.join(header(f'x{kind.decode()}.png', kind, 0) for kind in (b'2', b'3', b'6'))
    links += header('x2.cls', b'2', 0)
    data = Shards(write(tmp_path, links + header('folder', b'5', 0) + GOOD))
    assert len(data) == 1
    assert '4 members are named like images or labels' in log.call_args.args[0]


def test_listed_images_are_found_with_any_extension(tmp_path):
    members = sample('n01/n01_1', 1, b'0') | sample('n02/n02_7', 7, b'1')
    members |= {'n01/n01_3.TIFF': FILES[3], 'n01/n01_3.cls': b'0'}
    path = tar(tmp_path / 'a.tar', members)
    (tmp_path / 'list.txt').write_text('n01_3.JPEG\nn02/n02_7.png\n')
    data = ListedSubset(dict(type='Shards', root=str(path)), tmp_path / 'list.txt')
    assert data.indices.tolist() == [1, 2]
    assert data.labels.tolist() == [1, 0]
    assert data.name(0) == f'{path}/n02/n02_7'


def test_unreadable_image_is_named(tmp_path):
    data = Shards(tar(tmp_path / 'a.tar', {'bad.jpg': b'no image', 'none.png': b''}))
    for index, reason, key in [(0, Reason.NO_IMAGE, 'bad'), (1, Reason.EMPTY, 'none')]:
        with pytest.raises(UnreadableImage, match=f'a.tar/{key} {reason.phrase}'):
            data.raw(index)


def test_shard_overwritten_while_open_is_an_error(tmp_path):
    path = tar(tmp_path / 'a.tar', sample('good', 0))
    data = Shards(path)
    data.raw(0)
    with path.open('r+b') as opened:
        opened.write(archive(sample('evil', 1)))
    os.utime(path, ns=(0, 0))
    with raises_code('shard-changed', 'a.tar'):
        data.raw(0)


NOTE = '__mmairl__/about.json'
DEEP = b'{"x":' + b'[' * 10**5
SAMPLES = [
    ('not-one-image', 'image b: .* found 0', sample('a', 0, b'1') | {'b.cls': b'1'}),
    ('not-one-image', 'image a: .* found 2', {'a.png': FILES[0], 'a.jpg': FILES[1]}),
    ('duplicate-member', 'image a:', {'a.png': FILES[0], './a.png': FILES[1]}),
    ('duplicate-image', 'image a:', sample('a', 0) | sample('b', 1) | {'a.jpg': FILES[2]}),
    ('bad-shard-json', 'b.json: .*`bool`', {'b.png': b'', 'b.json': b'{"label": true}'}),
    ('bad-shard-json', 'c.json: .*recursion', {'c.png': b'', 'c.json': DEEP}),
    ('bad-shard-json', '..classes', {NOTE: b'{"classes": {}}', 'a.png': FILES[0]}),
    ('bad-label', 'from 0 to 999999, .*1000000000', sample('a', 0, b'1000000000')),
    ('bad-label', 'from 0 to 1, .*3', {NOTE: b'{"classes": ["x", "y"]}'} | sample('a', 0, b'3')),
    ('mixed-labels', "'cat' .* 1", sample('a', 0, b'1') | sample('b', 1, b'cat')),
    ('mixed-labels', 'None .* 1', sample('a', 0, b'1') | sample('b', 1)),
    ('empty-shard', 'a.tar', {'notes': b'x'}),
]  # fmt: skip


@pytest.mark.parametrize(('code', 'match', 'members'), SAMPLES)
def test_invalid_sample_is_an_error(code, match, members, tmp_path):
    with raises_code(code, match):
        Shards(tar(tmp_path / 'a.tar', members))


def with_size(field: bytes) -> bytes:
    """Return an archive whose first header states the size `field`.

    A negative size could send the reader back to the same header.
    """
    head = bytearray(header('a.cls', tarfile.REGTYPE, 0))
    head[124:136] = field.ljust(12, b'\0')
    head[148:156] = b' ' * 8
    head[148:156] = b'%06o\0 ' % sum(head)
    return bytes(head) + GOOD


DAMAGED = [GOOD[: 1024 - tarfile.RECORDSIZE], GOOD[:700], b'x' * 4096]
DAMAGED += [member('x', tarfile.XHDTYPE, text) + GOOD for text in (b'0 path=x\n', b'no path=x\n', b'11 size=-9\n')]
DAMAGED += map(with_size, (b'-0001000\0', b'-0000001\0', b'xyz\0\0\0\0\0\0'))


@pytest.mark.parametrize('content', DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_archive_is_an_error(content, tmp_path):
    with raises_code('damaged-tar', 'a.tar'):
        Shards(write(tmp_path, content))


EXTENDED = {
    'empty records': b'2 ' * (2**19 - 8) + b'path=',
    'short records': b'4 x\n' * (2**18 - 8) + b'9 path=x\n',
    'short pairs': b'6 x=1\n' * (2**17 - 8) + b'9 path=x\n',
    'digits': b'9' * (2**20 - 8) + b' path=',
    'size of many digits': b'99999 size=' + b'9' * 99988,
}


@pytest.mark.parametrize('text', EXTENDED.values(), ids=EXTENDED)
def test_extended_header_costs_linear_time(text, tmp_path):
    path = write(tmp_path, member('x', tarfile.XHDTYPE, text) + GOOD)
    began = time.process_time()
    with suppress(UserError):
        Shards(path)
    assert time.process_time() - began < 20, 'reading does not take linear time (quadratic time would be minutes)'


@pytest.mark.parametrize('kind', [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_huge_extended_header_is_not_read(kind, tmp_path):
    with raises_code('member-too-large'):
        Shards(write(tmp_path, member('x', kind, bytes(2**20 + 1)) + GOOD))


@pytest.mark.parametrize('name', ['a.cls', 'a.json', NOTE])
def test_huge_label_is_not_read(name, tmp_path):
    size = 6 * 2**30
    with (tmp_path / 'a.tar').open('wb') as file:
        file.write(member('a.png', tarfile.REGTYPE, IMAGE))
        file.write(header(name, tarfile.REGTYPE, size))
        file.seek(size, io.SEEK_CUR)
        file.write(bytes(1024))
    with raises_code('member-too-large'):
        Shards(tmp_path / 'a.tar')


@pytest.mark.parametrize('kind', [tarfile.LNKTYPE, tarfile.GNUTYPE_SPARSE])
def test_image_without_content_is_an_error(kind, tmp_path):
    for name in ('b.png', 'a.cls', 'a.json'):
        with raises_code('image-without-content', name):
            Shards(write(tmp_path, header(name, kind, 0) + GOOD))
    assert len(Shards(write(tmp_path, header('b.txt', kind, 0) + GOOD))) == 1


def test_image_in_a_sparse_pax_format_is_an_error(tmp_path):
    records = b'22 GNU.sparse.major=1\n' + b'32 GNU.sparse.realsize=00000512\n'
    head = member('x', tarfile.XHDTYPE, records)
    with raises_code('image-without-content'):
        Shards(write(tmp_path, head + member('b.png', tarfile.REGTYPE, IMAGE) + GOOD))


def test_contiguous_member_is_read(tmp_path):
    members = member('b.png', tarfile.CONTTYPE, IMAGE) + member('b.cls', b'7', b'0')
    data = Shards(write(tmp_path, members + GOOD))
    assert data.labels.tolist() == [0, 1]
    assert int(data.raw(0)[0, 0, 0]) == 7


def test_labels_of_the_packing_note_are_used(tmp_path):
    note = json.dumps(dict(classes=['x', 'y'], images=1)).encode()
    data = Shards(tar(tmp_path / 'a.tar', {NOTE: note} | sample('a', 0, b'1')))
    assert data.classes == ['x', 'y']
    assert data.labels.tolist() == [1]
