"""The exponential profile by its closed form, and which images fill it."""

import pytest
import torch
from mmairl.data.subsets import LongTailed

from mmairl.data.views import ViewDataset
from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module(force=True)
class Numbered(ViewDataset):
    """`counts` images of each class, in mixed order; an image's pixels are its number."""

    metric = 'mean per class'

    def __init__(self, counts: list[int], views: list | None = None) -> None:
        super().__init__(views)
        labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(7))]
        self.classes = [f'c{label}' for label in range(len(counts))]

    def raw(self, index: int) -> torch.Tensor:
        return torch.full((1, 1, 1), index)

    def unreadable_files(self) -> list[str]:
        return ['broken.png']


def numbered(*counts: int) -> dict:
    return dict(type='Numbered', counts=list(counts))


@pytest.mark.parametrize('classes,images', [(10, 5000), (100, 500)])
@pytest.mark.parametrize('imbalance', [10, 50, 100])
def test_counts_are_the_closed_form(classes, images, imbalance):
    data = LongTailed(numbered(*[images] * classes), imbalance)
    counts = torch.bincount(data.labels).tolist()
    power = classes - 1
    for label, count in enumerate(counts):
        # count <= images * imbalance^(-label / power) < count + 1, in whole numbers
        assert count**power * imbalance**label <= images**power < (count + 1) ** power * imbalance**label
    assert counts[0] == images and counts[-1] == images // imbalance
    assert len(data) == len(data.indices.unique()) == sum(counts)


def test_the_sizes_are_those_the_field_knows():
    assert len(LongTailed(numbered(*[5000] * 10), 100)) == 12_406  # CIFAR-10-LT
    assert len(LongTailed(numbered(*[500] * 100), 100)) == 10_847  # CIFAR-100-LT


def test_no_imbalance_keeps_everything_and_a_single_class_stays():
    assert LongTailed(numbered(6, 6, 6), 1).indices.tolist() == list(range(18))
    assert len(LongTailed(numbered(6), 50)) == 6


def test_images_keep_their_labels_and_are_counted_anew():
    inner = DATASETS.build(numbered(40, 40, 40))
    data = LongTailed(numbered(40, 40, 40), 10)
    for index in range(len(data)):
        number = int(data.raw(index))
        label = int(inner.labels[number])
        assert int(data[index]['inputs'][0]) == number and data.labels[index] == label
        assert data[index]['data_samples'] == dict(label=label, index=index)
    assert data.classes == ['c0', 'c1', 'c2'] and data.metainfo == dict(classes=data.classes)
    assert data.metric == 'mean per class' and data.unreadable_files() == ['broken.png']


def test_a_smaller_imbalance_keeps_a_superset_and_a_seed_draws_its_own():
    few, more, all_of_them = (
        set(LongTailed(numbered(*[60] * 4), imbalance).indices.tolist()) for imbalance in (30, 5, 1)
    )
    assert few < more < all_of_them
    draws = [LongTailed(numbered(*[60] * 4), 30, seed).indices.tolist() for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_what_cannot_be_filled_is_one_sentence():
    assert torch.bincount(LongTailed(numbered(100, 31, 10), 10).labels).tolist() == [100, 31, 10]
    with pytest.raises(UserError, match='class c1 has 30 images and LongTailed.imbalance=10 wants 31'):
        LongTailed(numbered(100, 30, 100), 10)
    with pytest.raises(UserError, match='class c1 has 20 images and LongTailed.imbalance=50 wants 0'):
        LongTailed(numbered(20, 20), 50)
    for imbalance in (0, 0.5, -3, float('inf'), float('nan')):
        with pytest.raises(UserError, match='set 1 or more'):
            LongTailed(numbered(9, 9), imbalance)
