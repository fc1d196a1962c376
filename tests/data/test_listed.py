"""Split lists as they are published, and the ways a list can be wrong."""

import time
from pathlib import Path

import pytest
from mmairl.data.subsets import ListedSubset, find
from PIL import Image

from mmairl.errors import UserError

NAMES = ['n01/n01_1.png', 'n01/n01_20.png', 'n02/n02_3.png', 'n02/deep/n02_4.png', 'n03/n03_5.png', 'n03/n01_20.png']


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for grey, name in enumerate(NAMES):
        file = tmp_path / 'train' / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('L', (4, 4), grey).save(file)
    return tmp_path


def listed(root: Path, text: str | bytes) -> ListedSubset:
    file = root / 'list.txt'
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ListedSubset(dict(type='ImageFolder', root=root / 'train'), file)


@pytest.fixture
def said(monkeypatch) -> list[str]:
    lines = []
    monkeypatch.setattr('mmairl.data.subsets.print_log', lambda text, **_: lines.append(text))
    return lines


def test_named_images_are_kept_under_the_classes_of_the_whole(root, said):
    data = listed(root, '# SimCLR\n\nn03_5.png\r\n  n02_4.png \nn01/n01_20.png\nn01_1.png\n')
    greys = [int(data[index]['inputs'][0][0, 0, 0]) for index in range(len(data))]
    assert sorted(greys) == [0, 1, 3, 4]
    for index, grey in enumerate(greys):
        label = int(NAMES[grey][2]) - 1
        assert data[index]['data_samples'] == dict(label=label, index=index) and data.labels[index] == label
        assert int(data.raw(index)[0, 0, 0]) == grey
    assert data.classes == ['n01', 'n02', 'n03'] and data.metainfo == dict(classes=data.classes)
    assert data.metric == 'top-1' and data.unreadable_files() == [] and said == []


def test_the_order_of_the_list_and_a_byte_order_mark_do_not_matter(root):
    one, other = listed(root, 'n02_3.png\nn01_1.png'), listed(root, '\ufeffn01_1.png\nn02_3.png')
    assert one.indices.tolist() == other.indices.tolist() and len(one) == 2


def test_classes_without_an_image_stay_and_are_said(root, said):
    data = listed(root, 'n02_3.png\n')
    assert len(data.classes) == 3 and data.labels.tolist() == [1]
    assert len(said) == 1 and said[0].endswith('names no image of 2 of the 3 classes: n01, n03')


def test_an_unreadable_image_gives_way_to_a_listed_one_only(root):
    # n01_20 of n01 follows n01_1 on the disk and is not in the list
    (root / 'train/n01/n01_1.png').write_bytes(b'no picture')
    data = listed(root, 'n01_1.png\nn03_5.png\n')
    item = data[0]
    assert int(item['inputs'][0][0, 0, 0]) == 4 and item['data_samples'] == dict(label=2, index=1)
    assert data.unreadable_files() == [str(root / 'train/n01/n01_1.png')]


def test_a_list_without_any_readable_image_is_one_sentence(root):
    (root / 'train/n01/n01_1.png').write_bytes(b'no picture')
    with pytest.raises(UserError, match='none of the 1 images that ListedSubset keeps can be read'):
        listed(root, 'n01_1.png')[0]


def test_every_wrong_name_is_counted_and_the_first_are_shown(root):
    with pytest.raises(UserError) as caught:
        listed(root, 'a\nb\nc\nd\nn01_20.png\nn01_1.png\nn01_1.png\nn02_3.png\nn02/n02_3.png\nn03_5.png')
    assert '7 of the 10 names in ' in str(caught.value)
    assert '4 absent (a, b, c, ...), 2 doubled (n01_1.png, n02_3.png), 1 in several folders (n01_20.png);' in str(
        caught.value
    )
    with pytest.raises(UserError, match=r'1 of the 1 names .* 1 absent \(n02/n01_1.png\)'):
        listed(root, 'n02/n01_1.png')


@pytest.mark.parametrize('text', ['', '\n  \n', '# only this\n'])
def test_an_empty_list_is_one_sentence(root, text):
    with pytest.raises(UserError, match='list.txt is empty; write one file name a line'):
        listed(root, text)


@pytest.mark.parametrize('text', [b'\x89PNG\r\n', bytes(40), 'n01_1.png'.encode('utf-16')])
def test_a_binary_list_is_one_sentence(root, text):
    with pytest.raises(UserError, match='is not a text file'):
        listed(root, text)


def test_a_missing_list_and_data_without_files_are_one_sentence(root):
    with pytest.raises(UserError, match='there is no list of images at .*gone.txt'):
        ListedSubset(dict(type='ImageFolder', root=root / 'train'), root / 'gone.txt')
    (root / 'list.txt').write_text('n01_1.png')
    with pytest.raises(UserError, match='picks files by name and Digits has none'):
        ListedSubset(dict(type='Digits'), root / 'list.txt')


def test_a_tenth_of_imagenet_is_found_in_seconds():
    files = [f'n{i // 1300:08}/n{i // 1300:08}_{i}.JPEG'.encode() for i in range(1_281_167)]
    names = [file.decode().split('/')[1] for file in files[::10]]
    start = time.perf_counter()
    assert find(names, files, 'list').tolist() == list(range(0, len(files), 10))
    assert time.perf_counter() - start < 20  # seconds; a scan for each name would take hours
