"""Small files that would cost much time or memory, damaged numbers, and images that a shard does not contain."""

import io
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest
from data.archives import archive, png, tar

from mmairl.data.shards import formats
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.index import refuse_gaps, shards_at
from mmairl.errors import UserError

pytestmark = pytest.mark.usefixtures('own_cache')
IMAGE = png(formats.np.full((8, 8, 3), 7, 'uint8'))
GOOD = archive({'a.png': IMAGE, 'a.cls': b'1'})


def header(name: str, kind: bytes, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, kind: bytes, content: bytes) -> bytes:
    return header(name, kind, len(content)) + content + bytes(-len(content) % tarfile.BLOCKSIZE)


def refused(path: Path) -> str:
    """Return the code of the error that a shard ends in, which must take less than 5 CPU seconds."""
    began = time.process_time()
    with pytest.raises(UserError) as raised:
        Shards(path)
    assert time.process_time() - began < 5
    return raised.value.code


EXTENDED = {
    'empty records': b'2 ' * (2**19 - 8) + b'path=',
    'short records': b'4 x\n' * (2**18 - 8) + b'9 path=x\n',
    'digits': b'9' * (2**20 - 8) + b' path=',
    'size of many digits': b'99999 size=' + b'9' * 99988,
}


@pytest.mark.parametrize('text', EXTENDED.values(), ids=EXTENDED)
def test_extended_header_costs_linear_time(text, tmp_path):
    (tmp_path / 'a.tar').write_bytes(member('x', tarfile.XHDTYPE, text) + GOOD)
    began = time.process_time()
    with suppress(UserError):
        Shards(tmp_path / 'a.tar')
    assert time.process_time() - began < 5


def test_extended_header_beyond_the_limit_is_refused(tmp_path):
    for kind in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
        (tmp_path / 'a.tar').write_bytes(member('x', kind, bytes(2**20 + 1)) + GOOD)
        assert refused(tmp_path / 'a.tar') == 'member-too-large'


@pytest.mark.parametrize('name', ['a.cls', 'a.json', '__mmairl__/about.json'])
def test_huge_label_is_not_read(name, tmp_path):
    size = 6 * 2**30
    with (tmp_path / 'a.tar').open('wb') as file:
        file.write(header('a.png', tarfile.REGTYPE, len(IMAGE)) + IMAGE + bytes(-len(IMAGE) % 512))
        file.write(header(name, tarfile.REGTYPE, size))
        file.seek(size, io.SEEK_CUR)
        file.write(bytes(1024))
    assert refused(tmp_path / 'a.tar') == 'member-too-large'


@pytest.mark.parametrize('field', [b'-0001000\0', b'-0000001\0', b'xyz\0\0\0\0\0\0'])
def test_member_of_no_possible_size_is_damaged(field, tmp_path):
    """A negative size would lead back to the same header without end."""
    head = bytearray(header('a.cls', tarfile.REGTYPE, 0))
    head[124:136] = field.ljust(12, b'\0')
    head[148:156] = b' ' * 8
    head[148:156] = b'%06o\0 ' % sum(head)
    (tmp_path / 'a.tar').write_bytes(bytes(head) + GOOD)
    assert refused(tmp_path / 'a.tar') == 'damaged-tar'


def test_missing_shards_are_counted_without_a_list_of_them(tmp_path):
    path = tar(tmp_path / 'many/a-1-of-9999999999.tar', {'a.png': IMAGE})
    assert refused(path.parent) == 'missing-shards'
    with pytest.raises(UserError, match='9999999997 of the 9999999999 shards are missing, first a-2-of'):
        refuse_gaps(['a-0-of-9999999999.tar', 'a-1-of-9999999999.tar'])
    refuse_gaps([f'a-{at}-of-12.tar' for at in range(12)])
    refuse_gaps([f'a-{at:05}-of-00012.tar' for at in range(12)])


def test_patterns_together_name_a_limited_number(monkeypatch):
    monkeypatch.setattr('mmairl.data.shards.index.MAX_SHARDS', 1000)
    with pytest.raises(UserError) as raised:
        shards_at('/nowhere/{0..999}{0..999}{0..999}.tar')
    assert raised.value.code == 'many-shards'


@pytest.mark.parametrize(
    ('kind', 'stored'), [(tarfile.LNKTYPE, 'a hard link'), (tarfile.GNUTYPE_SPARSE, 'a sparse file')]
)
def test_image_without_content_is_an_error(kind, stored, tmp_path):
    (tmp_path / 'a.tar').write_bytes(header('b.png', kind, 0) + GOOD)
    with pytest.raises(UserError, match=f'image b.png is stored as {stored}') as raised:
        Shards(tmp_path / 'a.tar')
    assert raised.value.code == 'image-without-content'
    (tmp_path / 'a.tar').write_bytes(header('b.txt', kind, 0) + GOOD)
    assert len(Shards(tmp_path / 'a.tar')) == 1


def test_image_in_a_sparse_format_of_pax_is_an_error(tmp_path):
    records = b'22 GNU.sparse.major=1\n' + b'31 GNU.sparse.realsize=00000512\n'
    head = member('x', tarfile.XHDTYPE, records)
    (tmp_path / 'a.tar').write_bytes(head + member('b.png', tarfile.REGTYPE, IMAGE) + GOOD)
    assert refused(tmp_path / 'a.tar') == 'image-without-content'


def test_contiguous_member_is_read(tmp_path):
    (tmp_path / 'a.tar').write_bytes(member('b.png', tarfile.CONTTYPE, IMAGE) + member('b.cls', b'7', b'0') + GOOD)
    data = Shards(tmp_path / 'a.tar')
    assert data.labels.tolist() == [0, 1] and int(data.raw(0)[0, 0, 0]) == 7


# ---- Arrow and Parquet


@pytest.mark.parametrize('offset', [-5, 2**30])
def test_arrow_offsets_outside_of_the_file_are_refused(offset, tmp_path):
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    table = pa.table(dict(image=pa.array([IMAGE] * 3, pa.binary()), label=[0, 1, 2]))
    with pa.OSFile(str(tmp_path / 'a.arrow'), 'wb') as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content = (tmp_path / 'a.arrow').read_bytes()
    held = formats.np.array([0, len(IMAGE), 2 * len(IMAGE)], '<i4').tobytes()
    assert content.count(held) == 1
    lying = formats.np.array([0, offset, 2 * len(IMAGE)], '<i4').tobytes()
    (tmp_path / 'a.arrow').write_bytes(content.replace(held, lying))
    assert refused(tmp_path / 'a.arrow') == 'damaged-arrow'


def parquet(path: Path, columns: dict, **how: object) -> Path:
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table(columns), path, **how)
    return path


def test_parquet_with_more_rows_than_bytes_is_refused(tmp_path):
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    path = parquet(tmp_path / 'a.parquet', dict(image=pa.nulls(10**6, pa.binary()), label=pa.nulls(10**6, pa.int64())))
    assert path.stat().st_size < 10**5 and refused(path) == 'inflated-parquet'


def test_parquet_that_expands_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, 'INFLATED', 2**20)
    zeros = [bytes(2**20) + b'%d' % at for at in range(8)]
    path = parquet(tmp_path / 'a.parquet', dict(image=zeros), use_dictionary=False, compression='zstd')
    assert refused(path) == 'inflated-parquet'


@pytest.mark.parametrize('labels', [[0.5, 1.5], [True, False]])
def test_labels_of_another_type_are_reported(labels, tmp_path, monkeypatch):
    monkeypatch.setattr(formats, 'print_log', log := Mock())
    data = Shards(parquet(tmp_path / 'a.parquet', dict(image=[IMAGE] * 2, label=labels)))
    assert data.labels.tolist() == [-1, -1]
    assert 'is not used as labels' in log.call_args.args[0]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from mmairl.data.shards.formats import parquet_image, rows_of
from mmairl.errors import UserError
from pathlib import Path
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    rows_of(Path(sys.argv[1]), 'a')
    assert len(parquet_image(open(sys.argv[1], 'rb', 0), 'a', 0, 7)) == 100_000
except UserError as error:
    print(error.code)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_values_repeated_in_parquet_cost_little_memory(tmp_path):
    """A name and an image of 100 kB that are stored once, a hundred thousand times: 10 GB each if expanded."""
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    repeated = pa.array(formats.np.zeros(100_000, 'int32'))
    columns = dict(
        image=pa.DictionaryArray.from_arrays(repeated, pa.array([bytes(100_000)])),
        label=pa.DictionaryArray.from_arrays(repeated, pa.array(['x' * 100_000])),
    )
    path = parquet(tmp_path / 'a.parquet', columns, store_schema=False)
    assert path.stat().st_size < 2**20
    ran = subprocess.run([sys.executable, '-c', LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert int(ran.stdout.split()[-1]) < 2**19, ran.stdout
