"""Shards that the real webdataset, pyarrow and datasets wrote, and bad ones, each told in a sentence."""

import json
import os
import pickle
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from data.archives import archive, png, tar
from torch.utils.data import DataLoader

from mmairl.data.decode import Reason, UnreadableImage
from mmairl.data.mixture import Mixture
from mmairl.data.sampler import ResumableSampler
from mmairl.data.shards import dataset as shards
from mmairl.data.shards import index as shard_index
from mmairl.data.shards.dataset import Shards
from mmairl.data.shards.index import braces, shards_at
from mmairl.data.subsets import ClassSubset, ListedSubset
from mmairl.data.training_images import TrainingImages
from mmairl.errors import UserError
from mmairl.registry import DATASETS

VIEW = [dict(type='RandomResizedCrop', size=16), dict(type='RandomFlip')]
CLASSES = ['ant', 'bee', 'cat']


pytestmark = pytest.mark.usefixtures('own_cache')
PIXELS = np.random.default_rng(0).integers(0, 256, (10, 9, 7, 3), dtype=np.uint8)
FILES = [png(pixels) for pixels in PIXELS]
LABELS = [0, 1, 1, 2, 0, 2, 1, 0, 0, 2]


def by_webdataset(folder: Path, label: str) -> str:
    wds = pytest.importorskip('webdataset', reason='webdataset is not installed (pip install webdataset)')
    for shard in range(3):
        with wds.TarWriter(str(folder / f'train-{shard:06}.tar')) as writer:
            for at in range(10)[shard::3]:
                number = LABELS[at]
                fields = dict(
                    cls=dict(cls=number),
                    json=dict(json=dict(label=number, width=7)),
                    names=dict(json=dict(label=CLASSES[number])),
                )
                writer.write({'__key__': f'n{number}/n{number}_{at}', 'png': FILES[at], **fields[label]})
    return str(folder / 'train-{000000..000002}.tar')


def by_datasets(folder: Path, kind: str) -> str:
    datasets = pytest.importorskip('datasets', reason='datasets is not installed (pip install datasets)')
    kinds = datasets.Features(label=datasets.ClassLabel(names=CLASSES), image=datasets.Image())
    images = [dict(bytes=file, path=None) for file in FILES]
    if kind == 'paths':  # as a data set of a folder has them, which to_parquet leaves where they are
        for at, file in enumerate(FILES):
            (folder / f'{at}.png').write_bytes(file)
        images = [str(folder / f'{at}.png') for at in range(10)]
    table = datasets.Dataset.from_dict(dict(label=LABELS, image=images), features=kinds)
    if kind == 'arrow':
        table.save_to_disk(folder, num_shards=2)
        return str(folder)
    for part in range(2):
        table.shard(2, part, contiguous=True).to_parquet(folder / f'train-{part:05}-of-00002.parquet', batch_size=3)
    return str(folder / 'train-*.parquet')


def by_pyarrow(folder: Path, kind: str) -> str:
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    import pyarrow.parquet

    labels = LABELS if kind != 'names' else pa.array([CLASSES[label] for label in LABELS]).dictionary_encode()
    table = pa.table(dict(id=list(range(10)), jpg=pa.array(FILES, pa.large_binary()), label=labels))
    if kind != 'arrow':
        pyarrow.parquet.write_table(table, folder / 'all.parquet', row_group_size=4)
    else:
        with pa.OSFile(str(folder / 'all.arrow'), 'wb') as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=4)
    return str(folder)


def test_an_image_without_a_name_of_a_class_has_no_label(tmp_path):
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    import pyarrow.parquet

    table = pa.table(dict(jpg=pa.array(FILES[:3], pa.large_binary()), label=pa.array(['cat', 'dog', None])))
    pyarrow.parquet.write_table(table, tmp_path / 'a.parquet')
    assert Shards(tmp_path).labels.tolist() == [0, 1, -1]


@pytest.mark.parametrize(
    ('write', 'kind', 'classes'),
    [
        (by_webdataset, 'cls', ['0', '1', '2']),
        (by_webdataset, 'json', ['0', '1', '2']),
        (by_webdataset, 'names', CLASSES),
        (by_datasets, 'arrow', CLASSES),
        (by_datasets, 'parquet', CLASSES),
        (by_datasets, 'paths', CLASSES),
        (by_pyarrow, 'arrow', ['0', '1', '2']),
        (by_pyarrow, 'parquet', ['0', '1', '2']),
        (by_pyarrow, 'names', CLASSES),
    ],
)
def test_images_labels_and_classes_are_those_that_were_written(write, kind, classes, tmp_path):
    (tmp_path / 'shards').mkdir()
    data = DATASETS.build(dict(type='Shards', root=write(tmp_path / 'shards', kind), views=[[], VIEW]))
    order = [at for shard in range(3) for at in range(10)[shard::3]] if write is by_webdataset else list(range(10))
    assert len(data) == 10 and data.classes == classes and data.labels.tolist() == [LABELS[at] for at in order]
    root, wanted = data.contents.shards, torch.from_numpy(PIXELS[order]).permute(0, 3, 1, 2)
    for workers in (0, 1):
        batch = next(iter(DataLoader(Shards(root), batch_size=10, num_workers=workers)))
        assert torch.equal(batch['inputs'][0], wanted)
    again = pickle.loads(pickle.dumps(data))
    assert torch.equal(again.raw(3), wanted[3]) and torch.equal(again.labels, data.labels)
    kept = ClassSubset(dict(type='Shards', root=root), 0.34)
    assert {LABELS[order[at]] for at in kept.indices} == {classes.index(kept.classes[0])}


@pytest.mark.parametrize(('write', 'kind'), [(by_datasets, 'parquet'), (by_datasets, 'arrow')])
def test_an_order_by_shards_goes_by_the_row_groups_that_parquet_is_read_in(write, kind, tmp_path):
    (tmp_path / 'shards').mkdir()
    data = Shards(write(tmp_path / 'shards', kind))
    assert data.shard_bounds[0].tolist() == ([0, 3, 5, 8, 10] if kind == 'parquet' else [0, 5, 10])
    found = list(ResumableSampler(data, seed=0, order='shards', window=1))
    groups = np.searchsorted(data.shard_bounds[0], found, 'right')
    assert sorted(found) == list(range(10)) and len(set(groups)) - 1 == (np.diff(groups) != 0).sum()


def test_a_hundred_million_rows_in_ten_thousand_shards_cost_a_process_little_memory(tmp_path, monkeypatch):
    count, names = 10**8, [f'{at:05}.tar' for at in range(10_000)]
    for name, kind, shape in (('rows', np.int64, (4, count)), ('names', np.uint8, (1,))):
        np.lib.format.open_memmap(tmp_path / f'{name}.npy', 'w+', kind, shape)  # which the disk does not hold
    about = dict(classes=['x'], about={}, stamps=[[1, 1]] * len(names))
    about |= dict.fromkeys(['counts', 'units'], [count // len(names)] * len(names))
    (tmp_path / 'about.json').write_text(json.dumps(about))
    monkeypatch.setattr(shards, 'index_of', lambda *_: shard_index.Index(tmp_path, names))
    monkeypatch.setattr(shards, 'shards_at', lambda _: names)
    before = held()
    data = Shards('made up')
    for images in (data, Mixture(dict(a=data))):
        indices = list(islice(ResumableSampler(TrainingImages(images, workers=False), seed=0), 4096))
        assert len({data.contents.place(index)[0] for index, _ in indices}) > 3000
        assert sum(int(images.label(index)) for index, _ in indices) == 0
    assert held() - before < 200e6


def held() -> int:
    """Bytes of memory that this process holds, without the pages of files, which the system takes back when it needs them."""
    told = dict(line.split(':') for line in Path('/proc/self/status').read_text().splitlines())
    return sum(1024 * int(told[name].split()[0]) for name in ('RssAnon', 'RssShmem'))


# ---- tar archives, also without the packages


def sample(key: str, at: int, label: bytes | None = None) -> dict[str, bytes]:
    return {f'{key}.png': FILES[at]} | ({} if label is None else {f'{key}.cls': label})


@pytest.mark.parametrize('form', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_and_foreign_names_of_every_kind_of_tar_are_read(tmp_path, form):
    deep = '/'.join(['d' * 45] * 2) + '/' + 'n' * 90
    names = [deep, 'ç/ü', 'a.b/c', '2'] if form != tarfile.USTAR_FORMAT else ['d' * 90 + '/' + 'n' * 60, 'a.b/c', '2']
    members = {name: data for at, key in enumerate(names) for name, data in sample(key, at).items()}
    data = Shards(tar(tmp_path / 'a.tar', {'./.hidden.png': b'', 'README': b'', '__x__/y': b'', **members}, form))
    assert [data.contents.name(row) for row in range(len(names))] == names
    assert torch.equal(data.raw(2), torch.from_numpy(PIXELS[2]).permute(2, 0, 1)) and data.classes == []
    assert data.name(1) == f'{tmp_path}/a.tar/{names[1]}'


def test_hostile_names_are_data_and_links_are_no_images(tmp_path):
    outside = tmp_path / 'outside.png'
    outside.write_bytes(FILES[9])
    names = ['/etc/passwd.png', '../../outside.png', 'new\nline.png']
    path = tar(tmp_path / 'a.tar', dict(zip(names, FILES)))
    with tarfile.open(path, 'a') as archive:
        for kind in (tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            info = tarfile.TarInfo(f'link{kind.decode()}.png')
            info.type, info.linkname = kind, str(outside)
            archive.addfile(info)
    before = sorted(tmp_path.rglob('*'))
    data = Shards(path)
    assert len(data) == 3 and [int(data.raw(at)[0, 0, 0]) for at in range(3)] == PIXELS[:3, 0, 0, 0].tolist()
    assert {file for file in tmp_path.rglob('*') if 'cache' not in file.parts} == set(before)


def test_listed_images_of_shards_are_found_by_name_with_any_extension(tmp_path):
    members = sample('n01/n01_1', 1, b'0') | sample('n02/n02_7', 7, b'1')
    path = tar(tmp_path / 'a.tar', members | {'n01/n01_3.TIFF': FILES[3], 'n01/n01_3.cls': b'0'})
    (tmp_path / 'list.txt').write_text('n01_3.JPEG\nn02/n02_7.png\n')
    data = ListedSubset(dict(type='Shards', root=str(path)), tmp_path / 'list.txt')
    assert data.indices.tolist() == [1, 2] and data.labels.tolist() == [1, 0]
    assert data.name(0) == f'{path}/n02/n02_7'


def test_places_are_named_as_in_a_shell_or_by_a_list(tmp_path):
    for pattern, names in {
        'a{08..11}{x,y}.tar': ['a08x.tar', 'a08y.tar', 'a09x.tar', 'a09y.tar'],
        '{03..01}.tar': ['03.tar', '02.tar', '01.tar'],
        'file:///a{1}/{}.tar': ['/a{1}/{}.tar'],
    }.items():
        assert list(braces(pattern))[:4] == names
    (tmp_path / 'in{1,2}[3]/no.tar').mkdir(parents=True)
    odd = tar(tmp_path / 'in{1,2}[3]/x.tar', sample('x', 4))
    for place in ('', '/x.tar', '/*x.tar'):
        assert shards_at(f'file://{odd.parent}{place}') == [str(odd)]
    paths = [str(tar(tmp_path / 'in' / f'{at}.tar', sample(str(at), at))) for at in range(3)]
    (tmp_path / 'list.txt').write_text('in/0.tar\nin/{1..2}.tar\n')
    for root in (tmp_path / 'in', f'{tmp_path}/in/*.tar', f'{tmp_path}/in/{{0..2}}.tar', paths, tmp_path / 'list.txt'):
        assert shards_at(root) == paths
    assert len(Shards(tmp_path / 'in')) == 3


def test_an_index_is_found_once_goes_on_after_a_kill_and_is_found_anew_when_a_shard_changes(tmp_path, monkeypatch):
    paths = [tar(tmp_path / f'{at}.tar', sample(str(at), at, b'%d' % (at % 3))) for at in range(4)]
    searched, real = [], shard_index.rows_of

    def search(file: Path, name: str):
        searched.append(file.name)
        if len(searched) == 3:
            raise KeyboardInterrupt
        return real(file, name)

    monkeypatch.setattr(shard_index, 'rows_of', search)
    with pytest.raises(KeyboardInterrupt):
        Shards(tmp_path)
    assert Shards(tmp_path).labels.tolist() == [0, 1, 2, 0]
    assert searched == ['0.tar', '1.tar', '2.tar', '2.tar', '3.tar']
    assert Shards(tmp_path).contents.folder == Shards(f'{tmp_path}/{{0..3}}.tar').contents.folder and len(searched) == 5
    status = os.stat(tar(paths[3], sample('new', 8, b'4')))
    assert Shards(tmp_path).labels.tolist() == [0, 1, 2, 4] and len(searched) == 9
    os.utime(tar(paths[3], sample('new', 8, b'3')), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert os.stat(paths[3]).st_size == status.st_size and Shards(tmp_path).labels.tolist() == [0, 1, 2, 3]
    kept = [path.parent for path in (tmp_path / 'cache').rglob('about.json')]
    assert len(kept) == 3  # for another node may use one for its own copies
    for folder in kept:
        os.utime(folder, (0, 0))
    status = os.stat(tar(paths[3], sample('newest', 8, b'5')))
    assert Shards(tmp_path).labels.tolist() == [0, 1, 2, 5]
    assert len(list((tmp_path / 'cache').rglob('about.json'))) == 1


def test_an_image_that_cannot_be_decoded_is_named_and_a_shard_that_is_overwritten_while_it_is_open_ends_the_run(
    tmp_path,
):
    path = tar(tmp_path / 'a.tar', sample('good', 0) | {'bad.jpg': b'no image', 'none.png': b''})
    data = Shards(path)
    for index, reason, key in [(1, Reason.NO_IMAGE, 'bad'), (2, Reason.EMPTY, 'none')]:
        with pytest.raises(UnreadableImage, match=f'a.tar/{key} {reason.phrase}'):
            data.raw(index)
    data.raw(0)
    with path.open('r+b') as opened:
        opened.write(archive(sample('evil', 1) | {'bad.jpg': b'no image', 'none.png': b''}))
    os.utime(path, ns=(0, 0))
    with pytest.raises(UserError, match='a.tar has changed since its images were looked for'):
        data.raw(0)


SAMPLES = {
    'image b in .*b.tar has no images among its members .cls': sample('a', 0, b'1') | {'b.cls': b'1'},
    'image a in .*b.tar has 2 images among its members': {'a.png': FILES[0], 'a.jpg': FILES[1]},
    'image a in .*b.tar has two members of one name': {'a.png': FILES[0], './a.png': FILES[1]},
    'image a in .*b.tar is there twice': sample('a', 0) | sample('b', 1) | {'a.jpg': FILES[2]},
    'b.json in the shard .*b.tar: Expected .*, got `bool`': {'b.png': b'', 'b.json': b'{"label": true}'},
    'c.json in the shard .*b.tar: .*recursion': {'c.png': b'', 'c.json': b'{"x":' + b'[' * 10**5},
    'b.tar has the label 1000000000, and labels are numbers of its 1000000 classes': sample('a', 0, b'%d' % 10**9),
    'b.tar has the label 3, and labels are numbers of its 2 classes': (
        {'__mmairl__/about.json': b'{"classes": ["x", "y"]}'} | sample('a', 0, b'3')
    ),
    '__mmairl__/about.json in the shard .*b.tar: Expected `array`, got `object` - at `..classes`': {
        '__mmairl__/about.json': b'{"classes": {}}',
        'a.png': FILES[0],
    },
    "image b in .*b.tar is labelled 'cat' and the first one 1, not": sample('a', 0, b'1') | sample('b', 1, b'cat'),
    'image b in .*b.tar is labelled None and the first one 1': sample('a', 0, b'1') | sample('b', 1),
    'b.tar holds no image': {'notes': b'x'},
}


@pytest.mark.parametrize('said', SAMPLES)
def test_members_that_are_no_samples_are_one_sentence(said, tmp_path):
    with pytest.raises(UserError, match=said):
        Shards(tar(tmp_path / 'b.tar', SAMPLES[said]))


def test_bad_shards_are_one_sentence(tmp_path):
    good = tar(tmp_path / 'a.tar', sample('k', 0, b'1') | sample('l', 3, b'0'))
    unlike = tar(tmp_path / 'unlike.tar', sample('x', 5))
    (tmp_path / 'no_end.tar').write_bytes(good.read_bytes()[: 1024 - tarfile.RECORDSIZE])
    (tmp_path / 'cut.tar').write_bytes(good.read_bytes()[:700])
    (tmp_path / 'bad.tar').write_bytes(b'x' * 4096)
    (tmp_path / 'list.txt').write_text('list.txt\n')
    os.mkfifo(tmp_path / 'pipe.tar')
    (tmp_path / 'saved/test').mkdir(parents=True)
    (tmp_path / 'saved/train').mkdir()
    for at in (0, 3):
        tar(tmp_path / f'few/x-{at:05}-of-00004.tar', sample('a', at))
    for said, root in {
        'the shard .*gone.tar cannot be read .No such file': [str(good), str(tmp_path / 'gone.tar')],
        'the list of shards at .*gone.txt cannot be read': tmp_path / 'gone.txt',
        'x.0..99999999..tar names more than 1000000 shards': tmp_path / 'x{0..99999999}.tar',
        'pipe.tar is no regular file': tmp_path / 'pipe.tar',
        'list.txt names no shard; set a file': tmp_path / 'list.txt',
        'the list of shards is empty, or names one twice': [str(good)] * 2,
        'labels of .*unlike.tar .none. are not those of .*a.tar .numbers.': [str(good), str(unlike)],
        'no_end.tar is cut short: its end mark': tmp_path / 'no_end.tar',
        'cut.tar is cut short in its member k.png; copy': tmp_path / 'cut.tar',
        'bad.tar is no tar archive, or damaged at byte 0': tmp_path / 'bad.tar',
        'names no shard; set a file': tmp_path / 'nothing.zip',
        'names no shard .it contains the folders test, train.; set': tmp_path / 'saved',
        '2 of the 00004 shards are missing, first .*few/x-00001-of-00004.tar': tmp_path / 'few',
    }.items():
        with pytest.raises(UserError, match=said):
            Shards(root)


@pytest.mark.parametrize('record', [b'0 path=x\n', b'no path=x\n', b'11 size=-9\n'])
def test_a_damaged_record_of_a_long_name_ends_in_a_sentence_and_not_in_a_circle(record, tmp_path):
    info = tarfile.TarInfo('x')
    info.type = tarfile.XHDTYPE
    path = tar(tmp_path / 'a.tar', sample('k', 0))
    info.size = len(record)
    header = info.tobuf() + record.ljust(tarfile.BLOCKSIZE, b'\0')
    path.write_bytes(header + path.read_bytes())
    with pytest.raises(UserError, match='a.tar is damaged at byte|a.tar is no tar archive'):
        Shards(path)


def test_a_column_of_urls_and_files_cut_short_are_one_sentence(tmp_path):
    pa = pytest.importorskip('pyarrow', reason='pyarrow is not installed (pip install pyarrow)')
    import pyarrow.parquet

    urls = tmp_path / 'urls.parquet'
    pyarrow.parquet.write_table(pa.table(dict(url=['http://x/1.jpg'], n=[1])), urls)
    (tmp_path / 'cut.parquet').write_bytes(b'PAR1 and no more')
    (tmp_path / 'cut.arrow').write_bytes(b'ARROW1 and no more')
    for name, said in [
        ('urls.parquet', 'no column of images among url, n .url hold text, such as URLs.'),
        ('cut.parquet', 'no Parquet file, or cut short'),
        ('cut.arrow', 'no Arrow file, or cut short'),
    ]:
        with pytest.raises(UserError, match=said):
            Shards(tmp_path / name)
    pyarrow.parquet.write_table(pa.table(dict(image=FILES, n=LABELS)), urls)
    assert torch.equal(Shards(urls).raw(9), torch.from_numpy(PIXELS[9]).permute(2, 0, 1)), 'the file as it is now'
