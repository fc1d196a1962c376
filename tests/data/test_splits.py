"""Hold-outs, groups and subsets, checked by hand on small examples."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.datasets import ViewDataset
from mmairl.data.sampler import TrainingImages
from mmairl.data.splits import Part, Subset, groups_of, refuse_shared, split_by_class
from mmairl.registry import DATASETS


@DATASETS.register_module(force=True)
class Numbered(ViewDataset):
    """A data set with `counts` images of each class, in mixed order. Each image is its number."""

    metric = 'mean per class'

    def __init__(self, counts: list[int], views: list | None = None) -> None:
        super().__init__(views)
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.labels = labels[
            torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))
        ]
        self.classes = [f'c{label}' for label in range(len(counts))]

    def raw(self, index: int) -> torch.Tensor:
        return torch.full((1, 1, 1), index)


def numbered(*counts: int) -> dict:
    return dict(type='Numbered', counts=list(counts))


def assert_consistent(data) -> None:
    """Assert that each item has the right image and class."""
    for index in range(len(data)):
        item = data[index]
        number = int(data.indices[index])
        assert int(item['inputs'][0]) == int(data.raw(index)) == number
        assert item['data_samples'] == dict(label=int(data.labels[index]), index=index)
        assert data.classes[data.labels[index]] == f'c{int(data.dataset.labels[number])}'
    assert data.metric == 'mean per class'


def test_both_parts_make_up_the_set():
    fit, held = (Part(numbered(10, 20, 2), held) for held in (False, True))
    assert_consistent(held)
    assert torch.bincount(held.labels).tolist() == [2, 3, 1]
    assert torch.bincount(fit.labels).tolist() == [8, 17, 1]
    assert sorted([*fit.indices.tolist(), *held.indices.tolist()]) == list(range(32))
    again = Part(numbered(10, 20, 2), True)
    other = Part(numbered(10, 20, 2), True, seed=1)
    assert torch.equal(again.indices, held.indices)
    assert not torch.equal(other.indices, held.indices)
    per_class = Part(numbered(10, 20, 4), True, fraction=3)
    assert torch.bincount(per_class.labels).tolist() == [3, 3, 3]


@pytest.mark.parametrize('fraction', [0.01, 0.137, 0.5, 0.9])
def test_total_is_exact_and_classes_are_proportional(fraction):
    sizes = torch.tensor([40, 7, 100, 13, 2])
    labels = torch.arange(5).repeat_interleave(sizes)
    _, held = split_by_class(labels, 3, fraction)
    counts = torch.bincount(labels[held], minlength=5)
    assert len(held) == max(round(fraction * 162), 5)
    assert set(held.tolist()) < set(split_by_class(labels, 3, 0.95)[1].tolist())
    assert (counts >= 1).all()
    assert (counts < sizes).all()
    assert ((counts - fraction * sizes).abs() <= 1).all()


def test_several_labels_are_split_as_a_whole():
    fit, held = split_by_class(torch.zeros(50, 3), fraction=0.3)
    assert len(held) == 15
    assert sorted([*fit.tolist(), *held.tolist()]) == list(range(50))


def test_groups_stay_on_one_side():
    labels = torch.arange(60) % 2
    groups = [f'p{number // 6}' for number in range(60)]
    fit, held = split_by_class(labels, groups=groups)
    sides = [{groups[index] for index in side.tolist()} for side in (fit, held)]
    assert len(held) == 12
    assert not sides[0] & sides[1]


def test_groups_come_from_a_pattern_or_a_table(tmp_path):
    names = ['p07/a.png', 'p08/b.png']
    (tmp_path / 'groups.csv').write_text('file,sex,patient\np08/b.png,f,8\np07/a.png,m,7\n')
    assert groups_of(names, r'p\d+') == ['p07', 'p08']
    assert groups_of(names, r'p0(\d)/') == [
        '7',
        '8',
    ]
    assert groups_of(names, dict(csv=str(tmp_path / 'groups.csv'), column='patient')) == ['7', '8']
    assert groups_of(names, dict(csv=str(tmp_path / 'groups.csv'))) == ['m', 'f']


def test_random_classes_are_nested():
    subsets = [Subset(numbered(2, 3, 4, 5, 6), classes=share) for share in (0.2, 0.4, 0.8, 1.0)]
    for small, large in pairwise(subsets):
        assert set(small.classes) < set(large.classes)
    for data in subsets:
        assert_consistent(data)
        assert torch.bincount(data.labels).tolist() == [int(name[1]) + 2 for name in data.classes]
    assert (
        len(
            {
                tuple(Subset(numbered(2, 3, 4, 5, 6), classes=0.4, seed=seed).classes)
                for seed in range(8)
            }
        )
        > 1
    )


def test_random_images_are_nested_and_of_all_classes():
    few, many = (Subset(numbered(20, 40), fraction=share) for share in (0.1, 0.5))
    assert torch.bincount(few.labels).tolist() == [2, 4]
    assert set(few.indices.tolist()) < set(many.indices.tolist())
    assert_consistent(few)


NAMES = ['n01/n01_1.png', 'n01/n01_20.png', 'n02/n02_3.png', 'n02/deep/n02_4.png', 'n03/n03_5.png']


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for gray, name in enumerate(NAMES):
        file = tmp_path / 'train' / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('L', (4, 4), gray).save(file)
    return tmp_path


def listed(root: Path, text: str, key: str = 'files') -> Subset:
    (root / 'list.txt').write_text(text)
    return Subset(dict(type='ImageFolder', root=root / 'train'), **{key: root / 'list.txt'})


def test_listed_images_and_classes_are_selected(root):
    data = listed(root, '\ufeff# SimCLR\n\nn03_5.png\r\n  n02_4.JPEG \nn01/n01_20.png\n')
    assert [int(data.raw(index)[0, 0, 0]) for index in range(3)] == [1, 3, 4]
    assert data.labels.tolist() == [0, 1, 2]
    assert data.name(2) == str(root / 'train/n03/n03_5.png')
    data = listed(root, 'n03\n\nn01 \n', 'classes')
    assert data.classes == ['n01', 'n03']
    assert data.labels.tolist() == [0, 0, 1]


def test_unreadable_image_is_replaced_within_the_subset(root):
    data = listed(root, 'n01_1.png\nn03_5.png\n')
    (root / 'train/n01/n01_1.png').write_bytes(b'no picture')
    assert int(TrainingImages(data)[0]['inputs'][0][0, 0, 0]) == 4


def test_subset_has_its_own_fingerprint(root):
    some = listed(root, 'n01_1.png\n')
    other = listed(root, 'n02_3.png\n')
    assert some.fingerprint() != other.fingerprint() == listed(root, 'n02_3.png\n').fingerprint()


ERRORS = {
    'class-of-one': lambda _: Part(numbered(10, 1), held=True),
    'few-groups': lambda _: split_by_class(torch.tensor([0, 1, 1]), groups=['a', 'b', 'b']),
    'unknown-name': lambda root: listed(root, 'gone.png\n'),
    'bad-list': lambda root: Subset(numbered(2, 3), files=root / 'nothing.txt'),
    'bad-groups': lambda _: groups_of(['a'], '('),
    'no-group': lambda _: groups_of(['a'], 'b'),
    'shared-groups': lambda _: refuse_shared(dict(train=['a', 'b'], test=['b'])),
}


@pytest.mark.parametrize('code', ERRORS)
def test_wrong_split_or_subset_raises(root, code):
    with raises_code(code):
        ERRORS[code](root)
