"""Shards that webdataset, pyarrow and datasets have written, and damaged or hostile Arrow and Parquet files."""

import mmap
import pickle
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data.archives import png
from harness.errors import raises_code
from torch.utils.data import DataLoader

from mmairl.data.decode import UnreadableImage
from mmairl.data.sampler import ResumableSampler
from mmairl.data.shards import columnar
from mmairl.data.shards.dataset import Shards
from mmairl.data.subsets import ClassSubset
from mmairl.registry import DATASETS

pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
import pyarrow.parquet  # noqa: E402

pytestmark = pytest.mark.usefixtures('own_cache')
CLASSES = ['ant', 'bee', 'cat']
PIXELS = np.random.default_rng(0).integers(0, 256, (10, 9, 7, 3), dtype=np.uint8)
FILES = [png(pixels) for pixels in PIXELS]
IMAGES = torch.from_numpy(PIXELS).permute(0, 3, 1, 2)
LABELS = [0, 1, 1, 2, 0, 2, 1, 0, 0, 2]


def by_webdataset(folder: Path, label: str) -> str:
    wds = pytest.importorskip('webdataset', reason='webdataset is not installed (pip install webdataset)')
    for shard in range(3):
        with wds.TarWriter(str(folder / f'train-{shard:06}.tar')) as writer:
            for index in range(10)[shard::3]:
                number = LABELS[index]
                fields = dict(
                    cls=dict(cls=number),
                    json=dict(json=dict(label=number, width=7)),
                    names=dict(json=dict(label=CLASSES[number])),
                )
                key = f'n{number}/n{number}_{index}'
                writer.write({'__key__': key, 'png': FILES[index], **fields[label]})
    return str(folder / 'train-{000000..000002}.tar')


def by_datasets(folder: Path, kind: str) -> str:
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    kinds = datasets.Features(label=datasets.ClassLabel(names=CLASSES), image=datasets.Image())
    images = [dict(bytes=file, path=None) for file in FILES]
    # For images that are passed as paths, `to_parquet` stores only the paths.
    if kind == 'paths':
        images = [str(folder / f'{index}.png') for index in range(10)]
        for path, file in zip(images, FILES):
            Path(path).write_bytes(file)
    table = datasets.Dataset.from_dict(dict(label=LABELS, image=images), features=kinds)
    if kind == 'arrow':
        table.save_to_disk(folder, num_shards=2)
        return str(folder)
    for part in range(2):
        path = folder / f'train-{part:05}-of-00002.parquet'
        table.shard(2, part, contiguous=True).to_parquet(path, batch_size=3)
    return str(folder / 'train-*.parquet')


def by_pyarrow(folder: Path, kind: str) -> str:
    labels = LABELS
    if kind == 'names':
        labels = pa.array([CLASSES[label] for label in LABELS]).dictionary_encode()
    columns = dict(id=list(range(10)), jpg=pa.array(FILES, pa.large_binary()), label=labels)
    if kind == 'arrow':
        arrow(folder / 'all.arrow', columns, max_chunksize=4)
    else:
        parquet(folder / 'all.parquet', columns, row_group_size=4)
    return str(folder)


def arrow(path: Path, columns: dict, **how: object) -> Path:
    table = pa.table(columns)
    with pa.OSFile(str(path), 'wb') as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, **how)
    return path


def parquet(path: Path, columns: dict, **how: object) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path, **how)
    return path


WRITERS = [
    (by_webdataset, 'cls', ['0', '1', '2']),
    (by_webdataset, 'json', ['0', '1', '2']),
    (by_webdataset, 'names', CLASSES),
    (by_datasets, 'arrow', CLASSES),
    (by_datasets, 'parquet', CLASSES),
    (by_datasets, 'paths', CLASSES),
    (by_pyarrow, 'arrow', ['0', '1', '2']),
    (by_pyarrow, 'parquet', ['0', '1', '2']),
    (by_pyarrow, 'names', CLASSES),
]


@pytest.mark.parametrize(('write', 'kind', 'classes'), WRITERS)
def test_written_images_and_labels_are_read(write, kind, classes, tmp_path):
    (tmp_path / 'shards').mkdir()
    data = DATASETS.build(dict(type='Shards', root=write(tmp_path / 'shards', kind)))
    order = list(range(10))
    if write is by_webdataset:
        order = [index for shard in range(3) for index in range(10)[shard::3]]
    assert data.classes == classes
    assert data.labels.tolist() == [LABELS[index] for index in order]
    root = data.contents.shards
    for workers in (0, 1):
        batch = next(iter(DataLoader(Shards(root), batch_size=10, num_workers=workers)))
        assert torch.equal(batch['inputs'][0], IMAGES[order])
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.raw(3), IMAGES[order][3])
    assert torch.equal(again.labels, data.labels)
    part = ClassSubset(dict(type='Shards', root=root), 0.34)
    part_labels = {LABELS[order[index]] for index in part.indices}
    assert part_labels == {classes.index(part.classes[0])}


@pytest.mark.parametrize(('kind', 'bounds'), [('parquet', [0, 3, 5, 8, 10]), ('arrow', [0, 5, 10])])
def test_order_by_shards_follows_row_groups(kind, bounds, tmp_path):
    (tmp_path / 'shards').mkdir()
    data = Shards(by_datasets(tmp_path / 'shards', kind))
    assert data.shard_bounds[0].tolist() == bounds
    order = list(ResumableSampler(data, seed=0, order='shards', window=1))
    groups = np.searchsorted(bounds, order, 'right')
    assert sorted(order) == list(range(10))
    assert len(set(groups)) - 1 == (np.diff(groups) != 0).sum()


def test_data_set_of_the_hub_is_read_by_name(tmp_path, monkeypatch):
    """`datasets` also accepts a local folder in place of the name of a data set on the hub."""
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'hub')
    (tmp_path / 'birds').mkdir()
    by_datasets(tmp_path / 'birds', 'parquet')
    for name in ('birds', 'birds:train'):
        data = Shards(f'hf:{tmp_path}/{name}')
        assert data.classes == CLASSES
        assert torch.equal(data.raw(3), IMAGES[3])
    for name in ('birds:none', 'gone'):
        with raises_code('bad-hub-dataset', name):
            Shards(f'hf:{tmp_path}/{name}')


def test_missing_class_name_is_no_label(tmp_path):
    path = parquet(tmp_path / 'a.parquet', dict(jpg=FILES[:3], label=['cat', 'dog', None]))
    assert Shards(path).labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize('missing', [[], [b'', b''], [None]])
def test_chunk_without_images_does_not_reject_arrow(missing, tmp_path):
    schema = pa.schema(dict(image=pa.binary()))
    with pa.OSFile(str(tmp_path / 'a.arrow'), 'wb') as sink, pa.ipc.new_stream(sink, schema) as writer:
        for files in (FILES[:2], missing, FILES[2:]):
            writer.write_batch(pa.record_batch([pa.array(files, pa.binary())], schema=schema))
    shards = Shards(tmp_path / 'a.arrow')
    assert len(shards) == 10 + len(missing) and torch.equal(shards.raw(len(shards) - 1), IMAGES[9])
    for index in range(2, 2 + len(missing)):
        with pytest.raises(UnreadableImage, match='is empty'):
            shards.raw(index)


def test_row_of_a_parquet_image_is_not_its_size(tmp_path):
    shards = Shards(parquet(tmp_path / 'a.parquet', dict(image=[FILES[0]] * 40)), max_pixels=1)
    assert shards.encoded(39) == FILES[0]


def test_row_group_can_have_more_than_two_gigabytes(monkeypatch):
    memory = pa.py_buffer(mmap.mmap(-1, 2**30))  # no page of this memory is used
    large = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.int32([0, 2**30])), memory])
    table = pa.table(dict(image=pa.chunked_array([pa.array(FILES[:1]), large, large])))
    opened = Mock(read_row_group=Mock(return_value=table))
    monkeypatch.setattr(columnar, 'opened_once', Mock(return_value=(opened, columnar.Columns('image', None, []))))
    assert columnar.parquet_image(Mock(), 'a.parquet', 0, 0) == FILES[0]


def test_overwritten_parquet_is_read_again(tmp_path):
    path = parquet(tmp_path / 'a.parquet', dict(image=FILES[:2], n=LABELS[:2]))
    Shards(path).raw(0)
    parquet(path, dict(image=FILES, n=LABELS))
    assert torch.equal(Shards(path).raw(9), IMAGES[9])


@pytest.mark.parametrize('name', ['cut.parquet', 'cut.arrow'])
def test_damaged_table_is_an_error(name, tmp_path):
    (tmp_path / name).write_bytes(b'PAR1ARROW1 and no more')
    with raises_code('damaged-table', name):
        Shards(tmp_path / name)


@pytest.mark.parametrize(
    ('code', 'columns'),
    [
        ('no-image-column', dict(url=['http://x/1.jpg'], n=[1])),
        ('no-image-column', dict(image=[dict(bytes=1)])),
        ('bad-label', dict(image=[FILES[0]], label=[2**40])),
        ('bad-label', dict(image=[FILES[0]], label=pa.array([2**64 - 1], pa.uint64()))),
    ],
)
def test_unsuitable_table_is_an_error(code, columns, tmp_path):
    with raises_code(code):
        Shards(parquet(tmp_path / 'a.parquet', columns))


CLASS_OF_NUMBER = b'{"info": {"features": {"x": {"_type": "ClassLabel", "names": [1]}}}}'


@pytest.mark.parametrize('note', [b'[]', b'{"info": 1}', b'{"info": {"features": []}}', CLASS_OF_NUMBER])
def test_malformed_note_of_datasets_is_an_error(note, tmp_path):
    table = pa.table(dict(image=FILES)).replace_schema_metadata({b'huggingface': note})
    with raises_code('bad-shard-json', 'metadata of'):
        Shards(parquet(tmp_path / 'a.parquet', table))


@pytest.mark.parametrize('offset', [-5, 2**30])
def test_arrow_offset_outside_the_file_is_an_error(offset, tmp_path):
    path = arrow(tmp_path / 'a.arrow', dict(image=pa.array([FILES[0]] * 3, pa.binary())))
    size = len(FILES[0])
    offsets = np.array([0, size, 2 * size], '<i4').tobytes()
    assert path.read_bytes().count(offsets) == 1
    wrong = np.array([0, offset, 2 * size], '<i4').tobytes()
    path.write_bytes(path.read_bytes().replace(offsets, wrong))
    with raises_code('damaged-table'):
        Shards(path)


def test_parquet_that_expands_too_much_is_an_error(tmp_path, monkeypatch):
    nulls = dict(image=pa.nulls(10**6, pa.binary()), label=pa.nulls(10**6, pa.int64()))
    path = parquet(tmp_path / 'a.parquet', nulls)
    assert path.stat().st_size < 10**5
    with raises_code('inflated-parquet', 'rows'):
        Shards(path)
    monkeypatch.setattr(columnar, 'INFLATED', 2**20)
    zeros = [bytes(2**20) + b'%d' % number for number in range(8)]
    parquet(path, dict(image=zeros), use_dictionary=False, compression='zstd')
    with raises_code('inflated-parquet', 'bytes in image'):
        Shards(path)


@pytest.mark.parametrize('labels', [[0.5, 1.5], [True, False]])
def test_labels_of_another_type_are_reported(labels, tmp_path, monkeypatch):
    monkeypatch.setattr(columnar, 'print_log', log := Mock())
    data = Shards(parquet(tmp_path / 'a.parquet', dict(image=FILES[:2], label=labels)))
    assert data.labels.tolist() == [-1, -1]
    assert 'is not used as labels' in log.call_args.args[0]


LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from mmairl.data.shards.columnar import parquet_image, read_parquet
from mmairl.errors import UserError
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_parquet(Path(sys.argv[1]), 'a')
    assert len(parquet_image(open(sys.argv[1], 'rb', 0), 'a', 0, 7)) == 100_000
except UserError as error:
    print(error.code)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_values_repeated_in_parquet_cost_little_memory(tmp_path):
    """100 000 rows share one name and one image of 100 kB each, which are stored once.

    Copies for each row would take 10 GB.
    """
    repeated = pa.array(np.zeros(100_000, 'int32'))
    columns = dict(
        image=pa.DictionaryArray.from_arrays(repeated, pa.array([bytes(100_000)])),
        label=pa.DictionaryArray.from_arrays(repeated, pa.array(['x' * 100_000])),
    )
    path = parquet(tmp_path / 'a.parquet', columns, store_schema=False)
    assert path.stat().st_size < 2**20
    command = [sys.executable, '-c', LIMITED, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(ran.stdout.split()[-1]) < 2**19, ran.stdout
