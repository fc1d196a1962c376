"""Public data sets, tested on small folders in the published formats: images, labels, splits and errors."""

import errno
import hashlib
import json
import pickle
import re
import shutil
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.io
import torch
from harness.errors import raises_code
from PIL import Image
from torchvision import datasets

from mmairl.data import public
from mmairl.data.public import (
    CIFAR10,
    STL10,
    VOC2007,
    Birdsnap,
    Caltech101,
    INaturalist2018,
    download_missing,
    rows_of_split,
)

EVERY = {
    name: kind
    for name, kind in vars(public).items()
    if isinstance(kind, type) and issubclass(kind, public.Published) and hasattr(kind, 'layout')
}
TRAIN, TEST = range(40), range(40, 44)
# These are the parts of data sets whose authors list validation images.
WITH_VAL = dict(train=range(3), val=range(3, 5), test=range(5, 7))
Parts = dict[str, list[tuple[int, int]]]


def picture(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (9, 6), (gray, gray, gray)).save(path, quality=100)


def pictures(folder: Path, names: Iterable[str], grays: Iterable[int]) -> None:
    for name, gray in zip(names, grays):
        picture(folder / name, gray)


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{line}\n' for line in lines))


def labelled(**parts: Iterable[int]) -> Parts:
    """Return, for each part, pairs of a number and its label. The label is the number modulo 2."""
    return {part: [(i, i % 2) for i in numbers] for part, numbers in parts.items()}


def contents(data) -> list[tuple[int, int]]:
    """Return the gray value and the label of each image, in order."""
    return [(int(data.raw(i)[0, 3, 4]), int(data.labels[i])) for i in range(len(data))]


# Each of the functions below writes gray images in the published format of one data set, and
# returns the (gray, label) pairs of each part and the classes.


def cars(root: Path) -> tuple[Parts, list[str]]:
    folder, kind = root / 'stanford_cars', [('bbox_x1', 'O'), ('class', 'O'), ('fname', 'O')]
    (folder / 'devkit').mkdir(parents=True)
    lists = {'devkit/cars_train_annos': ('cars_train', TRAIN), 'cars_test_annos_withlabels': ('cars_test', TEST)}
    for file, (images, numbers) in lists.items():
        names = [f'{i:05}.jpg' for i in numbers]
        rows = np.array([(1, i % 2 + 1, name) for i, name in zip(numbers, names)], dtype=kind)
        scipy.io.savemat(folder / f'{file}.mat', {'annotations': rows.reshape(1, -1)})
        pictures(folder / images, names, numbers)
    names = ['Acura RL', 'smart fortwo']
    scipy.io.savemat(folder / 'devkit/cars_meta.mat', {'class_names': np.array([names], dtype=object)})
    return labelled(train=TRAIN, test=TEST), names


def textures(root: Path) -> tuple[Parts, list[str]]:
    names = ['banded', 'zigzagged']
    for part, numbers in WITH_VAL.items():
        lines = [f'{names[i % 2]}/{names[i % 2]}_{i:04}.jpg' for i in numbers]
        write(root / f'dtd/dtd/labels/{part}1.txt', *lines)
        pictures(root / 'dtd/dtd/images', lines, numbers)
    return labelled(**WITH_VAL), names


def pets(root: Path) -> tuple[Parts, list[str]]:
    folder, breeds = root / 'oxford-iiit-pet', ['Abyssinian', 'american_bulldog']
    for part, numbers in dict(trainval=TRAIN, test=TEST).items():
        write(folder / f'annotations/{part}.txt', *(f'{breeds[i % 2]}_{i} {i % 2 + 1} {i % 2 + 1} 1' for i in numbers))
        pictures(folder / 'images', (f'{breeds[i % 2]}_{i}.jpg' for i in numbers), numbers)
    return labelled(train=TRAIN, test=TEST), ['Abyssinian', 'American Bulldog']


def sun(root: Path) -> tuple[Parts, list[str]]:
    names = ['/a/abbey', '/a/apartment_building/outdoor']
    write(root / 'SUN397/ClassName.txt', *names)
    for part, numbers in dict(Training=TRAIN, Testing=TEST, none=range(44, 46)).items():
        lines = [f'{names[i % 2]}/sun_{i:04}.jpg' for i in numbers]
        write(root / f'splits/{part}_01.txt', *lines)
        pictures(root / 'SUN397', (line.lstrip('/') for line in lines), numbers)
    return labelled(train=TRAIN, test=TEST), ['abbey', 'apartment_building/outdoor']


def birds(root: Path) -> tuple[Parts, list[str]]:
    """The lists name two photographs whose files are missing. The data set leaves these photographs out."""
    species = ('7', 'Acadian Flycatcher', 'Acadian_Flycatcher'), ('3', "Wilson's Snipe", 'Wilsons_Snipe')
    lines = [f'{id}\t{common}\tAves aves\t{folder}' for id, common, folder in species]
    write(root / 'species.txt', 'id\tcommon\tscientific\tdir', *lines)
    paths = {i: f'{species[i % 2][2]}/{i}.jpg' for i in (*TRAIN, *TEST)}
    rows = [f'http://flickr/{i}.jpg\t{"0" * 32}\t{path}\t{species[i % 2][0]}\t1\t2' for i, path in paths.items()]
    write(root / 'images.txt', 'url\tmd5\tpath\tspecies_id\tbb_x1\tbb_y1', *rows)
    write(root / 'test_images.txt', 'path', *(paths[i] for i in TEST))
    for i, path in paths.items():
        if i not in (4, 41):
            picture(root / 'download/images' / path, i)
    parts = labelled(train=[i for i in TRAIN if i != 4], test=[i for i in TEST if i != 41])
    return parts, [common for _, common, _ in species]


def places(root: Path) -> tuple[Parts, list[str]]:
    lists = dict(
        train=['a/abbey/gsun_1.jpg 0', 'a/apartment_building/outdoor/gsun_2.jpg 2', 'a/abbey/g sun_3.jpg 0'],
        val=['a/abbey/gsun_4.jpg 0', 'a/apartment_building/outdoor/gsun_5.jpg 2'],
    )
    parts = {}
    for part, lines in lists.items():
        write(root / f'trainvalsplit_places205/{part}_places205.csv', *lines)
        grays = [10 * len(part) + n for n in range(len(lines))]
        parts[part] = [(gray, int(line[-1])) for gray, line in zip(grays, lines)]
        pictures(root / 'data/vision/torralba/deeplearning/images256', (line[:-2] for line in lines), grays)
    return parts, ['abbey', '1', 'apartment_building/outdoor']


def inaturalist(root: Path) -> tuple[Parts, list[str]]:
    categories = [dict(id=12, name='Turdus merula', supercategory='Aves'), dict(id=5, name='Apis', supercategory='In')]
    for part, species in dict(train={901: 12, 900: 5}, val={903: 12}).items():
        files = {i: f'train_val2018/Aves/{kind}/{i}.jpg' for i, kind in species.items()}
        record = dict(
            images=[dict(id=i, file_name=file, width=8, height=8) for i, file in files.items()],
            # The annotations are in another order than the images.
            annotations=[dict(id=1000 + i, image_id=i, category_id=kind) for i, kind in sorted(species.items())],
            categories=categories,
        )
        write(root / f'{part}2018.json', json.dumps(record))
        pictures(root, files.values(), (i - 900 for i in files))
    return dict(train=[(1, 1), (0, 0)], val=[(3, 1)]), ['Apis', 'Turdus merula']


def ramp(number: int, size: int) -> np.ndarray:
    """Return an image whose red is its number, whose green is the row and whose blue is the column."""
    rows, columns = np.indices((size, size))
    return np.stack([np.full((size, size), number), rows, columns]).astype(np.uint8)


def cifar(root: Path) -> tuple[Parts, list[str]]:
    folder = root / 'cifar-10-batches-py'
    folder.mkdir(parents=True)
    batches = {f'data_batch_{n + 1}': TRAIN[8 * n : 8 * n + 8] for n in range(5)}
    for file, numbers in {**batches, 'test_batch': TEST}.items():
        batch = dict(data=np.stack([ramp(i, 32).ravel() for i in numbers]), labels=[i % 2 for i in numbers])
        (folder / file).write_bytes(pickle.dumps(batch))
    (folder / 'batches.meta').write_bytes(pickle.dumps(dict(label_names=['even', 'odd'])))
    return labelled(train=TRAIN, test=TEST), ['even', 'odd']


def stl(root: Path) -> tuple[Parts, list[str]]:
    """The published files store images column by column."""
    folder = root / 'stl10_binary'
    write(folder / 'class_names.txt', 'airplane', 'bird', 'car')
    parts = dict(train=[(1, 1), (2, 2)], test=[(3, 0)], unlabeled=[(4, -1), (5, -1), (6, -1)])
    for part, pairs in parts.items():
        np.stack([ramp(i, 96).transpose(0, 2, 1) for i, _ in pairs]).tofile(folder / f'{part}_X.bin')
        if part != 'unlabeled':
            np.array([y + 1 for _, y in pairs], np.uint8).tofile(folder / f'{part}_y.bin')
    return parts, ['airplane', 'bird', 'car']


# TREES has one data set for each format. The other data sets of a format are read in the same way.
TREES = {
    'StanfordCars': cars, 'DTD': textures, 'OxfordIIITPet': pets, 'SUN397': sun, 'Birdsnap': birds,
    'Places205': places, 'INaturalist2018': inaturalist, 'CIFAR10': cifar, 'STL10': stl,
}  # fmt: skip


def accept_md5(root: Path, monkeypatch) -> None:
    """Replace the published MD5 digests with those of the batches that were just written."""
    theirs, folder = datasets.CIFAR10, root / 'cifar-10-batches-py'
    sums = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in folder.glob('*')}
    for name in ('train_list', 'test_list'):
        monkeypatch.setattr(theirs, name, [[file, sums.get(file)] for file, _ in getattr(theirs, name)])
    monkeypatch.setattr(theirs, 'meta', {**theirs.meta, 'md5': sums.get('batches.meta')})


@pytest.mark.parametrize('name', TREES)
def test_published_format_is_read(name, tmp_path, monkeypatch):
    kind, (parts, classes) = EVERY[name], TREES[name](tmp_path)
    accept_md5(tmp_path, monkeypatch)
    for part, pairs in parts.items():
        split = 'train+val' if part == 'train' and 'val' not in parts and 'val' in kind.splits else part
        assert contents(kind(tmp_path, split)) == pairs
    if 'val' not in parts and 'val' in kind.splits:
        train, val = (contents(kind(tmp_path, split)) for split in ('train', 'val'))
        size = round(len(parts['train']) * kind.held_out[0] / kind.held_out[1])
        assert len(val) == size > 0 and sorted(train + val) == sorted(parts['train'])
        assert contents(kind(tmp_path, 'val', seed=1)) != val
    elif 'train+val' in kind.splits:
        assert contents(kind(tmp_path, 'train+val')) == parts['train'] + parts['val']
    assert kind(tmp_path).classes == classes


def test_pixels_in_memory_are_in_order_and_unchanged(tmp_path, monkeypatch):
    cifar(tmp_path), stl(tmp_path)
    accept_md5(tmp_path, monkeypatch)
    for kind, split, number, size in ((CIFAR10, 'test', 41, 32), (STL10, 'train', 2, 96)):
        data = kind(tmp_path, split, views=[[dict(type='CenterCrop', size=32)]])
        whole, at = torch.from_numpy(ramp(number, size)), (size - 32) // 2
        assert torch.equal(data.raw(1), whole)
        assert torch.equal(data[1]['inputs'][0], whole[:, at : at + 32, at : at + 32])
        data.raw(1).zero_()
        assert torch.equal(data.raw(1), whole), 'changing a returned image changes the data set'


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Serve CIFAR-10's archive. Yield an object that counts the requests and determines the answers.

    Answers are cut after `size` bytes. If `size` is 0, they are refused.
    """
    cifar(tmp_path / 'there')
    accept_md5(tmp_path / 'there', monkeypatch)
    archive = shutil.make_archive(tmp_path / 'cifar', 'gztar', tmp_path / 'there')
    content = Path(archive).read_bytes()
    monkeypatch.setattr(datasets.CIFAR10, 'tgz_md5', hashlib.md5(content).hexdigest())
    state = SimpleNamespace(requests=0, size=len(content))

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            state.requests += 1
            self.send_response(200 if state.size else 503)
            self.send_header('Content-Length', str(len(content)))
            self.end_headers()
            if self.command == 'GET':
                self.wfile.write(content[: state.size])

    with ThreadingHTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f'http://127.0.0.1:{server.server_port}/cifar.tar.gz'
        monkeypatch.setattr(datasets.CIFAR10, 'url', url)
        state.length = len(content)
        yield state
        server.shutdown()


def config_of(root: Path) -> dict:
    part = dict(type='CIFAR10', root=str(root), split='test')
    return dict(train=dict(type='Part', dataset=part, held=False), test=[part], groups=None)


def test_download_is_the_published_set(published, tmp_path):
    root = tmp_path / 'new'
    download_missing(config_of(root))
    assert contents(CIFAR10(root, 'test')) == labelled(test=TEST)['test']
    assert sorted(path.name for path in root.iterdir()) == ['.download.lock', 'cifar-10-batches-py']
    requests = published.requests
    download_missing(config_of(root))
    assert published.requests == requests, 'a readable data set was downloaded again'


@pytest.mark.parametrize('size', [0, 1000])
def test_failed_download_leaves_nothing(size, published, tmp_path):
    root = tmp_path / 'new'
    # A download that was killed has left this folder.
    (root / '.download/cifar-10-batches-py').mkdir(parents=True)
    published.size = size
    with raises_code('download-failed', 'CIFAR10'):
        CIFAR10.download(root)
    assert [path.name for path in root.iterdir()] == ['.download.lock']
    published.size = published.length
    CIFAR10.download(root)
    assert len(CIFAR10(root, 'test')) == len(TEST)


def test_full_disk_while_downloading_is_an_error(published, tmp_path, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, 'No space left on device'))
    monkeypatch.setattr('torchvision.datasets.utils._extract_tar', full)
    monkeypatch.setitem(datasets.utils._ARCHIVE_EXTRACTORS, '.tar', full)
    with raises_code('disk-full'):
        CIFAR10.download(tmp_path / 'new')
    assert [path.name for path in (tmp_path / 'new').iterdir()] == ['.download.lock']


def test_download_replaces_no_file(published, tmp_path):
    (tmp_path / 'new/cifar-10-batches-py').mkdir(parents=True)
    with raises_code('download-exists'):
        CIFAR10.download(tmp_path / 'new')


def test_set_without_a_download_is_an_error(tmp_path):
    with raises_code('no-download', 'StanfordCars'):
        download_missing(dict(type='StanfordCars', root=tmp_path))


@pytest.mark.parametrize('kind', EVERY.values())
def test_missing_set_or_split_is_an_error(kind, tmp_path):
    with raises_code('unreadable-set', re.escape(kind.layout)) as raised:
        kind(tmp_path / 'gone', kind.splits[0])
    assert 'download=True' not in str(raised.value)
    assert not (tmp_path / 'gone').exists(), 'the missing folder was created'
    with raises_code('unknown-split'):
        kind(tmp_path, 'tset')


def test_missing_or_broken_file_is_an_error(tmp_path):
    stl(tmp_path), voc(tmp_path), birds(tmp_path)
    with raises_code('unreadable-set', 'train2018.json: no such file'):
        INaturalist2018(tmp_path)
    write(tmp_path / 'train2018.json', '{"images": [')
    with raises_code('unreadable-set', 'JSONDecodeError'):
        INaturalist2018(tmp_path)
    write(tmp_path / 'train2018.json', '[]')
    with raises_code('unreadable-set', 'TypeError'):
        INaturalist2018(tmp_path)
    cars(tmp_path)
    (tmp_path / 'stanford_cars/devkit/cars_train_annos.mat').write_bytes(b'')
    with raises_code('unreadable-set', 'MatReadError'):
        EVERY['StanfordCars'](tmp_path)
    write(tmp_path / 'VOCdevkit/VOC2007/Annotations/000005.xml', '<annotation><object>')
    with raises_code('unreadable-set', 'ParseError'):
        VOC2007(tmp_path)
    file = tmp_path / 'stl10_binary/train_X.bin'
    file.write_bytes(file.read_bytes()[:-1])
    with raises_code('unreadable-set', 'STL10'):
        STL10(tmp_path)
    (tmp_path / 'download').rename(tmp_path / 'elsewhere')
    with raises_code('empty-split', 'Birdsnap'):
        Birdsnap(tmp_path, 'test')


def test_caltech_draws_25_and_5_images_of_each_class(tmp_path):
    folder = tmp_path / 'caltech101/101_ObjectCategories'
    for first, (name, size) in zip((0, 100), {'BACKGROUND_Google': 31, 'ant': 34}.items()):
        for i in range(size):
            picture(folder / name / f'image_{i + 1:04}.jpg', first + i)
    # The published archive also contains this file.
    (folder / 'BACKGROUND_Google/tmp').touch()
    parts = {split: contents(Caltech101(tmp_path, split)) for split in Caltech101.splits}
    counts = {split: [sum(y == label for _, y in images) for label in (0, 1)] for split, images in parts.items()}
    assert counts == {'train': [25, 25], 'val': [5, 5], 'train+val': [30, 30], 'test': [1, 4]}
    assert sorted(parts['train'] + parts['val']) == sorted(parts['train+val'])
    assert sorted(parts['train+val'] + parts['test']) == [(i, 0) for i in range(31)] + [(100 + i, 1) for i in range(34)]
    assert Caltech101(tmp_path).classes == ['BACKGROUND_Google', 'ant']
    assert contents(Caltech101(tmp_path, 'val', seed=1)) != parts['val']


# For each image: its split, and the class of each object with its flag 'difficult'.
VOC_IMAGES = {
    '000005': ('train', [('chair', 0), ('chair', 1), ('person', 1)]),
    '000007': ('train', [('car', 1), ('car', 0)]),
    '000009': ('val', [('horse', 0), ('person', 0)]),
    '000001': ('test', [('dog', 1), ('dog', 1)]),
}


def voc(root: Path) -> None:
    folder = root / 'VOCdevkit/VOC2007'
    for part in ('train', 'val', 'test'):
        write(
            folder / f'ImageSets/Main/{part}.txt', *(name for name, (split, _) in VOC_IMAGES.items() if split == part)
        )
    for name, (_, things) in VOC_IMAGES.items():
        picture(folder / f'JPEGImages/{name}.jpg', int(name))
        objects = ''.join(
            f'<object><name>{thing}</name><difficult>{difficult}</difficult>'
            # Boxes of body parts are not objects of their own.
            '<part><name>head</name></part></object>'
            for thing, difficult in things
        )
        write(folder / f'Annotations/{name}.xml', f'<annotation>{objects}</annotation>')


def test_voc_image_has_all_its_classes(tmp_path):
    voc(tmp_path)

    def shown(data: VOC2007) -> list[dict[str, int]]:
        return [{name: value for name, value in zip(data.classes, row) if value} for row in data.labels.tolist()]

    train, both = VOC2007(tmp_path), VOC2007(tmp_path, 'train+val')
    assert train.labels.shape == (2, 20) and both.labels.shape == (3, 20)
    assert shown(train) == [{'chair': 1, 'person': -1}, {'car': 1}]
    assert train[1]['data_samples']['label'].tolist() == train.labels[1].tolist()
    assert shown(VOC2007(tmp_path, 'test')) == [{'dog': -1}]
    assert [int(both.raw(i)[0, 0, 0]) for i in range(3)] == [5, 7, 9]


# BYOL's appendix states these numbers of training and validation images.
PUBLISHED = dict(
    CIFAR10=(45_000, 5_000), CIFAR100=(44_933, 5_067), Food101=(68_175, 7_575), Birdsnap=(42_405, 4_981),
    SUN397=(15_880, 3_970), StanfordCars=(6_494, 1_650), OxfordIIITPet=(2_940, 740),
)  # fmt: skip


def test_held_out_part_has_the_published_size():
    for name, (train, val) in PUBLISHED.items():
        rows = [rows_of_split(split, train + val, EVERY[name].held_out, seed=0).tolist() for split in ('train', 'val')]
        assert [len(part) for part in rows] == [train, val] and sorted(rows[0] + rows[1]) == list(range(train + val))
