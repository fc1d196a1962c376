"""Shards and Hugging Face data sets return the images and labels of the folders that were packed."""

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from torch.utils.data import DataLoader

from mmairl.data.datasets import ImageFolder, UnlabelledFolder
from mmairl.data.public import HubImages
from mmairl.data.shards import Shards, pack


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    random = np.random.default_rng(0)
    for number in range(12):
        path = tmp_path / 'images' / f'class {number % 3}' / f'{number}.v1.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 30, 3), np.uint8)).save(path)
    return ImageFolder(tmp_path / 'images')


def assert_same(data, folder: ImageFolder) -> None:
    assert data.classes == folder.classes
    assert data.labels.tolist() == folder.labels.tolist()
    assert all(torch.equal(data.raw(index), folder.raw(index)) for index in range(len(folder)))


def test_packed_folder_is_the_same_data_set(folder, tmp_path):
    assert {fault for _, fault in pack(folder, tmp_path / 'all.tar')} == {None}
    assert_same(Shards(tmp_path / 'all.tar'), folder)
    list(pack(folder, tmp_path / 'out' / 'part.tar', workers=1, shards=3))
    parts = sorted((tmp_path / 'out').glob('*.tar'))
    assert len(parts) == 3
    for root in (
        tmp_path / 'out',
        f'{tmp_path}/out/part-*.tar',
        [str(part) for part in parts],
    ):
        assert_same(Shards(root), folder)
    data = Shards(tmp_path / 'out')
    assert data.member(0) == 'class 0/0_v1'
    assert data.name(0).endswith('part-000000.tar/class 0/0_v1')
    loaded = torch.cat([batch['inputs'][0] for batch in DataLoader(data, 4, num_workers=2)])
    assert torch.equal(loaded, torch.stack([folder.raw(index) for index in range(12)]))
    assert data.fingerprint() == Shards(tmp_path / 'all.tar').fingerprint()


def test_webdataset_reads_packed_shards(folder, tmp_path):
    webdataset = pytest.importorskip('webdataset', reason='webdataset is not installed')
    list(pack(folder, tmp_path / 'a.tar'))
    samples = list(webdataset.WebDataset(str(tmp_path / 'a.tar'), shardshuffle=False))
    assert [int(sample['cls']) for sample in samples] == folder.labels.tolist()
    assert [sample['png'] for sample in samples] == [folder.encoded(index) for index in range(12)]


def test_unreadable_images_are_left_out(folder, tmp_path):
    Path(folder.name(3)).write_bytes(b'')
    faults = dict(pack(folder, tmp_path / 'a.tar'))
    assert faults[folder.member(3)] == 'is empty'
    assert len(Shards(tmp_path / 'a.tar')) == 11
    with raises_code('shard-exists'):
        list(pack(folder, tmp_path / 'a.tar'))


def test_stored_channels_survive_packing(tmp_path):
    (tmp_path / 'arrays').mkdir()
    np.save(tmp_path / 'arrays' / 'a.npy', np.arange(50, dtype=np.uint16).reshape(5, 5, 2))
    folder = UnlabelledFolder(tmp_path / 'arrays', channels=2)
    list(pack(folder, tmp_path / 'a.tar'))
    data = Shards(tmp_path / 'a.tar', channels=2)
    assert torch.equal(data.raw(0), folder.raw(0))
    assert data.classes == []


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, 'w') as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def png(gray: int) -> bytes:
    Image.new('L', (4, 4), gray).save(buffer := io.BytesIO(), 'PNG')
    return buffer.getvalue()


def test_labels_are_numbers(tmp_path):
    numbered = tar(
        tmp_path / 'b.tar', {'d/x.png': png(5), 'd/x.cls': b'2', 'd/y.PNG': png(6), 'd/y.cls': b'0'}
    )
    data = Shards(numbered)
    assert data.classes == ['0', '1', '2']
    assert data.labels.tolist() == [2, 0]
    assert [int(data.raw(index)[0, 0, 0]) for index in range(2)] == [5, 6]


@pytest.mark.parametrize('form', [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_are_read_in_every_tar_format(tmp_path, form):
    names = [f'{"deep/" * depth}x{depth}.png' for depth in (0, 10, 30)]
    with tarfile.open(tmp_path / 'a.tar', 'w', format=form) as archive:
        for number, name in enumerate(names):
            (tmp_path / 'x.png').write_bytes(png(number))
            archive.add(tmp_path / 'x.png', name)
    data = Shards(tmp_path / 'a.tar')
    assert [f'{data.member(index)}.png' for index in range(3)] == names
    assert [int(data.raw(index)[0, 0, 0]) for index in range(3)] == [0, 1, 2]


def test_damaged_or_ambiguous_shard_is_an_error(tmp_path):
    path = tar(tmp_path / 'a.tar', {'x.png': png(1), 'y.png': png(2)})
    path.write_bytes(path.read_bytes()[:1500])
    with raises_code('damaged-shard'):
        Shards(path)
    with raises_code('damaged-shard'):
        Shards(tar(tmp_path / 'd.tar', {'x.png': png(1), 'x.cls': b'cat'}))
    with raises_code('duplicate-image'):
        Shards(tar(tmp_path / 'b.tar', {'x.png': png(1), 'x.jpg': png(2)}))
    with raises_code('no-images'):
        Shards(tar(tmp_path / 'c.tar', {'x.txt': b''}))
    with raises_code('no-shards'):
        Shards(tmp_path / 'none.tar')


def test_changed_shard_is_indexed_again(tmp_path):
    path = tar(tmp_path / 'a.tar', {'x.png': png(1)})
    assert len(Shards(path)) == 1
    tar(path, {'x.png': png(1), 'y.png': png(2)})
    assert len(Shards(path)) == 2


def test_remote_shards_are_copied(folder, tmp_path):
    pytest.importorskip('fsspec', reason='fsspec is not installed')
    list(pack(folder, tmp_path / 'a.tar'))
    data = Shards(f'file://{tmp_path}/a.tar', copies=tmp_path / 'copies')
    (tmp_path / 'a.tar').unlink()
    assert_same(data, folder)


def test_hub_images_equal_the_folder(folder, tmp_path):
    datasets = pytest.importorskip('datasets', reason='datasets is not installed')
    rows = dict(
        image=[dict(bytes=folder.encoded(index), path=None) for index in range(12)],
        label=folder.labels.tolist(),
        fine=[folder.classes[label] for label in folder.labels],
    )
    features = datasets.Features(
        image=datasets.Image(),
        label=datasets.ClassLabel(names=folder.classes),
        fine=datasets.Value('string'),
    )
    table = datasets.Dataset.from_dict(rows, features=features)
    cached = dict(cache_dir=str(tmp_path / 'hf'))
    table.save_to_disk(tmp_path / 'saved')
    saved = dict(data_files=f'{tmp_path}/saved/*.arrow', **cached)
    assert_same(HubImages('arrow', data=saved), folder)
    table.to_parquet(tmp_path / 'a.parquet')
    parquet = dict(data=dict(data_files=str(tmp_path / 'a.parquet'), **cached))
    assert_same(HubImages('parquet', **parquet), folder)
    assert_same(HubImages('parquet', label='fine', **parquet), folder)
    unlabeled = HubImages('parquet', label='none', **parquet)
    assert not unlabeled.classes
    assert unlabeled.labels.tolist() == [-1] * 12
    list(pack(unlabeled, tmp_path / 'b.tar'))
    assert torch.equal(Shards(tmp_path / 'b.tar').raw(5), folder.raw(5))
    with raises_code('no-image-column'):
        HubImages('parquet', image='picture', **parquet)
