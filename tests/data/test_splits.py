"""What is held out has the published size, is the seed's alone, and is apart from the rest."""

import pytest
from mmairl.data.published import CIFAR10, CIFAR100
from mmairl.data.published import Birdsnap
from mmairl.data.published import SUN397
from mmairl.data.published import Food101, OxfordIIITPet, StanfordCars

from mmairl.data.splits import HeldOut

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


@pytest.mark.parametrize('kind', PUBLISHED, ids=lambda kind: kind.__name__)
def test_the_held_out_part_has_the_published_size(kind):
    train, val = PUBLISHED[kind]
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


def test_the_test_list_is_whole():
    assert HeldOut(1, of=2).rows('test', 5, seed=0).tolist() == [0, 1, 2, 3, 4]
