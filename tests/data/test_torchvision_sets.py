"""The sets that torchvision lists, on small trees in their published formats."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from mmairl.data.published import DTD, FGVCAircraft, Flowers102, Food101, OxfordIIITPet, StanfordCars
from PIL import Image
from torchvision import datasets

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


@pytest.mark.parametrize('kind', [DTD, FGVCAircraft, Flowers102, Food101, OxfordIIITPet, StanfordCars])
def test_a_missing_set_is_one_sentence_with_place_layout_and_source(kind, tmp_path):
    with pytest.raises(UserError) as caught:
        kind(tmp_path / 'gone')
    sentence = str(caught.value)
    assert sentence.startswith(f'{kind.__name__} cannot be read from {tmp_path}/gone')
    assert kind.layout in sentence and kind.source in sentence and 'download=True' not in sentence
    assert sentence.count('. ') == 0
    assert not (tmp_path / 'gone').exists(), 'looking for data makes no folders'
    with pytest.raises(UserError, match="no split 'tset'; use one of 'train', 'val', 'train\\+val', 'test'"):
        kind(tmp_path, 'tset')


def test_an_unreadable_image_gives_way_to_the_next_of_its_split(tmp_path):
    folder = tmp_path / 'fgvc-aircraft-2013b' / 'data'
    write(folder / 'variants.txt', ['A300B4'])
    write(folder / 'images_variant_train.txt', ['0000001 A300B4', '0000002 A300B4'])
    write(folder / 'images' / '0000001.jpg', ['not an image'])
    picture(folder / 'images' / '0000002.jpg', 2)
    data = FGVCAircraft(tmp_path)
    assert data[0]['inputs'][0][0, 0, 0] == 2
    assert data.unreadable_files() == [str(folder / 'images' / '0000001.jpg')]
    with pytest.raises(UserError, match='cannot be read, more than the 0 that are allowed'):
        FGVCAircraft(tmp_path, max_unreadable=0)[0]
