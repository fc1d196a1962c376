"""Public data sets: labels, splits and the sizes of the published hold-outs."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.config import Config
from PIL import Image
from torchvision import datasets

from mmairl.data.public import PublicImages, TorchvisionArrays
from mmairl.data.splits import split_by_class
from mmairl.registry import DATASETS

CONFIGS = Path(__file__).parents[2] / 'configs' / 'evaluation'
VOC = """<annotation>
<object><name>cat</name><difficult>0</difficult></object>
<object><name>dog</name><difficult>1</difficult></object>
<object><name>cat</name><difficult>1</difficult></object>
</annotation>"""


def image(path: Path, gray: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', (8, 8), (gray,) * 3).save(path, 'PNG')


def test_list_of_files_and_labels_is_read(tmp_path):
    for number in range(3):
        image(tmp_path / 'photos' / f'a {number}.jpg', number)
    (tmp_path / 'train.txt').write_text('a 2.jpg 1\na 0.jpg 0\n')
    source = dict(
        type='CustomDataset', data_root=str(tmp_path), data_prefix='photos', ann_file='train.txt'
    )
    data = PublicImages(source, metric='mean per class')
    assert data.labels.tolist() == [1, 0]
    assert data.member(0) == 'photos/a 2.jpg'
    assert data.raw(0)[0, 0, 0] == 2
    assert data.metric == 'mean per class'


def test_voc_marks_difficult_objects(tmp_path):
    for number, part in enumerate(('train', 'val')):
        image(tmp_path / 'JPEGImages' / f'{part}1.jpg', number)
        for folder in ('ImageSets/Main', 'Annotations'):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / 'ImageSets/Main' / f'{part}.txt').write_text(f'{part}1\n')
        (tmp_path / 'Annotations' / f'{part}1.xml').write_text(VOC)
    data = PublicImages(dict(type='VOC', data_root=str(tmp_path)), split='train+val')
    assert len(data) == 2
    assert data.raw(1)[0, 0, 0] == 1
    labels = dict(zip(data.classes, data.labels[0].tolist()))
    assert labels['cat'] == 1
    assert labels['dog'] == -1
    assert sum(map(abs, labels.values())) == 2


def test_arrays_of_torchvision_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.CIFAR10, '_check_integrity', lambda _: True)
    monkeypatch.setattr(datasets.cifar, 'check_integrity', lambda *_: True)
    folder = tmp_path / 'cifar-10-batches-py'
    folder.mkdir()
    pixels = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    for name, _ in [*datasets.CIFAR10.train_list, *datasets.CIFAR10.test_list]:
        (folder / name).write_bytes(pickle.dumps(dict(data=pixels, labels=[3, 9])))
    (folder / 'batches.meta').write_bytes(pickle.dumps(dict(label_names=list('abcdefghij'))))
    train, test = (TorchvisionArrays('CIFAR10', tmp_path, split) for split in ('train', 'test'))
    assert len(train) == 10
    assert len(test) == 2
    assert test.classes[3] == 'd'
    assert test.labels.tolist() == [3, 9]
    assert torch.equal(test.raw(1), torch.from_numpy(pixels[1].reshape(3, 32, 32)))


def test_missing_files_are_an_error(tmp_path):
    with raises_code('unreadable-set'):
        TorchvisionArrays('CIFAR10', tmp_path)
    with raises_code('unreadable-set'):
        PublicImages(dict(type='Food101', data_root=str(tmp_path)), split='train')


# Images per class (or the number of classes and of images), and the published size of the held-out part.
HELD = {
    'food101': ([750] * 101, 7_575),
    'stanford_cars': ([41] * 108 + [42] * 88 + [20], 1_650),
    'oxford_iiit_pet': ([100] * 36 + [80], 740),
    'sun397': ([50] * 397, 3_970),
    'birdsnap': ([95] * 386 + [94] * 114, 4_981),
    'caltech101': ([30] * 102, 510),
    'cifar10': ([5000] * 10, 5_000),
    'cifar100': ([500] * 100, 5_067),
}


@pytest.mark.parametrize('name', HELD)
def test_held_out_part_has_the_published_size(name):
    sizes, held = HELD[name]
    fraction = Config.fromfile(CONFIGS / f'{name}_r50.py').evaluation.held_out
    labels = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    _, indices = split_by_class(labels, fraction=fraction)
    assert len(indices) == held
    counts = torch.bincount(labels[indices], minlength=len(sizes)) - fraction * torch.tensor(sizes)
    assert counts.abs().max() < 1.5


def test_evaluation_configs_name_registered_data_sets():
    for path in CONFIGS.glob('*.py'):
        data = Config.fromfile(path).evaluation
        for part in ('train', 'val', 'test'):
            described = data.get(part) or {}
            while described:
                assert DATASETS.get(described['type']), (path.name, described['type'])
                described = described.get('dataset')
