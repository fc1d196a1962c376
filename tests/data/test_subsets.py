"""Subsets: sizes equal the published ones, and images and labels equal small examples that were checked by hand."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage
from mmairl.data.subsets import ClassSubset, ListedSubset, LongTailed, NamedClasses, Part, Relabelled
from mmairl.data.training_images import TrainingImages
from mmairl.registry import DATASETS


@DATASETS.register_module(force=True)
class Numbered(ViewDataset):
    """A data set with `counts` images of each class, in mixed order. Each image is one pixel with the image's number."""

    metric = 'mean per class'

    def __init__(self, counts: list[int], views: list | None = None, names: list[str] | None = None) -> None:
        super().__init__(views)
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))]
        self.classes = names or [f'c{label}' for label in range(len(counts))]

    def raw(self, index: int) -> torch.Tensor:
        return torch.full((1, 1, 1), index)


def numbered(*counts: int, **options) -> dict:
    return dict(type='Numbered', counts=list(counts), **options)


def assert_consistent(data, names: list[str]) -> None:
    """Assert that each item has the right image and class. `names` lists the expected class for each original class."""
    for index in range(len(data)):
        item, number = data[index], int(data.indices[index])
        assert int(item['inputs'][0]) == int(data.raw(index)) == number
        assert item['data_samples'] == dict(label=int(data.labels[index]), index=index)
        assert data.classes[data.labels[index]] == names[data.dataset.labels[number]]
    assert data.metainfo == dict(classes=data.classes) and data.metric == data.dataset.metric


@pytest.mark.parametrize('classes,images,total', [(10, 5000, 12_406), (100, 500, 10_847)])
def test_long_tailed_counts_are_the_published_ones(classes, images, total):
    for imbalance in (10, 50, 100):
        counts = torch.bincount(LongTailed(numbered(*[images] * classes), imbalance).labels).tolist()
        power = classes - 1
        for label, count in enumerate(counts):
            # Check count <= images * imbalance^(-label / (classes - 1)) < count + 1 in integers.
            assert count**power * imbalance**label <= images**power < (count + 1) ** power * imbalance**label
        assert counts[0] == images and counts[-1] == images // imbalance
    assert sum(counts) == total


def test_smaller_imbalance_has_a_superset():
    assert_consistent(LongTailed(numbered(40, 40, 40), 10), ['c0', 'c1', 'c2'])
    few, more, everything = (set(LongTailed(numbered(*[60] * 4), by).indices.tolist()) for by in (30, 5, 1))
    assert few < more < everything == set(range(240))
    draws = [LongTailed(numbered(*[60] * 4), 30, seed).indices.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]
    assert len(LongTailed(numbered(6), 50)) == 6
    assert torch.bincount(LongTailed(numbered(100, 31, 10), 10).labels).tolist() == [100, 31, 10]


def test_class_subsets_are_nested():
    whole = numbered(2, 3, 4, 5, 6)
    subsets = [ClassSubset(whole, fraction) for fraction in (0.2, 0.4, 0.8, 1.0)]
    for small, large in pairwise(subsets):
        assert set(small.classes) < set(large.classes)
    for data in subsets:
        assert_consistent(data, ['c0', 'c1', 'c2', 'c3', 'c4'])
        assert torch.bincount(data.labels).tolist() == [int(name[1]) + 2 for name in data.classes]
    assert len({tuple(ClassSubset(whole, 0.4, seed=seed).classes) for seed in range(8)}) > 1


def test_both_parts_make_up_the_set():
    fit, held = (Part(numbered(10, 20, 2), held) for held in (False, True))
    assert torch.bincount(held.labels).tolist() == [2, 4, 1] and torch.bincount(fit.labels).tolist() == [8, 16, 1]
    assert sorted([*fit.indices.tolist(), *held.indices.tolist()]) == list(range(32))


# ---- Lists of images

NAMES = ['n01/n01_1.png', 'n01/n01_20.png', 'n02/n02_3.png', 'n02/deep/n02_4.png', 'n03/n03_5.png', 'n03/n01_20.png']


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for gray, name in enumerate(NAMES):
        file = tmp_path / 'train' / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('L', (4, 4), gray).save(file)
    return tmp_path


def listed(root: Path, text: str | bytes) -> ListedSubset:
    (root / 'list.txt').write_bytes(text if isinstance(text, bytes) else text.encode())
    return ListedSubset(dict(type='ImageFolder', root=root / 'train'), root / 'list.txt')


def named(root: Path, text: str) -> NamedClasses:
    (root / 'names.txt').write_text(text)
    return NamedClasses(numbered(2, 3, 4, 5), root / 'names.txt')


def test_named_classes_keep_all_their_images(tmp_path):
    data = named(tmp_path, 'c3\n\nc0 \nc3\n')
    assert data.classes == ['c0', 'c3'] and torch.bincount(data.labels).tolist() == [2, 5]
    assert_consistent(data, ['c0', 'c1', 'c2', 'c3'])


def test_listed_images_keep_their_classes(root):
    data = listed(root, '\ufeff# SimCLR\n\nn03_5.png\r\n  n02_4.png \nn01/n01_20.png\nn01_1.png\n')
    grays = [int(data[index]['inputs'][0][0, 0, 0]) for index in range(len(data))]
    assert grays == [0, 1, 3, 4] == [int(data.raw(index)[0, 0, 0]) for index in range(4)]
    assert data.labels.tolist() == [0, 0, 1, 2] and data.classes == ['n01', 'n02', 'n03']
    assert data.name(3) == str(root / 'train/n03/n03_5.png')


def test_unreadable_image_is_replaced_by_a_listed_one(root):
    # In the folder, n01/n01_20 comes next, but it is not in the list.
    (root / 'train/n01/n01_1.png').write_bytes(b'no picture')
    data = listed(root, 'n01_1.png\nn03_5.png\n')
    item = TrainingImages(data)[0]
    assert int(item['inputs'][0][0, 0, 0]) == 4 and item['data_samples'] == dict(label=2, index=1)
    with pytest.raises(UnreadableImage, match='n01_1.png is not recognized'):
        data[0]


# ---- Coarser labels

# The tree is: entity -> animal -> dog -> (husky, poodle); animal -> cat; entity -> n00021939 -> car
# -> taxi; n00021939 -> cup.
TREE = """
entity animal
entity n00021939
animal dog
animal cat
dog husky
dog poodle
n00021939 car
n00021939 cup
car taxi
"""
LEAVES = ['cat', 'cup', 'husky', 'poodle', 'taxi']


def relabelled(root: Path, groups: int | str, tree: str = TREE, names: list[str] = LEAVES) -> Relabelled:
    (root / 'tree.txt').write_text(tree)
    return Relabelled(numbered(*range(1, 1 + len(names)), names=names), str(root / 'tree.txt'), groups)


def with_labels(root: Path, lines: str) -> Relabelled:
    (root / 'labels.txt').write_text(lines)
    return Relabelled(numbered(1, 2, 3, names=['cat', 'cup', 'husky']), labels=str(root / 'labels.txt'))


def test_leaves_are_merged_level_by_level(tmp_path):
    for groups, names in {
        5: ['cat', 'cup', 'husky', 'poodle', 'taxi'],
        4: ['cat', 'cup', 'dog', 'dog', 'car'],
        2: ['animal', 'n00021939', 'animal', 'animal', 'n00021939'],
        1: ['entity'] * 5,
        'artifact': ['not artifact', 'artifact', 'not artifact', 'not artifact', 'artifact'],
    }.items():
        data = relabelled(tmp_path, groups)
        assert data.classes == sorted(set(names)) and data.indices.tolist() == list(range(15))
        assert_consistent(data, names)


# ---- Errors

ERRORS = [
    ('bad-imbalance', lambda _: LongTailed(numbered(100, 30, 100), 10)),
    ('bad-imbalance', lambda _: LongTailed(numbered(20, 20), 50)),
    ('bad-imbalance', lambda _: LongTailed(numbered(100, 0, 10), 10)),
    ('bad-fraction', lambda _: ClassSubset(numbered(2, 3), 1.5)),
    ('bad-fraction', lambda _: ClassSubset(numbered(2, 3), 0.01)),
    ('class-of-one', lambda _: Part(numbered(10, 1), held=True)),
    ('unknown-class', lambda root: named(root, 'n1\nc2\nn5\n')),
    ('empty-list', lambda root: named(root, '\n \n# only this\n')),
    ('no-level-of-groups', lambda root: relabelled(root, 3)),
    ('no-level-of-groups', lambda root: relabelled(root, 1, 'x a\ny b', ['a', 'b'])),
    ('class-not-in-tree', lambda root: relabelled(root, 3, names=[*LEAVES, 'zebra'])),
    ('cyclic-taxonomy', lambda root: relabelled(root, 3, 'a b\nb a', ['a'])),
    ('bad-taxonomy', lambda root: relabelled(root, 3, 'one two three')),
    ('labels-or-taxonomy', lambda _: Relabelled(numbered(1, 2))),
    ('labels-or-taxonomy', lambda _: Relabelled(numbered(1, 2), taxonomy='tree.txt')),
    ('labels-or-taxonomy', lambda _: Relabelled(numbered(1, 2), labels='labels.txt', groups=2)),
    ('class-without-group', lambda root: with_labels(root, 'cat 1\ncup 0\n')),
    ('class-in-two-groups', lambda root: with_labels(root, 'cat 1\ncup 0\nhusky 1\ncat 0\n')),
    ('bad-labels', lambda root: with_labels(root, 'cat\n')),
    ('not-text', lambda root: listed(root, b'\x89PNG\r\n')),
]


@pytest.mark.parametrize('code, build', ERRORS)
def test_unusable_subset_raises(root, code, build):
    with raises_code(code):
        build(root)


def test_names_without_one_image_are_counted(root):
    with raises_code('unmatched-names', match='4 of 5 names .*the first: gone.png'):
        listed(root, 'gone.png\nn01_20.png\nn02_3.png\nn02/n02_3.png\nn01_1.png\n')


def test_labels_replace_a_taxonomy(tmp_path):
    for lines in ('cat 1\ncup 0\nhusky 1\n', 'cat/0.JPEG 1\ncup/1.JPEG 0\ncat/2.JPEG 1\nhusky/7.JPEG 1\n'):
        merged = with_labels(tmp_path, lines)
        assert merged.classes == ['0', '1'] and len(merged) == 6
        assert sorted(map(int, merged.labels)) == [0, 0, 1, 1, 1, 1]
