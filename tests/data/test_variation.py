"""Coarser labels on a tree worked by hand, and samples of classes."""

from itertools import pairwise

import pytest
import torch
from mmairl.data.subsets import ClassSubset
from mmairl.data.subsets import Relabelled, ancestors, merge, read_tree

from mmairl.errors import UserError
from mmairl.registry import DATASETS

# entity -> animal -> dog -> (husky, poodle); animal -> cat; entity -> n00021939 -> car -> taxi; n00021939 -> cup
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


@DATASETS.register_module(force=True)
class Leaves(torch.utils.data.Dataset):
    classes, metric = LEAVES, 'top-1'

    def __init__(self) -> None:
        self.labels = torch.arange(10) % 5

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=[torch.full((3, 2, 2), index)], data_samples=dict(label=index % 5, index=index))


@pytest.fixture
def tree(tmp_path):
    file = tmp_path / 'tree.txt'
    file.write_text(TREE)
    return file


@pytest.mark.parametrize(
    'count,expected',
    [
        (5, ['cat', 'cup', 'husky', 'poodle', 'taxi']),
        (4, ['cat', 'cup', 'dog', 'dog', 'car']),
        (3, ['animal', 'n00021939', 'animal', 'animal', 'n00021939']),
        (2, ['animal', 'n00021939', 'animal', 'animal', 'n00021939']),
        (1, ['entity'] * 5),
    ],
)
def test_leaves_are_merged_bottom_up_level_by_level(tree, count, expected):
    assert merge(LEAVES, read_tree(tree), count) == expected


def test_relabelling_changes_labels_and_nothing_else(tree):
    data = Relabelled(dict(type='Leaves'), str(tree), groups='artifact')
    assert data.classes == ['artifact', 'not artifact'] and len(data) == 10
    assert data.labels.tolist() == [1, 0, 1, 1, 0] * 2
    assert data[4]['data_samples'] == dict(label=0, index=4) and data[4]['inputs'][0][0, 0, 0] == 4


def test_wrong_trees_are_one_sentence(tree, tmp_path):
    with pytest.raises(UserError, match='no taxonomy at'):
        read_tree(tmp_path / 'gone')
    with pytest.raises(UserError, match='class zebra is not in the taxonomy'):
        merge([*LEAVES, 'zebra'], read_tree(tree), 3)
    with pytest.raises(UserError, match='in a circle'):
        ancestors('a', {'a': 'b', 'b': 'a'})
    with pytest.raises(UserError, match='2 roots and cannot give 1'):
        merge(['a', 'b'], {'a': 'x', 'b': 'y'}, 1)
    tree.write_text('one two three')
    with pytest.raises(UserError, match="line 1 .* is not 'parent child'"):
        read_tree(tree)
    with pytest.raises(UserError, match='groups'):
        tree.write_text(TREE)
        Relabelled(dict(type='Leaves'), str(tree), groups='many')


def test_a_sample_of_classes_keeps_all_their_images_and_is_nested():
    subsets = [ClassSubset(dict(type='Leaves'), fraction) for fraction in (0.2, 0.4, 0.8, 1.0)]
    for small, large in pairwise(subsets):
        assert set(small.classes) < set(large.classes)
    two = subsets[1]
    assert len(two) == 4 and len(two.classes) == 2
    for index in range(4):
        item = two[index]
        assert LEAVES[int(item['inputs'][0][0, 0, 0]) % 5] == two.classes[item['data_samples']['label']]
        assert item['data_samples']['label'] == two.labels[index]
    other = [ClassSubset(dict(type='Leaves'), 0.4, seed=seed).classes for seed in range(8)]
    assert len({tuple(names) for names in other}) > 1


@pytest.mark.parametrize('fraction', [0.0, 1.5, 0.01])
def test_a_fraction_that_keeps_nothing_is_one_sentence(fraction):
    with pytest.raises(UserError, match='fraction'):
        ClassSubset(dict(type='Leaves'), fraction)
