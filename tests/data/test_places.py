"""Places205's lists and iNaturalist's annotations."""

import json
from pathlib import Path

import pytest
from mmairl.data.published import INaturalist2018, Places205
from PIL import Image

from mmairl.errors import UserError


def picture(path: Path, grey: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (8, 8), (grey, grey, grey)).save(path, quality=100)


def contents(data) -> list[tuple[int, int]]:
    return [(int(data.raw(i)[0, 0, 0]), int(data.labels[i])) for i in range(len(data))]


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


@pytest.mark.parametrize('kind,file', [(Places205, 'train_places205.csv'), (INaturalist2018, 'train2018.json')])
def test_a_missing_list_an_unknown_split_and_a_broken_list_are_one_sentence(kind, file, tmp_path):
    with pytest.raises(UserError, match=rf'{kind.__name__} cannot be read from .*{file} is missing: it wants'):
        kind(tmp_path)
    with pytest.raises(UserError, match="no split 'test'; use one of 'train', 'val'"):
        kind(tmp_path, 'test')
    for path in (tmp_path / file, tmp_path / 'trainvalsplit_places205' / file):
        path.parent.mkdir(exist_ok=True)
        path.write_text('{"images": [')
    with pytest.raises(UserError, match=rf'{kind.__name__} cannot be read from .*\(\w+: .+\): it wants'):
        kind(tmp_path)
