"""In each evaluation config, the data sets of all parts have valid arguments, and no two parts are equal."""

import inspect
from itertools import combinations
from pathlib import Path

import pytest
from mmengine.config import Config

from mmairl.data.datasets import build_views
from mmairl.data.public import SPLITS
from mmairl.registry import DATASETS

FOLDER = Path(__file__).parents[2] / 'configs' / 'evaluation'
# These are the twelve data sets of BYOL's transfer table, with the metric of each.
TWELVE = dict.fromkeys(['birdsnap', 'cifar10', 'cifar100', 'dtd', 'food101', 'stanford_cars', 'sun397'], 'top-1')
TWELVE |= dict.fromkeys(('caltech101', 'fgvc_aircraft', 'flowers102', 'oxford_iiit_pet'), 'mean per class')
TWELVE['voc2007'] = '11-point mAP'
OTHERS = {'batch_size', 'held_out', 'views', 'settings', 'robustness'}
CONFIGS = {path.stem: path for path in sorted(FOLDER.glob('*.py'))}
assert {f'{name}_r50' for name in TWELVE} <= set(CONFIGS)


def kinds(settings: dict) -> list[tuple[type, dict]]:
    """Return the Python class and the arguments of a data set, and of each data set that it wraps."""
    arguments = {key: value for key, value in settings.items() if key != 'type'}
    inside = kinds(settings['dataset']) if 'dataset' in settings else []
    return [(DATASETS.get(settings['type']), arguments), *inside]


@pytest.mark.parametrize('name', CONFIGS)
def test_parts_of_a_config_are_valid_and_differ(name):
    evaluation = Config.fromfile(CONFIGS[name]).evaluation.to_dict()
    parts = {part: evaluation.pop(part) for part in ('train', 'val', 'test') if part in evaluation}
    assert {'train', 'test'} <= parts.keys()
    assert evaluation.keys() <= OTHERS
    assert evaluation.get('batch_size', 256) == 256
    for settings in parts.values():
        for kind, arguments in kinds(settings):
            inspect.signature(kind).bind(**arguments)
            build_views(arguments.get('views'))
            assert arguments.get('split', 'train') in getattr(kind, 'splits', SPLITS)
    assert all(one != other for one, other in combinations(parts.values(), 2))
    if metric := TWELVE.get(name.removesuffix('_r50')):
        for part in ('train', 'val', 'test'):
            ((kind, arguments),) = kinds(parts[part])
            assert kind.metric == metric and arguments['split'] == part
            resize, crop = arguments['views'][0]
            assert resize == dict(type='Resize', size=224, interpolation='bicubic')
            assert crop == dict(type='CenterCrop', size=224)
