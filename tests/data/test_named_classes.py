"""The classes a list names, as ImageNet-100's."""

from pathlib import Path

import pytest
from mmairl.data.subsets import NamedClasses
from PIL import Image

from mmairl.errors import UserError


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for grey, (name, file) in enumerate([('n01', 'a'), ('n01', 'b'), ('n02', 'a'), ('n03', 'a'), ('n04', 'a')]):
        (tmp_path / 'images' / name).mkdir(parents=True, exist_ok=True)
        Image.new('L', (8, 8), grey).save(tmp_path / 'images' / name / f'{file}.png')
    return tmp_path


def named(root: Path, text: str) -> NamedClasses:
    (root / 'names.txt').write_text(text)
    return NamedClasses(dict(type='ImageFolder', root=root / 'images'), root / 'names.txt')


def test_the_named_classes_keep_all_their_images_and_are_counted_anew(folders):
    data = named(folders, 'n04\n\nn01 \nn04\n')
    assert data.classes == ['n01', 'n04'] and data.labels.tolist() == [0, 0, 1] and len(data) == 3
    items = [data[i] for i in range(3)]
    assert [int(item['inputs'][0][0, 0, 0]) for item in items] == [0, 1, 4]
    assert [item['data_samples']['label'] for item in items] == [0, 0, 1]
    assert data.metric == 'top-1' and data.metainfo == dict(classes=['n01', 'n04'])


def test_unknown_names_and_lists_that_are_missing_or_empty_are_one_sentence(folders):
    with pytest.raises(UserError, match=r"2 of the 3 names in .* are no class of ImageFolder, first 'n1'; .*'n01'"):
        named(folders, 'n1\nn02\nn5\n')
    with pytest.raises(UserError, match='is empty; write one name a line'):
        named(folders, '\n \n')
    with pytest.raises(UserError, match='there is no list of classes at .*gone'):
        NamedClasses(dict(type='ImageFolder', root=folders / 'images'), folders / 'gone.txt')
