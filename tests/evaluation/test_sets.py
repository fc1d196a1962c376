"""The data sets of an evaluation, and the checks that no image is in two of them."""

import copy
import math
import shutil
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from harness.errors import raises_code
from mmengine.config import Config

from mmairl.config import load_config
from mmairl.data.datasets import ImageFolder
from mmairl.data.packed import pack
from mmairl.errors import UserError
from mmairl.evaluation import sets
from mmairl.evaluation.overlap import shared_images
from mmairl.evaluation.protocol import evaluate
from mmairl.evaluation.sets import PARTS, evaluation_sets, held_out, refit, require_apart
from mmairl.registry import DATASETS, TRANSFORMS

CONFIGS = Path(__file__).parents[2] / 'configs'


def test_protocol_view_and_held_out_fraction_apply():
    """VISSL's SVM resizes VOC2007 images to squares. BYOL holds out 10 009 of ImageNet's training images."""
    voc, imagenet = (load_config(str(CONFIGS / f'evaluation/{name}_r50.py')) for name in ('voc2007', 'imagenet'))
    view = [TRANSFORMS.build(step) for step in voc.evaluation.views.svm]
    image = torch.zeros(3, 50, 100, dtype=torch.uint8)
    image[:, :, 50:] = 255
    for step in view:
        image = step(image)
    assert image.shape == (3, 224, 224) and image[:, :, :100].max() == 0 and image[:, :, 124:].min() == 255
    fit_on, held = held_out(imagenet.evaluation)
    assert fit_on.pop('held') is False and held.pop('held') is True and fit_on == held
    assert held['fraction'] * 1_281_167 == pytest.approx(10_009)


def write_images(root: Path, numbers: Sequence[int]) -> dict:
    """Write images of two classes. The gray value of an image is its number."""
    for number in numbers:
        path = root / 'ab'[number % 2] / f'p{number:02}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((8, 8, 3), number, np.uint8))
    return dict(type='ImageFolder', root=str(root))


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, dict]:
    """Return data sets with the training images 0 to 39, validation images 40 to 59 and test images 60 to 79."""
    bounds = dict(train=(0, 40), val=(40, 60), test=(60, 80))
    return {name: write_images(tmp_path / name, range(*numbers)) for name, numbers in bounds.items()}


@pytest.mark.parametrize('part', ['train', 'test'])
def test_evaluation_without_a_part_is_an_error(folders, part):
    cfg = Config(dict(evaluation={**folders, part: None}))
    with raises_code('no-evaluation-data'):
        evaluation_sets(cfg)


@pytest.mark.parametrize('val,split', [('a', 'train+val'), ('b', 'train')])
def test_refit_adds_only_validation_images_of_one_data_set(val, split):
    data = {name: dict(type='Digits', root=root, split=name) for name, root in (('train', 'a'), ('val', val))}
    assert refit(data)['split'] == split


def test_validation_set_of_none_is_held_out(folders):
    data = {**folders, 'val': None}
    require_apart(data)
    assert held_out(data)[1]['type'] == 'Part'


def described_leaks(data: dict[str, dict]) -> dict[str, dict[str, dict]]:
    train, test = data['train'], data['test']
    part = dict(type='Part', dataset=test, held=True)
    viewed = dict(test, views=[[dict(type='CenterCrop', size=8)]])
    return {
        'val is test': dict(val=test),
        'val is test with views': dict(val=viewed),
        'val is a part of test': dict(val=part),
        'val mixes test in': dict(val=dict(type='Mixture', sets=dict(a=data['val'], b=test))),
        'val is train': dict(val=train),
        'val is a part of all of train': dict(val=dict(type='Part', dataset=train, held=True)),
        'train is test': dict(train=test),
        'train is a part of test': dict(train=part),
        'train mixes test in': dict(train=dict(type='Mixture', sets=dict(a=train, b=test))),
    }


@pytest.mark.parametrize('case', described_leaks(dict(train={}, val={}, test={})))
def test_leak_in_the_config_is_an_error(case):
    data = {name: dict(type='ImageFolder', root=f'nowhere/{name}') for name in ('train', 'val', 'test')}
    held_out(data)
    with pytest.raises(UserError) as error:
        held_out({**data, **described_leaks(data)[case]})
    assert error.value.code in ('val-is-test', 'val-is-train', 'train-is-test')


@pytest.mark.parametrize('fraction', [0, 1, -1, 2, 0.0, 1.0, True, '0.2', math.nan])
def test_bad_fraction_of_held_out_images_is_an_error(fraction):
    data = dict(train=dict(type='ImageFolder', root='a'), test=dict(type='ImageFolder', root='b'))
    with raises_code('bad-held-out'):
        held_out(dict(data, held_out=fraction))


def test_sets_without_common_images_are_apart(folders):
    require_apart(folders)
    require_apart(dict(train=folders['train'], test=folders['test']))
    splits = {name: dict(type='Part', dataset=folders['train'], held=name == 'val') for name in ('train', 'val')}
    require_apart(dict(splits, test=folders['test']))


@pytest.mark.parametrize(
    'part, numbers, code',
    [
        ('val', range(60, 80), 'val-in-test'),
        # A single shared image is an error.
        ('val', [*range(40, 60), 79], 'val-in-test'),
        ('val', range(0, 40), 'val-in-train'),
        ('train', [*range(40), *range(60, 80)], 'test-in-train'),
        ('train', [60, 61, *range(100, 103)], 'train-in-test'),
    ],
)
def test_copies_under_other_paths_are_errors(folders, tmp_path, part, numbers, code):
    copied = dict(folders, **{part: write_images(tmp_path / 'copies' / 'deeper', numbers)})
    held_out(copied)  # No error: the configs do not show the overlap
    with raises_code(code) as error:
        require_apart(copied)
    assert 'p' in str(error.value)


def test_few_copies_in_training_are_no_error(folders, tmp_path):
    train = write_images(tmp_path / 'more', [*range(40), 79])
    require_apart(dict(folders, train=train))


def test_held_out_part_of_test_images_is_an_error(folders, tmp_path):
    train = write_images(tmp_path / 'copies', range(60, 80))
    with raises_code('val-in-test'):
        require_apart(dict(train=train, test=folders['test']))


def test_few_copies_between_published_splits_pass(monkeypatch):
    pairs = [('a', 'b')]
    monkeypatch.setattr(sets, 'shared_images', lambda *_: pairs)
    held, test = range(100), range(50)
    published = dict(val=dict(type='DTD', split='val', views=[[]]), test=dict(type='DTD', split='test'))
    sets.require_no_test_images(published, held, test)  # These parts are two published splits
    # Here, validation images are held out of the training images.
    sets.require_no_test_images({}, held, test)
    other = dict(val=dict(type='DTD', split='val'), test=dict(type='DTD', root='elsewhere', split='test'))
    for data in (other, dict(val=published['test'], test=published['test'])):
        with pytest.raises(UserError):
            sets.require_no_test_images(data, held, test)
    pairs *= 2
    for data in (published, {}):
        with pytest.raises(UserError):
            sets.require_no_test_images(data, held, test)


def test_arrays_in_memory_are_compared_by_pixels():
    shapes = dict(type='Shapes', size=24)
    data = dict(train=dict(shapes, split='train', count=48), test=dict(shapes, split='val', count=48))
    require_apart(dict(data, val=dict(shapes, split='train', count=24, seed=1)))
    with raises_code('val-in-test'):
        # These are the first twelve test images.
        require_apart(dict(data, val=dict(shapes, split='val', count=12)))


def test_copies_in_a_shard_are_found(folders, tmp_path):
    list(pack(ImageFolder(folders['test']['root']), tmp_path / 'copies.tar'))
    shards = dict(type='Shards', root=str(tmp_path / 'copies.tar'))
    copies = shared_images(DATASETS.build(shards), DATASETS.build(folders['test']))
    assert len(copies) == 20
    assert not shared_images(DATASETS.build(shards), DATASETS.build(folders['val']))


@pytest.mark.parametrize('protocol', ['knn', 'svm', 'logreg', 'linear'])
@pytest.mark.parametrize('one, other', [('val', 'test'), ('train', 'test'), ('train', 'val')])
def test_shared_groups_are_errors_in_all_protocols(cfg, folders, protocol, one, other):
    cfg.evaluation = dict(copy.deepcopy(folders), groups=r'(p\d+)')
    evaluation_sets(cfg, protocol)
    patient = {'train': 'p00', 'val': 'p40', 'test': 'p60'}
    first = Path(folders[one]['root']) / 'a' / f'{patient[one]}.png'
    first.rename(first.with_name(f'{patient[other]}_{one}.png'))
    with raises_code('shared-groups', match=f'{PARTS[one]} and {PARTS[other]} images'):
        evaluation_sets(cfg, protocol)


def test_held_out_groups_are_compared_with_the_test(folders):
    data = dict(train=folders['train'], test=folders['test'], groups=r'(p\d+)')
    require_apart(data)
    first = Path(folders['test']['root']) / 'a' / 'p60.png'
    # Each training group has one image in the test set.
    for number in range(40):
        shutil.copy(first, first.with_name(f'p{number:02}_b.png'))
    with raises_code('shared-groups'):
        require_apart(data)


def test_logreg_rejects_test_images_as_validation(cfg, folders, tmp_path):
    cfg.evaluation = dict(folders, val=write_images(tmp_path / 'copies', range(60, 80)))
    with raises_code('val-in-test'):
        evaluate(cfg, 'logreg', 'pixels')
