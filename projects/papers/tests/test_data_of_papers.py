"""Long tails, taxonomies and the release's color jitter, checked against published counts and formulas."""

import pytest
import torch
import torchvision.transforms.v2.functional as F
from harness.errors import raises_code

from mmairl.data.datasets import ViewDataset
from mmairl.registry import DATASETS
from projects.papers.long_tail import LongTailed
from projects.papers.release_jitter import ReleaseColorJitter
from projects.papers.taxonomies import Relabelled


@DATASETS.register_module(force=True)
class Counted(ViewDataset):
    """A data set with `counts` images of each class."""

    def __init__(self, counts: list[int], names: list[str] | None = None) -> None:
        super().__init__(None)
        self.labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        self.classes = names or [f'c{label}' for label in range(len(counts))]


def counted(*counts: int, **more) -> dict:
    return dict(type='Counted', counts=list(counts), **more)


@pytest.mark.parametrize(('classes', 'images', 'total'), [(10, 5000, 12_406), (100, 500, 10_847)])
def test_long_tailed_counts_are_published(classes, images, total):
    for imbalance in (10, 50, 100):
        counts = torch.bincount(LongTailed(counted(*[images] * classes), imbalance).labels).tolist()
        power = classes - 1
        for label, count in enumerate(counts):
            # Check count <= images * imbalance^(-label / (classes - 1)) < count + 1 in integers.
            goal = images**power
            assert count**power * imbalance**label <= goal < (count + 1) ** power * imbalance**label
    assert sum(counts) == total


def test_smaller_imbalance_has_a_superset():
    few, more = (set(LongTailed(counted(*[60] * 4), by).indices.tolist()) for by in (30, 5))
    assert few < more
    with raises_code('bad-imbalance'):
        LongTailed(counted(20, 20), 50)


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
MERGED = {
    5: ['cat', 'cup', 'husky', 'poodle', 'taxi'],
    4: ['cat', 'cup', 'dog', 'dog', 'car'],
    2: ['animal', 'n00021939', 'animal', 'animal', 'n00021939'],
    'artifact': ['not artifact', 'artifact', 'not artifact', 'not artifact', 'artifact'],
}


@pytest.mark.parametrize('groups', MERGED)
def test_leaves_are_merged_level_by_level(tmp_path, groups):
    (tmp_path / 'tree.txt').write_text(TREE)
    data = Relabelled(counted(1, 2, 3, 4, 5, names=MERGED[5]), str(tmp_path / 'tree.txt'), groups)
    classes = [data.classes[label] for label in data.labels]
    assert classes == [MERGED[groups][label] for label in data.dataset.labels]


LABELS = {
    '': 'cat 1\ncup 0\nhusky 1\n',
    'class-without-group': 'cat 1\ncup 0\n',
    'class-in-two-groups': 'cat 1\ncup 0\nhusky 1\ncat 0\n',
}


@pytest.mark.parametrize('code', LABELS)
def test_labels_replace_a_taxonomy(tmp_path, code):
    (tmp_path / 'labels.txt').write_text(LABELS[code])
    data = counted(1, 2, 3, names=['cat', 'cup', 'husky'])
    if code:
        with raises_code(code):
            Relabelled(data, labels=str(tmp_path / 'labels.txt'))
        return
    merged = Relabelled(data, labels=str(tmp_path / 'labels.txt'))
    assert merged.classes == ['0', '1']
    assert merged.labels.tolist() == [1, 0, 0, 1, 1, 1]


def test_release_jitter_equals_its_formulas():
    torch.manual_seed(0)
    images = torch.rand(6, 3, 5, 4)
    jitter = ReleaseColorJitter(1.0, 0.4, 0.4, 0.2, 0.1)
    params = jitter.draw(6, 5, 4)
    assert params['amounts'][:, 0].min() < 0
    changed = jitter.apply(images, params)
    for image, result, amounts, order in zip(images, changed, *params.values()):
        for number in order.tolist():
            image = release_change(image, number, amounts[number].item())
        torch.testing.assert_close(result, image, atol=1e-5, rtol=0)


def release_change(image: torch.Tensor, number: int, amount: float) -> torch.Tensor:
    mean = image.mean((1, 2), keepdim=True)
    changes = (
        lambda: image + amount,
        lambda: amount * (image - mean) + mean,
        lambda: F.adjust_saturation(image, amount),
        lambda: F.adjust_hue(image, amount),
    )
    return changes[number]().clamp(0, 1)
