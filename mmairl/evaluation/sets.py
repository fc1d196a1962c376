"""The labeled data of a config's `evaluation`: its training, validation and test images, as a protocol uses them."""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
from mmengine import Config
from mmengine.logging import print_log
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.config import walk
from mmairl.data.preprocess import require_channels
from mmairl.data.splits import HELD_OUT, groups_of, image_names, refuse_shared
from mmairl.data.view_sets import expand_named_views
from mmairl.errors import UserError, printable
from mmairl.evaluation.overlap import shared_images
from mmairl.registry import DATASETS, PROTOCOLS

PARTS = dict(train='training', val='validation', test='test')  # and how messages call them
# The keys of `evaluation` that state which images are used for what.
SPLITS = (*PARTS, 'held_out', 'groups')
PRECISIONS = ('float32', 'bfloat16')
SAMPLE = 1000  # images looked up in the training set
COMPARED = (('val', 'train'), ('train', 'val'), ('test', 'train'), ('train', 'test'))
COPIES = 0.1  # the fraction of them found there that is an error
FEW = 0.01  # the fraction of test images that published validation splits may contain


def described_sets(cfg: Config, protocol: str = 'knn') -> dict[str, dict]:
    """Return the configs of the protocol's data sets: train, test and, unless validation images join train, val."""
    data = cfg.get('evaluation')
    if not data or not data.get('train') or not data.get('test'):
        raise UserError(
            f'{cfg.filename} names no data to evaluate on; add evaluation = dict(train=..., test=...)',
            code='no-evaluation-data',
        )
    if PROTOCOLS.get(protocol).validation == 'join':
        described = {'train': refit(data), 'test': data.test}
    else:
        described = {name: data[name] for name in PARTS if data.get(name)}
    if protocol in data.get('views', {}):
        views = [data.views[protocol]]
        described = {name: with_views(dataset, views) for name, dataset in described.items()}
    return described


def precision_of(cfg: Config) -> str:
    """Return the precision of frozen backbones, from `evaluation.precision`."""
    precision = cfg.evaluation.get('precision', 'float32')
    if precision not in PRECISIONS:
        raise UserError(
            f"evaluation.precision: unknown precision ('{precision}'); expected {' or '.join(PRECISIONS)}",
            code='unknown-precision',
        )
    return precision


def evaluation_sets(cfg: Config, protocol: str = 'knn') -> dict[str, tuple[dict, Dataset]]:
    """Build the protocol's data sets and return each with its config.

    Raises:
        UserError: If a data set is empty, unlabeled, of other classes, or of labels that the protocol cannot score.
    """
    sets = {
        name: (dataset, DATASETS.build(dataset))
        for name, dataset in described_sets(cfg, protocol).items()
    }
    for _, dataset in sets.values():
        require_labeled_images(dataset)
        require_channels(dataset, cfg.model.data_preprocessor.mean)
        _require_scorable(dataset, protocol)
    _require_same_classes({name: dataset for name, (_, dataset) in sets.items()})
    if 'groups' in cfg.evaluation:
        # Checks every part, even if the protocol ignores `val` or joins it to `train`.
        groups = {}
        for part, name in PARTS.items():
            if described := cfg.evaluation.get(part):
                groups[name] = own_groups(cfg, DATASETS.build(described))
        refuse_shared(groups)
    return sets


def require_labeled_images(dataset: Dataset) -> None:
    """Raise if a data set is empty, or if one of its images has no label."""
    name = type(dataset).__name__
    if not len(dataset):
        raise UserError(
            f'evaluation: no images to evaluate: {name} is empty; check the data set',
            code='no-images',
        )
    if label_kind(dataset) == 'single' and int(dataset.labels.min()) < 0:
        raise UserError(
            f'evaluation: {name} has images without a label; use a labeled data set',
            code='unlabeled-images',
        )


def label_kind(dataset: Dataset) -> str:
    """Return 'dense' for a target per pixel, 'multi' for several classes per image, else 'single'."""
    if hasattr(dataset, 'label_kind'):
        return dataset.label_kind
    return 'multi' if dataset.labels.ndim == 2 else 'single'


def _require_scorable(dataset: Dataset, protocol: str) -> None:
    kind = label_kind(dataset)
    expected = PROTOCOLS.get(protocol).labels
    if kind not in expected:
        others = [name for name in PROTOCOLS.names() if kind in PROTOCOLS.get(name).labels]
        raise UserError(
            f"{protocol}: expected {' or '.join(expected)} labels, and {type(dataset).__name__} has other ones ('{kind}'); "
            f'use one of {", ".join(others)}',
            code='unsupported-labels',
        )


def _require_same_classes(datasets: Mapping[str, Dataset]) -> None:
    classes = {}
    for name, dataset in datasets.items():
        classes[name] = list(map(str, getattr(dataset, 'classes', ())))
    expected = classes['train']
    for name, found in classes.items():
        if found != expected:
            odd = sorted(set(found) ^ set(expected))
            raise UserError(
                f'evaluation: the {name} images have {len(found)} classes and the training images {len(expected)}, and '
                f'{repr(odd[0]) if odd else "their order"} is not the same in both; use folders with the same classes',
                code='other-classes',
            )


def own_groups(cfg: Config, dataset: Dataset) -> list[str] | None:
    """Return the groups of a data set's images, or None if the config has none."""
    groups = cfg.evaluation.get('groups')
    return None if groups is None else groups_of(image_names(dataset), groups)


def left_out(part: str, dataset: Dataset, labels: Tensor, unreadable: int = 0) -> dict[str, int]:
    """Count what no score covers: unreadable images, and classes of the data set that `labels` lacks."""
    present = labels.unique().numel()
    if labels.ndim == 2:
        present = int((labels == 1).any(0).sum())
    classes = getattr(dataset, 'classes', ())
    missing = max(0, len(classes) - present)
    counts = {
        f'unreadable {PARTS[part]} images': unreadable,
        f'classes without a {PARTS[part]} image': missing,
    }
    return {name: count for name, count in counts.items() if count}


def held_out(data: Mapping) -> tuple[dict, dict]:
    """Return the images to fit on and to choose by: the config's validation set, or `held_out`, a fraction of each class.

    Raises:
        UserError: If the config names test images, or images to fit on, as images to choose by.
            `require_apart` compares the images themselves.
    """
    if _overlap_by_config(data['train'], data['test']):
        raise UserError(
            'evaluation.train: the training images are test images; name other images under evaluation.test',
            code='train-is-test',
        )
    if data.get('val'):
        for part in ('test', 'train'):
            if _overlap_by_config(data['val'], data[part]):
                raise UserError(
                    f'evaluation.val: the validation images are {PARTS[part]} images; name other images, or leave `val` '
                    'out to hold out a part of the training images',
                    code=f'val-is-{part}',
                )
        return data['train'], data['val']
    fraction = data.get('held_out', HELD_OUT)
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise UserError(
            f"evaluation.held_out: expected a fraction between 0 and 1 ('{fraction}'); the default is {HELD_OUT}",
            code='bad-held-out',
        )
    part = dict(type='Part', dataset=data['train'], fraction=fraction)
    if 'groups' in data:
        part['groups'] = data['groups']
    return {**part, 'held': False}, {**part, 'held': True}


def require_apart(data: Mapping) -> None:
    """Raise if images to choose by are test images, by content, or if a group is on two sides.

    Copies between the training images and the others do not bias a choice. They are an error only if they are a tenth
    of either side.
    """
    fit, held = held_out(data)
    described = dict(train=fit, val=held, test=data['test'])
    parts = {part: DATASETS.build(of_part) for part, of_part in described.items()}
    if 'groups' in data:
        groups = {}
        for part, dataset in parts.items():
            groups[PARTS[part]] = groups_of(image_names(dataset), data['groups'])
        refuse_shared(groups)
    require_no_test_images(data, parts['val'], parts['test'])
    if data.get('val'):
        for one, other in COMPARED:
            count = len(parts[one])
            rows = np.linspace(0, count - 1, min(SAMPLE, count)).astype(int)
            copies = shared_images(parts[one], parts[other], rows)
            if len(copies) > COPIES * len(rows):
                raise _overlap_error(one, other, copies, len(rows))


def require_no_test_images(data: Mapping, held: Dataset, test: Dataset) -> None:
    """Raise if an image to choose by is a test image, or a copy of one.

    Published data sets have a few copies between their own splits. Copies of up to a hundredth of the images are only
    logged if both are splits of one data set, or if the images to choose by are held out of the training images.
    """
    copies = shared_images(held, test)
    tolerant = not data.get('val') or _splits_of_one(data['val'], data['test'])
    allowed = FEW * len(held) if tolerant else 0
    if len(copies) > allowed:
        raise _overlap_error('val', 'test', copies, len(held))
    if copies:
        print_log(
            f'{len(copies)} of {len(held)} validation images are copies of test images',
            logger='current',
        )


def _splits_of_one(first: Mapping, second: Mapping) -> bool:
    """Return whether two data sets are different splits of the same one."""
    plain = [with_views(first, None), with_views(second, None)]
    splits = [described.pop('split', None) for described in plain]
    return None not in splits and splits[0] != splits[1] and plain[0] == plain[1]


def _overlap_error(
    one: str, other: str, copies: Sequence[tuple[str, str]], compared: int
) -> UserError:
    first, twin = map(printable, copies[0])
    return UserError(
        f'evaluation: {len(copies)} of {compared} {PARTS[one]} images are also {PARTS[other]} images, first '
        f"('{first}' and '{twin}'); remove them from one side, or name other images",
        code=f'{one}-in-{other}',
    )


def _overlap_by_config(one: Mapping, other: Mapping) -> bool:
    """Return whether one data set is, or is made from, the other, views aside."""
    return _contains(one, other) or _contains(other, one)


def _contains(described: Mapping, other: Mapping) -> bool:
    target = with_views(other, None)
    inner = (part for _, part in walk(dict(described)) if isinstance(part, Mapping))
    return any(with_views(part, None) == target for part in inner)


def refit(data: Mapping) -> dict:
    """Return the images that a tested classifier learns from: with `val`, if both are splits of one data set."""
    splits = [data[name].get('split') for name in ('train', 'val') if data.get(name)]
    if splits == ['train', 'val']:
        return {**copy.deepcopy(data['train']), 'split': 'train+val'}
    return data['train']


def with_views(described: Mapping, views: Sequence | None) -> dict:
    """Return a data set's config with other views of its images; None removes its views."""
    described = copy.deepcopy(described)
    inner = innermost(described)
    inner.pop('views', None)
    if views is not None:
        inner['views'] = [list(view) for view in expand_named_views(views)]
    return described


def innermost(described: Mapping) -> Mapping:
    """Return the config of the data set below those that select or relabel its images."""
    while 'dataset' in described:
        described = described['dataset']
    return described
