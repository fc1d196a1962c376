"""Build the training, validation and test sets of a config's `evaluation`, and check that they are valid and separate.

In this module, these three sets are called parts. A group is a set of images that must stay in one part, such as all images
of a patient. A view is a list of the steps that preprocess an image.
"""

import copy
from collections.abc import Mapping, Sequence

import numpy as np
from mmengine import Config, ConfigDict
from mmengine.logging import print_log
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.config import walk
from mmairl.data.preprocess import require_channels
from mmairl.data.splits import HELD_OUT, Groups, groups_of, image_names, refuse_shared
from mmairl.data.view_sets import expand_named_views
from mmairl.errors import UserError
from mmairl.evaluation.overlap import shared_images
from mmairl.registry import DATASETS, PROTOCOLS

# This dictionary maps the key of each part in `evaluation` to the name of the part in messages.
PARTS = dict(train='training', val='validation', test='test')
# These keys of `evaluation` decide which images belong to which part.
SPLITS = (*PARTS, 'held_out', 'groups')
PRECISIONS = ('float32', 'bfloat16')
# For each pair, up to SAMPLE images of the first part are searched in the second part. It is an error if the second part
# contains more than the fraction COPIES of these images.
COMPARED = (('val', 'train'), ('train', 'val'), ('test', 'train'), ('train', 'test'))
SAMPLE = 1000
COPIES = 0.1
FEW = 0.01  # accepted fraction of copies of test images in the validation split of a published data set


def evaluation_data(cfg: Config) -> ConfigDict:
    """Return a config's `evaluation`, or raise a `UserError` if it has no training or test images."""
    data = cfg.get('evaluation')
    if not data or not data.get('train') or not data.get('test'):
        raise UserError(
            f'{cfg.filename}: no data to evaluate on; add evaluation = dict(train=..., test=...)',
            code='no-evaluation-data',
        )
    return data


def described_sets(cfg: Config, protocol: str = 'knn') -> dict[str, dict]:
    """Return the config of each part that a protocol uses.

    If the protocol joins the validation images to the training images, there is no entry 'val'. If `evaluation.views` sets
    views for the protocol, they replace the views of the data sets.
    """
    data = evaluation_data(cfg)
    if PROTOCOLS.get(protocol).validation == 'join':
        described = {'train': refit(data), 'test': data.test}
    else:
        described = {name: data[name] for name in PARTS if data.get(name)}
    if protocol in data.get('views', {}):
        views = [data.views[protocol]]
        described = {name: with_views(dataset, views) for name, dataset in described.items()}
    return described


def precision_of(cfg: Config) -> str:
    """Return `evaluation.precision`, the number format in which frozen backbones compute."""
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
        UserError: If a data set is empty or unlabeled, if two data sets have different classes, if two parts share a group,
            or if the protocol does not support this kind of labels.
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
        # All parts of the config are checked, even if the protocol ignores `val` or joins it to `train`.
        parts = {}
        for part in PARTS:
            if described := cfg.evaluation.get(part):
                parts[part] = DATASETS.build(described)
        _refuse_shared_groups(parts, cfg.evaluation.groups)
    return sets


def require_labeled_images(dataset: Dataset) -> None:
    """Raise if a data set is empty, or if one of its images has no label."""
    name = type(dataset).__name__
    if not len(dataset):
        raise UserError(
            f'evaluation: {name} is empty, so there are no images to evaluate; check the data set',
            code='no-images',
        )
    if label_kind(dataset) == 'single' and int(dataset.labels.min()) < 0:
        raise UserError(
            f'evaluation: {name} has images without a label; use a labeled data set',
            code='unlabeled-images',
        )


def label_kind(dataset: Dataset) -> str:
    """Return the kind of a data set's labels: 'single', 'multi', 'dense' or 'queries' (see `Protocol`)."""
    if hasattr(dataset, 'label_kind'):
        return dataset.label_kind
    return 'multi' if dataset.labels.ndim == 2 else 'single'


def _require_scorable(dataset: Dataset, protocol: str) -> None:
    kind = label_kind(dataset)
    expected = PROTOCOLS.get(protocol).labels
    if kind not in expected:
        others = [name for name in PROTOCOLS.names() if kind in PROTOCOLS.get(name).labels]
        raise UserError(
            f'{protocol}: expected {" or ".join(expected)} labels, but {type(dataset).__name__} has labels of another kind '
            f"('{kind}'); use one of the protocols {', '.join(others)}",
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
                f'evaluation: the {len(found)} classes of the {name} images and the {len(expected)} classes of the training '
                f'images differ in {repr(odd[0]) if odd else "their order"}; use folders with the same classes',
                code='other-classes',
            )


def own_groups(cfg: Config, dataset: Dataset) -> list[str] | None:
    """Return the group of each image of a data set, or None if the config defines no groups."""
    groups = cfg.evaluation.get('groups')
    return None if groups is None else groups_of(image_names(dataset), groups)


def left_out(part: str, dataset: Dataset, labels: Tensor, unreadable: int = 0) -> dict[str, int]:
    """Return how many images are unreadable and how many classes have no image in `labels`. Counts of 0 are omitted."""
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
    """Return the configs of the images to train on and of the held-out images, on which hyperparameters are chosen.

    The held-out images are the validation set. If there is none, they are the fraction `evaluation.held_out` of each class
    of the training images.

    Raises:
        UserError: If two parts overlap according to their configs, or if `evaluation.held_out` is not a fraction. The
            function `require_apart` compares the images.
    """
    if _overlap_by_config(data['train'], data['test']):
        raise UserError(
            'evaluation.train: the training images are test images; set another data set under evaluation.test',
            code='train-is-test',
        )
    if data.get('val'):
        for part in ('test', 'train'):
            if _overlap_by_config(data['val'], data[part]):
                raise UserError(
                    f'evaluation.val: the validation images are {PARTS[part]} images; set another data set, or leave '
                    '`val` out to hold out a part of the training images',
                    code=f'val-is-{part}',
                )
        return data['train'], data['val']
    fraction = data.get('held_out', HELD_OUT)
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)) or not 0 < fraction < 1:
        raise UserError(
            f"evaluation.held_out: expected a fraction between 0 and 1 ('{fraction}'); set such a fraction (default: "
            f'{HELD_OUT})',
            code='bad-held-out',
        )
    part = dict(type='Part', dataset=data['train'], fraction=fraction)
    if 'groups' in data:
        part['groups'] = data['groups']
    return {**part, 'held': False}, {**part, 'held': True}


def require_apart(data: Mapping) -> None:
    """Raise if hyperparameters would be chosen on test images or their copies, or if two parts share a group.

    Copies of training images in another part do not bias the choice of hyperparameters. They are an error only if the config
    has validation images and more than a tenth of a part are copies.
    """
    fit, held = held_out(data)
    described = dict(train=fit, val=held, test=data['test'])
    parts = {part: DATASETS.build(of_part) for part, of_part in described.items()}
    if 'groups' in data:
        _refuse_shared_groups(parts, data['groups'])
    require_no_test_images(data, parts['val'], parts['test'])
    if data.get('val'):
        for one, other in COMPARED:
            count = len(parts[one])
            rows = np.linspace(0, count - 1, min(SAMPLE, count)).astype(int)
            copies = shared_images(parts[one], parts[other], rows)
            if len(copies) > COPIES * len(rows):
                raise _overlap_error(one, other, copies, len(rows))


def _refuse_shared_groups(parts: Mapping[str, Dataset], groups: Groups) -> None:
    """Raise if images of the same group are in two parts."""
    names = {}
    for part, dataset in parts.items():
        names[PARTS[part]] = groups_of(image_names(dataset), groups)
    refuse_shared(names)


def require_no_test_images(data: Mapping, held: Dataset, test: Dataset) -> None:
    """Raise if the images `held`, on which hyperparameters are chosen, contain test images or copies of test images.

    The splits of published data sets share a few images. Therefore, if `held` and `test` are two splits of one data set,
    or if `held` is a part of the training images, copies that make up at most a hundredth of `held` are only logged.
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
    """Return whether two configs describe different splits of the same data set."""
    plain = [with_views(first, None), with_views(second, None)]
    splits = [described.pop('split', None) for described in plain]
    return None not in splits and splits[0] != splits[1] and plain[0] == plain[1]


def _overlap_error(
    one: str, other: str, copies: Sequence[tuple[str, str]], compared: int
) -> UserError:
    first, twin = copies[0]
    return UserError(
        f'evaluation: {len(copies)} of {compared} {PARTS[one]} images are also {PARTS[other]} images, such as '
        f"'{first}' (the same image as '{twin}'); remove these images from one of the two sets, or set another data set under "
        f'evaluation.{one} or evaluation.{other}',
        code=f'{one}-in-{other}',
    )


def _overlap_by_config(one: Mapping, other: Mapping) -> bool:
    """Return whether one of two data sets equals or contains the other, according to their configs without views."""
    return _contains(one, other) or _contains(other, one)


def _contains(described: Mapping, other: Mapping) -> bool:
    target = with_views(other, None)
    inner = (part for _, part in walk(dict(described)) if isinstance(part, Mapping))
    return any(with_views(part, None) == target for part in inner)


def refit(data: Mapping) -> dict:
    """Return the config of the images on which the final classifier is trained.

    These are the images of `train`. If `train` and `val` are splits of one data set, the images of `val` are added.
    """
    splits = [data[name].get('split') for name in ('train', 'val') if data.get(name)]
    if splits == ['train', 'val'] and _splits_of_one(data['train'], data['val']):
        return {**copy.deepcopy(data['train']), 'split': 'train+val'}
    return data['train']


def with_views(described: Mapping, views: Sequence | None) -> dict:
    """Return a copy of a data set's config with these views. If `views` is None, the copy has no views."""
    described = copy.deepcopy(described)
    inner = innermost(described)
    inner.pop('views', None)
    if views is not None:
        inner['views'] = [list(view) for view in expand_named_views(views)]
    return described


def innermost(described: Mapping) -> Mapping:
    """Return the config of the data set that contains the images. Wrappers that select or relabel images are removed."""
    while 'dataset' in described:
        described = described['dataset']
    return described
