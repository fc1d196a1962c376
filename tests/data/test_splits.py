"""Splits by class and by group, tables that list images, and images that look alike."""

from io import BytesIO

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import Reason, UnreadableImage, decode_bytes
from mmairl.data.shapes import Shapes
from mmairl.data.splits import (
    groups_of,
    image_names,
    look_alikes,
    read_column,
    refuse_shared,
    split_by_class,
    split_conflicts,
    values_of,
)
from mmairl.data.subsets import Part


def patient_of(name: str) -> str:
    return name[:2]


def test_groups_stay_whole_and_classes_keep_fractions():
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (2000,), generator=generator)
    groups = np.array([f'p{number}' for number in torch.randint(0, 60, (2000,), generator=generator).tolist()])
    for seed in range(5):
        fit, held = split_by_class(y, seed, groups=groups)
        assert sorted([*fit.tolist(), *held.tolist()]) == list(range(2000))
        assert not set(groups[fit]) & set(groups[held])
        assert all(0.15 < (y[held] == label).sum() / (y == label).sum() < 0.25 for label in range(4))
        assert torch.equal(held, split_by_class(y, seed, groups=groups)[1])
    several = torch.nn.functional.one_hot(y)
    fit, held = split_by_class(several, groups=groups)
    assert not set(groups[fit]) & set(groups[held]) and 0.15 < len(held) / 2000 < 0.25


def test_each_class_has_groups_on_both_sides():
    # A fifth of each class is to be held out, and each group has more than a fifth of each class.
    y, groups = torch.tensor([0, 0, 0, 0, 1, 1]), ['a', 'a', 'a', 'b', 'a', 'b']
    fit, held = split_by_class(y, groups=groups)
    assert held.tolist() == [3, 5] and fit.tolist() == [0, 1, 2, 4]
    # In `three`, both parts have both classes if b alone is held out, but not if a or c alone is held out.
    a, b, c = [0], [0] * 20 + [1] * 3, [1] * 40
    three = torch.tensor(a + b + c), ['a'] * len(a) + ['b'] * len(b) + ['c'] * len(c)
    p, r = [0] + [1] * 5, [1] * 50
    both = torch.tensor(p + p + r + r), ['p'] * 6 + ['q'] * 6 + ['r'] * 50 + ['s'] * 50
    for labels, named in (three, both):
        for seed in range(3):
            for part in split_by_class(labels, seed, groups=named):
                assert set(labels[part].tolist()) == {0, 1}
    with raises_code('few-groups', match='class 1: its training images are in 1 groups'):
        split_by_class(y, groups=['a', 'a', 'b', 'b', 'c', 'c'])


def test_groups_come_from_names_a_table_or_a_function(tmp_path):
    names, table = ['p1/a.png', 'p2/b.png'], tmp_path / 'a.csv'
    table.write_text('file,patient\na.png,one\np2/b.png,two\n')
    assert groups_of(names, r'p\d') == groups_of(names, r'(p\d)/') == groups_of(names, patient_of) == ['p1', 'p2']
    assert groups_of(names, dict(function=f'{__name__}.patient_of')) == ['p1', 'p2']
    assert groups_of(names, dict(csv=table, column='patient')) == ['one', 'two'] == list(read_column(table).values())
    # Spreadsheets with a German locale write this format.
    table.write_text('file;patient;age\na.png;one;3,5\np2/b.png;two;4\n')
    assert groups_of(names, dict(csv=table, column='patient')) == ['one', 'two']
    table.write_text('file,file\na.png,one\n')
    assert read_column(table) == read_column(table, 'file') == {'a.png': 'one'}
    functions = (dict(function='no.where'), 'no-function'), (dict(function='no-where'), 'no-function')
    for groups, code in (('[', 'bad-pattern'), *functions, ({'cvs': 1}, 'no-table')):
        with raises_code(code):
            groups_of(names, groups)
    for groups in (r'p1', dict(csv=table, column='file')):
        with raises_code('no-group', match='the first: p'):
            groups_of(['p1/a.png', 'p3/c.png'], groups)


@pytest.mark.parametrize(
    'text, code',
    [
        (b'file,patient\na.png,1\na.png,2\n', 'two-values'),
        (b'file,patients\na.png,1\n', 'no-column'),
        (b'file\na.png\n', 'one-column'),
        (b'a.png,1\nb.png,2\n', 'no-header'),
        (b'file,patient\na.png,"1\nb.png,2\n', 'not-csv'),
        ('file,patient\na.png,J\xfcrgen\n'.encode('latin1'), 'not-text'),
    ],
)
def test_unusable_table_raises(tmp_path, text, code):
    (tmp_path / 'a.csv').write_bytes(text)
    with raises_code(code):
        read_column(tmp_path / 'a.csv', 'patient')


SPELLINGS = ['Ä b/1.png', 'a\u0308 B/1.PNG', 'Ä b\\1.png', 'C:\\data\\Cells\\Ä b\\1.png', '/mnt/cells/Ä b/1.png']
SPELLINGS += ['Ä b/1', './1']


def test_table_names_images_in_any_spelling(tmp_path):
    names = ['Ä b/1.png', 'Ä b/2.png', 'c/2.png']
    for spelling in SPELLINGS:
        assert values_of(names, {spelling: 'x'}, 'a.csv', 'Cells') == ({names[0]: 'x'}, [])
    assert values_of(names, {'2.png': 'x', 'd/1.png': 'x'}, 'a.csv', 'Cells') == ({}, ['2.png', 'd/1.png'])
    with raises_code('two-values', match='Ä b/1.png'):
        values_of(names, {names[0]: 'x', '1': 'y'}, 'a.csv')
    # pandas and R write a first column of row numbers like this one.
    (table := tmp_path / 'a.csv').write_text('"",file,kind\n0,1.png,"a, b"\n\n,,\n')
    assert read_column(table, 'kind') == {'1.png': 'a, b', '': ''}
    table.write_bytes('file,class\r\na\u2028.png,x\r\nb\x0c.png,"y\nz"\r\n'.encode())
    assert read_column(table) == {'a\u2028.png': 'x', 'b\x0c.png': 'y\nz'}


def test_held_out_part_of_a_folder_has_other_groups(tmp_path):
    for number in range(24):
        folder = tmp_path / 'ab'[number % 2]
        folder.mkdir(exist_ok=True)
        Image.new('RGB', (8, 8), (number, 0, 0)).save(folder / f'p{number // 4}_{number}.png')
    how = dict(dataset=dict(type='ImageFolder', root=str(tmp_path)), groups=r'(p\d)_')
    fit, held = (image_names(Part(held=held, **how)) for held in (False, True))
    parts = {'training': groups_of(fit, how['groups']), 'test': groups_of(held, how['groups'])}
    assert len(fit) + len(held) == 24 and fit[0].startswith('a/p')
    refuse_shared(parts)
    with raises_code('shared-groups', match="the first: 'p.' with 4 training and 1 test images"):
        refuse_shared({**parts, 'test': [*parts['test'], parts['training'][0]]})


def test_copies_look_alike_and_other_images_do_not():
    train, test = Shapes(count=60, seed=1), Shapes(count=30, seed=2)
    copies = Memory([train.raw(index) for index in range(10)] + [test.raw(index) for index in range(30)])
    copies.images[3] = decode_bytes(as_jpeg(copies.images[3]))
    assert look_alikes(train, copies) == {index: index for index in range(10)} and not look_alikes(train, test)
    # None stands for an image that cannot be read.
    copies.images[0] = None
    assert look_alikes(train, copies) == {index: index for index in range(1, 10)}


class Memory(ViewDataset):
    def __init__(self, images: list) -> None:
        super().__init__(None)
        self.images, self.labels, self.classes = images, torch.arange(len(images)) % 2, ['a', 'b']

    def raw(self, index: int) -> torch.Tensor:
        if self.images[index] is None:
            raise UnreadableImage(Reason.BROKEN)
        return self.images[index]


def as_jpeg(image: torch.Tensor) -> bytes:
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer := BytesIO(), 'JPEG', quality=70)
    return buffer.getvalue()


def pattern(number: int, channels: int = 1) -> torch.Tensor:
    """Return smooth random values around a gray of 110."""
    values = 80 * torch.rand(1, channels, 8, 8, generator=torch.Generator().manual_seed(number)) + 70
    return torch.nn.functional.interpolate(values, (64, 64), mode='bilinear')[0]


def drawing(number: int, color: int) -> torch.Tensor:
    """Return a pattern in one of three colors, all with the same mean over channels."""
    tint = torch.full((3, 1, 1), -30.0)
    tint[color] = 60
    return (pattern(number) + tint).byte()


def test_drawings_in_another_color_do_not_look_alike():
    train = Memory([drawing(number, color) for number in range(30) for color in (0, 1)])
    test = Memory([drawing(number, 2) for number in range(30)])
    assert look_alikes(train, test) == {}
    grays = [
        Memory([image.float().mean(0, keepdim=True).round().byte() for image in part.images]) for part in (train, test)
    ]
    assert len(look_alikes(*grays)) == 30


def test_copy_is_found_among_other_colors():
    train = Memory([drawing(number, color) for number in range(30) for color in (0, 1, 2)])
    test = Memory([decode_bytes(as_jpeg(drawing(number, 2))) for number in range(30)])
    assert look_alikes(train, test) == {number: 3 * number + 2 for number in range(30)}


@pytest.mark.parametrize('channels', [1, 2, 5])
def test_copies_of_any_number_of_channels_look_alike(channels):
    images = [pattern(number, channels).byte() for number in range(30)]
    halves = [torch.nn.functional.avg_pool2d(image.float(), 2).byte() for image in images[:10]]
    assert look_alikes(Memory(images), Memory(halves)) == {number: number for number in range(10)}
    assert look_alikes(Memory(images[10:]), Memory(halves)) == {}


def test_gray_and_color_files_of_one_set_are_compared():
    gray = pattern(11).byte()
    train = Memory([*(drawing(number, 0) for number in range(10)), gray])
    assert look_alikes(train, Memory([gray.expand(3, -1, -1), drawing(3, 0)])) == {0: 10, 1: 3}


@pytest.mark.parametrize('kind', ['classes', 'several'])
def test_look_alikes_of_other_labels_are_conflicts(kind):
    train, test = torch.tensor([0, 1, 2]), torch.tensor([0, 2])
    if kind == 'several':
        train, test = torch.eye(3)[train], torch.eye(3)[test]
    assert split_conflicts({0: 0, 1: 1}, train, test) == ({0: 0}, {1: 1})
