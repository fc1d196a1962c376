"""Packed data sets: items equal those of the folder, other programs read the archives, and the number of workers does not
change a byte.
"""

import tarfile
from pathlib import Path

import pytest
import torch
from data.archives import draw, tar
from harness.errors import raises_code
from PIL import Image

from mmairl.data.datasets import ImageFolder, UnlabelledFolder
from mmairl.data.decode import Reason, decode_bytes
from mmairl.data.packed import Smaller, pack
from mmairl.data.shards.dataset import Shards
from mmairl.data.subsets import ListedSubset
from mmairl.study.factors import images_of

VIEW = [dict(type='RandomResizedCrop', size=16), dict(type='RandomFlip')]


pytestmark = pytest.mark.usefixtures('own_cache')


@pytest.fixture
def folder(tmp_path) -> Path:
    """Write noise in three classes and several formats. Some names are equal up to their first dot, and one name is long."""
    long = '/'.join(['n' * 60] * 4)
    names = ('ant/1.b.jpg', 'ant/1.c.jpg', 'ant/1.tif', f'bee/{long}/3.webp', 'bee/4.jpg', 'bee/4.png', 'ç a/5.jpeg')
    for name in names:
        draw(tmp_path / 'images' / name, 20, 31)
    return tmp_path / 'images'


def make(folder: Path, out: str = 'images.tar', **options) -> Path:
    list(pack(ImageFolder(folder), folder.parent / out, **options))
    return folder.parent / out


def test_packed_items_equal_those_of_the_folder(folder):
    plain = ImageFolder(folder, views=[VIEW, VIEW])
    one = Shards(make(folder, workers=2), views=[VIEW, VIEW])
    assert one.classes == plain.classes == ['ant', 'bee', 'ç a'] and torch.equal(one.labels, plain.labels)
    list(pack(one, folder.parent / 'again.tar', size=9000))
    again = Shards(f'{folder.parent}/again-*.tar', views=[VIEW, VIEW])
    assert len(again.contents.shards) > 2
    for i in range(7):
        items = []
        for dataset in (plain, one, again):
            torch.manual_seed(i)
            items.append(dataset[i])
        for item in items[1:]:
            assert all(torch.equal(*views) for views in zip(items[0]['inputs'], item['inputs']))
            assert item['data_samples'] == items[0]['data_samples']
    list(pack(UnlabelledFolder(folder), folder.parent / 'out.tar'))
    bare = Shards(folder.parent / 'out.tar')
    assert bare.classes == [] and bare.labels.tolist() == [-1] * 7


def test_listed_names_with_dots_are_found(folder):
    (folder.parent / 'list.txt').write_text('1.c.jpg\nç a/5.jpeg\n')
    for source in (dict(type='ImageFolder', root=str(folder)), dict(type='Shards', root=str(make(folder)))):
        assert ListedSubset(source, folder.parent / 'list.txt').indices.tolist() == [1, 6]


def test_tar_and_webdataset_unpack_the_files(folder):
    keys = ['ant/1_b', 'ant/1_c', 'ant/1', 'bee/4', 'bee/4_png', 'bee/' + '/'.join(['n' * 60] * 4) + '/3', 'ç a/5']
    files = [path.read_bytes() for path in map(ImageFolder(folder).path, range(7))]
    out = make(folder)
    with tarfile.open(out) as archive:
        members = {name: archive.extractfile(name).read() for name in archive.getnames()}
    images = {name: data for name, data in members.items() if not name.endswith(('.cls', '.json'))}
    assert list(images.values()) == files and [name.rpartition('.')[0] for name in images] == keys
    wds = pytest.importorskip('webdataset', reason='webdataset is not installed (pip install webdataset)')
    samples = list(wds.WebDataset(str(out), shardshuffle=False))
    assert [sample['__key__'] for sample in samples] == keys
    assert [int(sample['cls']) for sample in samples] == [0, 0, 0, 1, 1, 1, 2]
    assert [next(sample[end] for end in ('jpg', 'png', 'tif', 'webp') if end in sample) for sample in samples] == files


def test_bytes_do_not_depend_on_workers_or_a_kill(folder):
    whole = make(folder, 'whole.tar', size=5000)
    shards = {path.name[5:]: path.read_bytes() for path in whole.parent.glob('whole-*.tar')}
    assert len(shards) > 2 and max(map(len, shards.values())) <= 5000 + tarfile.RECORDSIZE
    for workers in (0, 2):
        killed = pack(ImageFolder(folder), folder.parent / f'k{workers}.tar', workers, 5000)
        for _ in range(5):
            next(killed)
        killed.close()
        count = len(list(folder.parent.glob(f'k{workers}-*.tar')))
        assert 0 < count < len(shards)
        make(folder, f'k{workers}.tar', workers=workers, size=5000)
        assert {path.name[2:]: path.read_bytes() for path in folder.parent.glob(f'k{workers}-*.tar')} == shards
    # All images are already packed, so this call changes nothing.
    make(folder, 'whole.tar', size=5000)
    assert {path.name[5:]: path.read_bytes() for path in whole.parent.glob('whole-*.tar')} == shards
    (folder / 'ant/2.png').write_bytes((folder / 'bee/4.png').read_bytes())
    with raises_code('shard-exists', match='k0-000000.tar'):
        make(folder, 'k0.tar', size=5000)


def test_short_side_shrinks_large_images(folder):
    Image.new('RGB', (300, 200), 'red').save(folder / 'bee/large.png')
    out = make(folder, smaller=Smaller(short_side=50, quality=70))
    data = Shards(out)
    shapes = [tuple(data.raw(at).shape[1:]) for at in range(len(data))]
    assert shapes.count((50, 75)) == 1 and shapes.count((20, 31)) == 7
    assert torch.equal(data.raw(0), decode_bytes((folder / 'ant/1.b.jpg').read_bytes())), 'a small image was changed'
    described = images_of(dict(type='ClassSubset', fraction=0.5, dataset=dict(type='Shards', root=str(out))))
    assert described == 'packed with a short side of 50 pixels as JPEGs of quality 70'
    assert images_of(dict(type='Shards', root=str(make(folder, 'same.tar')))) == 'as they are'


def test_unreadable_images_are_left_out_up_to_a_limit(folder):
    (folder / 'ant/1.c.jpg').write_bytes(b'no image')
    (folder / 'bee/0.jpg').touch()
    out = folder.parent / 'out.tar'
    with raises_code('too-many-unreadable', '1 of the first 2 images .* ant/1.c.jpg is not'):
        list(pack(ImageFolder(folder, max_unreadable=0), out))
    assert not list(folder.parent.glob('*.tar'))
    results = dict(pack(ImageFolder(folder), out))
    left_out = {'ant/1.c.jpg': Reason.NO_IMAGE.phrase, 'bee/0.jpg': Reason.EMPTY.phrase}
    assert {path: reason for path, reason in results.items() if reason} == left_out
    assert Shards(out).labels.tolist() == [0, 0, 1, 1, 1, 2]


def test_hostile_names_stay_below_the_unpacking_folder(folder):
    image = (folder / 'bee/4.png').read_bytes()
    source = tar(folder.parent / 'a.tar', {'../../b.png': image, '/etc/c.png': image, './d.png': image})
    list(pack(Shards(source), folder.parent / 'out.tar'))
    with tarfile.open(folder.parent / 'out.tar') as packed:
        names = [name for name in packed.getnames() if name.endswith('.png')]
    assert names == ['b.png', 'etc/c.png', 'd.png']


def test_command_packs_folders_and_shards(folder, run_tool, capsys):
    out = folder.parent / 'out.tar'
    (folder / 'bee/no\nimage.jpg').touch()
    run_tool('tools/pack.py', folder, out, '--workers', 0)
    output = capsys.readouterr().out
    assert '7 images packed, 1 left out' in output and r'left out: bee/no\nimage.jpg is empty' in output
    run_tool('tools/pack.py', out, folder.parent / 'b.tar', '--shard', '5K', '--short-side', 10, '--workers', 0)
    small = Shards(f'{folder.parent}/b-*.tar')
    assert len(small) == 7 and small.classes == Shards(out).classes and min(small.raw(0).shape[1:]) == 10
    for place, output in ((folder, 'exists already'), (folder / 'ant', 'tools/pack.py --unlabelled')):
        with pytest.raises(SystemExit):
            run_tool('tools/pack.py', place, out)
        assert output in capsys.readouterr().err
