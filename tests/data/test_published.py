"""The public sets on small trees in their published formats: images, labels, splits, and what is missing in a sentence."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from PIL import Image
from torchvision import datasets

from mmairl.data import published
from mmairl.data.images import UnreadableImage
from mmairl.data.published import (
    CIFAR10,
    CIFAR100,
    DTD,
    STL10,
    SUN397,
    VOC2007,
    Birdsnap,
    Caltech101,
    FGVCAircraft,
    Flowers102,
    Food101,
    INaturalist2018,
    OxfordIIITPet,
    Places205,
    StanfordCars,
)
from mmairl.data.splits import HeldOut
from mmairl.errors import UserError


def picture(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (9, 6), (grey, grey, grey)).save(path, quality=100)


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(''.join(f'{line}\n' for line in lines))


def contents(data) -> list[tuple[int, int]]:
    """(the grey of the image, its label) of every image, in order."""
    return [(int(data.raw(i)[0, 3, 4]), int(data.labels[i])) for i in range(len(data))]


def assert_held_out(kind, root: Path, everything: list[tuple[int, int]], val: int) -> None:
    """'val' has `val` images, 'train' the others, and together they are the published training list, in its order."""
    parts = {split: contents(kind(root, split)) for split in ('train', 'val', 'train+val')}
    assert len(parts['val']) == val and len(parts['train']) == len(everything) - val
    assert parts['train+val'] == everything
    assert sorted(parts['train'] + parts['val']) == sorted(everything)
    assert contents(kind(root, 'val', seed=1)) != parts['val']


def test_food(tmp_path):
    folder = tmp_path / 'food-101'
    lists = {
        'train': {'sushi': [f'sushi/{i}' for i in range(10)], 'apple_pie': [f'apple_pie/{i}' for i in range(10, 20)]},
        'test': {'sushi': ['sushi/20'], 'apple_pie': ['apple_pie/21']},
    }
    for part, names in lists.items():
        every = [name for some in names.values() for name in some]
        write(folder / 'meta' / f'{part}.txt', every)
        write(folder / 'meta' / f'{part}.json', [json.dumps(names)])
        for name in every:
            picture(folder / 'images' / f'{name}.jpg', int(name.split('/')[1]))
    assert_held_out(Food101, tmp_path, [(i, 1) for i in range(10)] + [(i, 0) for i in range(10, 20)], val=2)
    test = Food101(tmp_path, 'test')
    assert contents(test) == [(20, 1), (21, 0)]
    assert test.classes == ['apple_pie', 'sushi'] and test.metric == 'top-1'
    assert test.raw(0).shape == (3, 6, 9)


def test_cars(tmp_path):
    folder = tmp_path / 'stanford_cars'
    kind = [('bbox_x1', 'O'), ('class', 'O'), ('fname', 'O')]

    def annotate(path: Path, images: Path, greys: list[int], labels: list[int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [(1, label, f'{grey:05}.jpg') for grey, label in zip(greys, labels)]
        scipy.io.savemat(path, {'annotations': np.array(rows, dtype=kind).reshape(1, -1)})
        for grey in greys:
            picture(images / f'{grey:05}.jpg', grey)

    annotate(folder / 'devkit' / 'cars_train_annos.mat', folder / 'cars_train', list(range(10)), [1, 2] * 5)
    annotate(folder / 'cars_test_annos_withlabels.mat', folder / 'cars_test', [10, 11, 12], [2, 1, 2])
    names = np.array(['Acura RL', 'smart fortwo'], dtype=object).reshape(1, -1)
    scipy.io.savemat(folder / 'devkit' / 'cars_meta.mat', {'class_names': names})
    assert_held_out(StanfordCars, tmp_path, [(i, i % 2) for i in range(10)], val=2)
    test = StanfordCars(tmp_path, 'test')
    assert contents(test) == [(10, 1), (11, 0), (12, 1)]
    assert test.classes == ['Acura RL', 'smart fortwo'] and test.metric == 'top-1'


def test_aircraft(tmp_path):
    folder = tmp_path / 'fgvc-aircraft-2013b' / 'data'
    write(folder / 'variants.txt', ['A300B4', 'Boeing 707-320'])
    greys = {'train': [1, 2, 3], 'val': [4, 5], 'test': [6]}
    for part, images in greys.items():
        names = {0: 'A300B4', 1: 'Boeing 707-320'}
        write(folder / f'images_variant_{part}.txt', [f'{grey:07} {names[grey % 2]}' for grey in images])
        for grey in images:
            picture(folder / 'images' / f'{grey:07}.jpg', grey)
    for part, images in {**greys, 'train+val': [1, 2, 3, 4, 5]}.items():
        assert contents(FGVCAircraft(tmp_path, part)) == [(grey, grey % 2) for grey in images]
    data = FGVCAircraft(tmp_path)
    assert data.classes == ['A300B4', 'Boeing 707-320'] and data.metric == 'mean per class'


def test_textures_of_any_partition(tmp_path):
    folder = tmp_path / 'dtd' / 'dtd'
    first = {'train': [0, 1], 'val': [2, 3], 'test': [4, 5]}
    second = {'train': [4, 5], 'val': [0, 1], 'test': [2, 3]}
    for number, parts in ((1, first), (2, second)):
        for part, images in parts.items():
            lines = [f'{("banded", "zigzagged")[i % 2]}/{("banded", "zigzagged")[i % 2]}_{i:04}.jpg' for i in images]
            write(folder / 'labels' / f'{part}{number}.txt', lines)
            for line, i in zip(lines, images):
                picture(folder / 'images' / line, i)
    for number, parts in ((1, first), (2, second)):
        for part, images in {**parts, 'train+val': parts['train'] + parts['val']}.items():
            assert contents(DTD(tmp_path, part, partition=number)) == [(i, i % 2) for i in images]
    assert contents(DTD(tmp_path, 'test')) == [(4, 0), (5, 1)]
    assert DTD(tmp_path).classes == ['banded', 'zigzagged'] and DTD.metric == 'top-1'
    with pytest.raises(UserError, match=r'DTD cannot be read .* where .*train3\.txt is missing'):
        DTD(tmp_path, partition=3)


def test_pets(tmp_path):
    folder = tmp_path / 'oxford-iiit-pet'
    breeds = ['Abyssinian', 'american_bulldog']
    for part, greys in (('trainval', range(10)), ('test', range(10, 14))):
        lines = [f'{breeds[i % 2]}_{i} {i % 2 + 1} {i % 2 + 1} 1' for i in greys]
        write(folder / 'annotations' / f'{part}.txt', lines)
        for i in greys:
            picture(folder / 'images' / f'{breeds[i % 2]}_{i}.jpg', i)
    assert_held_out(OxfordIIITPet, tmp_path, [(i, i % 2) for i in range(10)], val=2)
    test = OxfordIIITPet(tmp_path, 'test')
    assert contents(test) == [(i, i % 2) for i in range(10, 14)]
    assert test.classes == ['Abyssinian', 'American Bulldog'] and test.metric == 'mean per class'


def test_flowers(tmp_path, monkeypatch):
    folder = tmp_path / 'flowers-102'
    for image in range(1, 7):
        picture(folder / 'jpg' / f'image_{image:05}.jpg', image)
    scipy.io.savemat(folder / 'setid.mat', {'trnid': [[6, 1]], 'valid': [[2, 3]], 'tstid': [[5, 4]]})
    scipy.io.savemat(folder / 'imagelabels.mat', {'labels': [[77, 1, 77, 1, 102, 102]]})
    with pytest.raises(UserError, match='Flowers102 cannot be read .* unchanged by their md5'):
        Flowers102(tmp_path)
    names = {'image': '102flowers.tgz', 'label': 'imagelabels.mat', 'setid': 'setid.mat'}
    md5 = {key: hashlib.md5((folder / names[key]).read_bytes()).hexdigest() for key in ('label', 'setid')}
    monkeypatch.setattr(
        datasets.Flowers102, '_file_dict', {key: (name, md5.get(key, '')) for key, name in names.items()}
    )
    expected = {'train': [(6, 101), (1, 76)], 'val': [(2, 0), (3, 76)], 'test': [(5, 101), (4, 0)]}
    for part, images in {**expected, 'train+val': expected['train'] + expected['val']}.items():
        assert contents(Flowers102(tmp_path, part)) == images
    data = Flowers102(tmp_path)
    assert len(data.classes) == 102 and data.classes[76] == 'passion flower' and data.metric == 'mean per class'


EVERY = [kind for kind in vars(published).values() if isinstance(kind, type) and hasattr(kind, 'source')]


@pytest.mark.parametrize('kind', EVERY)
def test_a_missing_set_or_split_is_one_sentence(kind, tmp_path):
    with pytest.raises(UserError) as caught:
        kind(tmp_path / 'gone')
    sentence = str(caught.value)
    assert sentence.startswith(f'{kind.__name__} cannot be read from {tmp_path}/gone')
    assert kind.layout in sentence and kind.source in sentence and 'download=True' not in sentence
    assert sentence.count('. ') == 0
    assert not (tmp_path / 'gone').exists(), 'looking for data makes no folders'
    with pytest.raises(UserError, match=f"no split 'tset'; use one of '{kind.splits[0]}', '"):
        kind(tmp_path, 'tset')


def test_a_file_that_is_missing_and_a_list_that_is_broken_are_named(tmp_path):
    with pytest.raises(UserError, match=r'INaturalist2018 .*, where .*train2018\.json is missing: it wants'):
        INaturalist2018(tmp_path)
    (tmp_path / 'train2018.json').write_text('{"images": [')
    with pytest.raises(UserError, match=r'INaturalist2018 cannot be read from .*\(JSONDecodeError: .+\): it wants'):
        INaturalist2018(tmp_path)


def test_an_unreadable_image_of_a_list_is_named(tmp_path):
    folder = tmp_path / 'fgvc-aircraft-2013b' / 'data'
    write(folder / 'variants.txt', ['A300B4'])
    write(folder / 'images_variant_train.txt', ['0000001 A300B4'])
    write(folder / 'images' / '0000001.jpg', ['not an image'])
    with pytest.raises(UnreadableImage, match='images/0000001.jpg is not recognised'):
        FGVCAircraft(tmp_path)[0]


SPECIES = {'7': ('Acadian Flycatcher', 'Acadian_Flycatcher'), '3': ("Wilson's Snipe", 'Wilsons_Snipe')}


@pytest.fixture
def birds(tmp_path: Path) -> Path:
    lines = [f'{id}\t{common}\tAves aves\t{folder}' for id, (common, folder) in SPECIES.items()]
    (tmp_path / 'species.txt').write_text('\n'.join(['id\tcommon\tscientific\tdir', *lines]) + '\n')
    # 20 training images, 4 of the test, one photograph of each gone
    paths = {i: (f'{SPECIES["73"[i % 2]][1]}/{i}.jpg', '73'[i % 2]) for i in range(26)}
    rows = [f'http://flickr/{i}.jpg\t{"0" * 32}\t{path}\t{id}\t1\t2\t3\t4\tnull' for i, (path, id) in paths.items()]
    header = 'url\tmd5\tpath\tspecies_id\tbb_x1\tbb_y1\tbb_x2\tbb_y2\tback_x'
    (tmp_path / 'images.txt').write_text('\n'.join([header, *rows]) + '\n')
    (tmp_path / 'test_images.txt').write_text('\n'.join(['path', *(paths[i][0] for i in range(21, 26))]) + '\n')
    for i, (path, _) in paths.items():
        if i not in (4, 22):
            file = tmp_path / 'download' / 'images' / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new('RGB', (8, 8), (i, i, i)).save(file, quality=100)
    return tmp_path


def test_photographs_that_are_gone_are_left_out_of_every_split(birds):
    assert contents(Birdsnap(birds, 'test')) == [(i, i % 2) for i in (21, 23, 24, 25)]
    train, val, both = (contents(Birdsnap(birds, split)) for split in ('train', 'val', 'train+val'))
    assert both == [(i, i % 2) for i in range(21) if i != 4]
    assert len(val) == round(20 * 4_981 / 47_386) and sorted(train + val) == both
    assert Birdsnap(birds).classes == ['Acadian Flycatcher', "Wilson's Snipe"] and Birdsnap.metric == 'top-1'


def test_a_set_without_any_photograph_says_so(birds):
    (birds / 'download').rename(birds / 'elsewhere')
    with pytest.raises(UserError, match="Birdsnap has no image for split 'test' in"):
        Birdsnap(birds, 'test')


SIZES = {'BACKGROUND_Google': 31, 'ant': 34}


@pytest.fixture
def caltech(tmp_path: Path) -> Path:
    for first, (name, size) in zip((0, 100), SIZES.items()):
        folder = tmp_path / 'caltech101' / '101_ObjectCategories' / name
        folder.mkdir(parents=True)
        for i in range(size):
            Image.new('L', (8, 8), first + i).save(folder / f'image_{i + 1:04}.jpg', quality=100)
    (tmp_path / 'caltech101' / '101_ObjectCategories' / 'BACKGROUND_Google' / 'tmp').touch()  # as in the archive
    return tmp_path


def test_each_class_gives_25_and_5_images_and_the_rest(caltech):
    parts = {split: contents(Caltech101(caltech, split)) for split in ('train', 'val', 'train+val', 'test')}
    counts = {split: [sum(y == label for _, y in images) for label in (0, 1)] for split, images in parts.items()}
    assert counts == {'train': [25, 25], 'val': [5, 5], 'train+val': [30, 30], 'test': [1, 4]}
    assert sorted(parts['train'] + parts['val']) == sorted(parts['train+val'])
    assert sorted(parts['train+val'] + parts['test']) == [(i, 0) for i in range(31)] + [(100 + i, 1) for i in range(34)]
    data = Caltech101(caltech)
    assert data.classes == ['BACKGROUND_Google', 'ant'] and data.metric == 'mean per class'
    assert contents(Caltech101(caltech, 'val', seed=1)) != parts['val']


def test_a_class_without_a_test_image_is_one_sentence(caltech):
    for image in (31, 32, 33, 34):
        (caltech / 'caltech101' / '101_ObjectCategories' / 'ant' / f'image_{image:04}.jpg').unlink()
    with pytest.raises(UserError, match='class ant of Caltech101 has 30 images .* wants over 30'):
        Caltech101(caltech)


def test_places(tmp_path):
    lists = tmp_path / 'trainvalsplit_places205'
    lists.mkdir()
    lines = ['a/abbey/gsun_1.jpg 0', 'a/apartment_building/outdoor/gsun_2.jpg 2', 'a/abbey/g sun_3.jpg 0']
    (lists / 'train_places205.csv').write_text('\n'.join(lines) + '\n')
    (lists / 'val_places205.csv').write_text('a/abbey/gsun_4.jpg 0\n')
    for grey, line in enumerate([*lines, 'a/abbey/gsun_4.jpg 0']):
        picture(tmp_path / 'data/vision/torralba/deeplearning/images256' / line[:-2], grey)
    train = Places205(tmp_path)
    assert contents(train) == [(0, 0), (1, 2), (2, 0)]
    assert train.classes == ['abbey', '1', 'apartment_building/outdoor'] and train.metric == 'top-1'
    assert contents(Places205(tmp_path, 'val')) == [(3, 0)]


def test_inaturalist(tmp_path):
    categories = [dict(id=12, name='Turdus merula', supercategory='Aves'), dict(id=5, name='Apis', supercategory='In')]
    images = {'train': {901: 12, 900: 5}, 'val': {903: 12}}
    for part, species in images.items():
        record = dict(
            images=[
                dict(id=image, file_name=f'train_val2018/Aves/{kind}/{image}.jpg', width=8, height=8)
                for image, kind in species.items()
            ],
            # in another order than the images
            annotations=[
                dict(id=1000 + image, image_id=image, category_id=kind) for image, kind in sorted(species.items())
            ],
            categories=categories,
        )
        (tmp_path / f'{part}2018.json').write_text(json.dumps(record))
        for image, kind in species.items():
            picture(tmp_path / f'train_val2018/Aves/{kind}/{image}.jpg', image - 900)
    train = INaturalist2018(tmp_path)
    assert contents(train) == [(1, 1), (0, 0)]
    assert train.classes == ['Apis', 'Turdus merula'] and train.metric == 'top-1'
    assert contents(INaturalist2018(tmp_path, 'val')) == [(3, 1)]


SUN_CLASSES = ['/a/abbey', '/a/apartment_building/outdoor']


@pytest.fixture
def sun(tmp_path: Path) -> Path:
    def line(i: int) -> str:
        return f'{SUN_CLASSES[i % 2]}/sun_{i:04}.jpg'

    for i in range(14):
        file = tmp_path / f'SUN397{line(i)}'
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (8, 8), (i, i, i)).save(file, quality=100)
    (tmp_path / 'SUN397' / 'ClassName.txt').write_text(''.join(f'{name}\n' for name in SUN_CLASSES))
    (tmp_path / 'splits').mkdir()
    (tmp_path / 'splits' / 'Training_01.txt').write_text(''.join(f'{line(i)}\n' for i in range(10)))
    (tmp_path / 'splits' / 'Testing_01.txt').write_text(''.join(f'{line(i)}\n' for i in (10, 11)))
    return tmp_path


def test_the_first_partition_is_the_split(sun):
    train, val, both, test = (contents(SUN397(sun, split)) for split in ('train', 'val', 'train+val', 'test'))
    assert both == [(i, i % 2) for i in range(10)] and len(val) == 2 and sorted(train + val) == both
    assert test == [(10, 0), (11, 1)], 'images in neither list are in no split'
    assert SUN397(sun).classes == ['abbey', 'apartment_building/outdoor'] and SUN397.metric == 'top-1'


def test_without_the_partition_it_says_where_that_comes_from(sun):
    (sun / 'splits' / 'Testing_01.txt').unlink()
    assert len(SUN397(sun, 'train')) == 8
    with pytest.raises(UserError, match=r'SUN397 .*Testing_01\.txt is missing: it wants .*splits/\{Tr.* Partitions'):
        SUN397(sun, 'test')


# name -> (split, [(class, difficult)])
VOC_IMAGES = {
    '000005': ('train', [('chair', 0), ('chair', 1), ('person', 1)]),
    '000007': ('train', [('car', 1), ('car', 0)]),
    '000009': ('val', [('horse', 0), ('person', 0)]),
    '000001': ('test', [('dog', 1), ('dog', 1)]),
}


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    folder = tmp_path / 'VOCdevkit' / 'VOC2007'
    for part in ('Annotations', 'JPEGImages', 'ImageSets/Main'):
        (folder / part).mkdir(parents=True)
    for name, (_, things) in VOC_IMAGES.items():
        grey = int(name)
        Image.new('RGB', (9, 6), (grey, grey, grey)).save(folder / 'JPEGImages' / f'{name}.jpg', quality=100)
        objects = ''.join(
            f'<object><name>{thing}</name><pose>Rear</pose><truncated>0</truncated><difficult>{difficult}</difficult>'
            '<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>'
            # people come with parts, which are no objects of the task
            '<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part></object>'
            for thing, difficult in things
        )
        text = f'<annotation><folder>VOC2007</folder><filename>{name}.jpg</filename>{objects}</annotation>'
        (folder / 'Annotations' / f'{name}.xml').write_text(text)
    for part in ('train', 'val', 'test'):
        names = [name for name, (split, _) in VOC_IMAGES.items() if split == part]
        (folder / 'ImageSets' / 'Main' / f'{part}.txt').write_text('\n'.join(names) + '\n')
    return tmp_path


def shown(data: VOC2007) -> list[dict[str, int]]:
    return [{name: value for name, value in zip(data.classes, row) if value} for row in data.labels.tolist()]


def test_an_image_is_of_every_class_it_shows_and_difficult_ones_do_not_count(voc):
    train = VOC2007(voc)
    assert train.labels.shape == (2, 20) and train.metric == '11-point mAP'
    assert shown(train) == [{'chair': 1, 'person': -1}, {'car': 1}]
    assert [train.raw(i)[0, 0, 0] for i in range(2)] == [5, 7]
    assert train[1]['data_samples']['label'].tolist() == train.labels[1].tolist()
    assert shown(VOC2007(voc, 'test')) == [{'dog': -1}]


def test_training_and_validation_images_together(voc):
    both = VOC2007(voc, 'train+val')
    assert [both.path(i).stem for i in range(3)] == ['000005', '000007', '000009'] and both.labels.shape == (3, 20)


def test_annotations_that_are_broken_or_missing_are_one_sentence(voc):
    annotation = voc / 'VOCdevkit' / 'VOC2007' / 'Annotations' / '000005.xml'
    for broken in ('<annotation><object>', '<annotation><object><name>wolf</name></object></annotation>'):
        annotation.write_text(broken)
        with pytest.raises(UserError, match='VOC2007 cannot be read'):
            VOC2007(voc)
    annotation.unlink()
    with pytest.raises(UserError, match=r'where .*000005\.xml is missing'):
        VOC2007(voc)


CIFARS = {
    CIFAR10: ('cifar-10-batches-py', [f'data_batch_{i}' for i in range(1, 6)], 'test_batch', 'batches.meta', 'labels'),
    CIFAR100: ('cifar-100-python', ['train'], 'test', 'meta', 'fine_labels'),
}


def images(indices: range) -> np.ndarray:
    """Image i, (3, 32, 32): red i, green its row, blue its column."""
    at = np.arange(32)
    planes = [np.stack([np.full((32, 32), i), np.tile(at[:, None], 32), np.tile(at, (32, 1))]) for i in indices]
    return np.array(planes, np.uint8)


def write_cifar(folder: Path, kind: type[CIFAR10]) -> dict[str, str]:
    """The files of a set of 40 training and 10 test images whose labels are their number modulo 2, and their md5."""
    name, train, test, meta, key = CIFARS[kind]
    (folder / name).mkdir(parents=True)
    each = 40 // len(train)
    batches = {file: range(i * each, (i + 1) * each) for i, file in enumerate(train)}
    md5 = {}
    for file, indices in {**batches, test: range(40, 50)}.items():
        batch = {'data': images(indices).reshape(len(indices), -1), key: [i % 2 for i in indices]}
        (folder / name / file).write_bytes(pickle.dumps(batch))
    names = 'label_names' if kind is CIFAR10 else 'fine_label_names'
    (folder / name / meta).write_bytes(pickle.dumps({names: ['even', 'odd']}))
    for file in (*train, test, meta):
        md5[file] = hashlib.md5((folder / name / file).read_bytes()).hexdigest()
    return md5


@pytest.fixture(params=CIFARS, ids=lambda kind: kind.__name__)
def cifar(request, tmp_path, monkeypatch) -> tuple[type[CIFAR10], Path]:
    kind = request.param
    md5 = write_cifar(tmp_path, kind)
    _, train, test, meta, _ = CIFARS[kind]
    theirs = {CIFAR10: datasets.CIFAR10, CIFAR100: datasets.CIFAR100}[kind]
    monkeypatch.setattr(theirs, 'train_list', [[file, md5[file]] for file in train])
    monkeypatch.setattr(theirs, 'test_list', [[test, md5[test]]])
    monkeypatch.setattr(theirs, 'meta', {**theirs.meta, 'md5': md5[meta]})
    return kind, tmp_path


def test_cifar_holds_a_tenth_out_and_keeps_the_test(cifar):
    kind, root = cifar
    train, val, both, test = (contents(kind(root, split)) for split in ('train', 'val', 'train+val', 'test'))
    assert both == [(i, i % 2) for i in range(40)] and len(val) == 4 and sorted(train + val) == both
    assert test == [(i, i % 2) for i in range(40, 50)]
    assert contents(kind(root, 'val', seed=1)) != val
    data = kind(root, 'test')
    assert data.classes == ['even', 'odd'] and data.metric == 'top-1' and data.images.dtype == torch.uint8


def test_rows_columns_and_channels_of_cifar_are_where_they_belong(cifar):
    kind, root = cifar
    data = kind(root, 'test', views=[[dict(type='CenterCrop', size=32)]])
    assert data.raw(3)[:, 4, 9].tolist() == [43, 4, 9]
    assert data[3]['inputs'][0][:, 4, 9].tolist() == [43, 4, 9]
    data.raw(3).zero_()
    assert data.raw(3)[0, 0, 0] == 43, 'what a view does to its image stays with the view'


class Trap:
    """A pickle that leaves a file behind when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_a_pickle_that_is_not_the_published_one_is_never_opened(cifar):
    kind, root = cifar
    folder, train, test, meta, _ = CIFARS[kind]
    for file in (train[0], test, meta):
        before = (root / folder / file).read_bytes()
        (root / folder / file).write_bytes(pickle.dumps(Trap(root / 'sprung')))
        for split in ('train', 'test'):
            with pytest.raises(UserError, match='unchanged by their md5'):
                kind(root, split)
        assert not (root / 'sprung').exists()
        (root / folder / file).write_bytes(before)
    pickle.loads(pickle.dumps(Trap(root / 'sprung')))
    assert (root / 'sprung').exists(), 'the trap works'


@pytest.fixture
def stl(tmp_path: Path) -> Path:
    folder = tmp_path / 'stl10_binary'
    folder.mkdir()
    (folder / 'class_names.txt').write_text('airplane\nbird\ncar\n')
    at = np.arange(96)
    for part, numbers in (('train', (1, 2)), ('test', (3,)), ('unlabeled', (4, 5, 6))):
        # the format: channel by channel, each column by column
        planes = [np.stack([np.full((96, 96), i), np.tile(at, (96, 1)), np.tile(at[:, None], 96)]) for i in numbers]
        np.array(planes, np.uint8).tofile(folder / f'{part}_X.bin')
        if part != 'unlabeled':
            np.array([i % 3 + 1 for i in numbers], np.uint8).tofile(folder / f'{part}_y.bin')
    return tmp_path


def test_stl_counts_labels_from_0_and_turns_its_columns_into_rows(stl):
    train = STL10(stl)
    assert contents(train) == [(1, 1), (2, 2)] and train.classes == ['airplane', 'bird', 'car']
    assert train.raw(0)[:, 4, 9].tolist() == [1, 4, 9], 'red is the number, green the row, blue the column'
    assert contents(STL10(stl, 'test')) == [(3, 0)]
    assert contents(STL10(stl, 'unlabeled')) == [(4, -1), (5, -1), (6, -1)]


def test_stl_has_no_validation_split_and_refuses_files_that_were_cut_short(stl):
    with pytest.raises(UserError, match="no split 'val'; use one of 'train', 'test', 'unlabeled'"):
        STL10(stl, 'val')
    file = stl / 'stl10_binary' / 'train_X.bin'
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserError, match='STL10 cannot be read'):
        STL10(stl)
    (stl / 'stl10_binary' / 'unlabeled_X.bin').rename(file)
    with pytest.raises(UserError, match='STL10 cannot be read'):
        STL10(stl)


# BYOL's appendix: training and validation images
PUBLISHED = {
    CIFAR10: (45_000, 5_000),
    CIFAR100: (44_933, 5_067),
    Food101: (68_175, 7_575),
    Birdsnap: (42_405, 4_981),
    SUN397: (15_880, 3_970),
    StanfordCars: (6_494, 1_650),
    OxfordIIITPet: (2_940, 740),
}


def test_the_held_out_part_has_the_published_size():
    for kind, (train, val) in PUBLISHED.items():
        held_out = kind.held_out
        assert held_out.of == train + val
        rows = {split: held_out.rows(split, train + val, seed=0).tolist() for split in ('train', 'val', 'train+val')}
        assert (len(rows['train']), len(rows['val'])) == (train, val)
        assert sorted(rows['train'] + rows['val']) == rows['train+val'] == list(range(train + val))


def test_another_size_gives_the_same_fraction_and_another_seed_other_images():
    held_out = HeldOut(25, of=100)
    first, again, other = (held_out.rows('val', 40, seed).tolist() for seed in (0, 0, 1))
    assert len(first) == 10 and first == again == sorted(first)
    assert first != other
    assert not set(first) & set(held_out.rows('train', 40, 0).tolist())
    assert first != list(range(10)), 'the first images are often of one class'
    assert held_out.rows('test', 5, seed=0).tolist() == [0, 1, 2, 3, 4]
