"""The labelled data of a config's `evaluation`: its training, validation and test images, as a protocol takes them."""

import copy
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from mmengine import Config
from mmengine.logging import print_log
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.preprocess import require_channels
from mmairl.data.splits import HELD_OUT, groups_of, names_of, refuse_shared
from mmairl.data.view_sets import expand_named_views
from mmairl.errors import UserError, printable
from mmairl.evaluation.features import require_labelled_images
from mmairl.evaluation.overlap import shared_images
from mmairl.registry import DATASETS

PARTS = dict(train='training', val='validation', test='test')  # and the words for them
SPLITS = (*PARTS, 'held_out', 'groups')  # the keys of `evaluation` that say which images are used for what
PRECISIONS = ('float32', 'bfloat16')
CHOOSE_NOTHING = ('knn', 'svm')  # k-NN at all, the SVM outside of its training images
CHOOSE_BY_VAL = 'logreg'  # its strength, by `evaluation.val` where the config has it
SAMPLE, COPIES = 1000, 0.1  # images looked for in the training set, and the fraction found there that is an error
FEW = 0.01  # of the images to choose by: copies of test images that a data set's own splits may have


def described_sets(cfg: Config, protocol: str = 'knn') -> dict[str, dict]:
    """Return the protocol's data sets as configs: train, test and, where a choice is made, val."""
    data = cfg.get('evaluation')
    if not data or 'train' not in data or 'test' not in data:
        raise UserError(f'{cfg.filename} names no data to evaluate on; add evaluation = dict(train=..., test=...)')
    if protocol in CHOOSE_NOTHING:
        named = {'train': refit(data), 'test': data.test}
    else:
        named = {name: data[name] for name in PARTS if name in data}
    if protocol in data.get('views', {}):
        named = {name: with_views(described, [data.views[protocol]]) for name, described in named.items()}
    return named


def precision_of(cfg: Config) -> str:
    """The precision that frozen backbones compute in, as `evaluation.precision` says."""
    precision = cfg.evaluation.get('precision', 'float32')
    if precision not in PRECISIONS:
        raise UserError(f"evaluation.precision='{precision}' is not known; say {' or '.join(PRECISIONS)}")
    return precision


def evaluation_sets(cfg: Config, protocol: str = 'knn') -> dict[str, tuple[dict, Dataset]]:
    """Build the protocol's data sets; return each with its config, and refuse those that do not fit together."""
    built = {name: (described, DATASETS.build(described)) for name, described in described_sets(cfg, protocol).items()}
    for _, dataset in built.values():
        require_labelled_images(dataset)
        require_channels(dataset, cfg.model.data_preprocessor.mean)
    classes = {name: list(map(str, getattr(dataset, 'classes', ()))) for name, (_, dataset) in built.items()}
    for name, own in classes.items():
        if own != classes['train']:
            odd = sorted(set(own) ^ set(classes['train']))
            raise UserError(
                f'the {name} images have {len(own)} classes and the training images {len(classes["train"])}, and '
                f'{odd[0] if odd else "their order"!r} is not the same in both; give folders with the same classes'
            )
    if 'groups' in cfg.evaluation:  # of all parts, also where the protocol leaves `val` out or joins it to `train`
        parts = {part: DATASETS.build(cfg.evaluation[part]) for part in PARTS if part in cfg.evaluation}
        refuse_shared({PARTS[part]: own_groups(cfg, dataset) for part, dataset in parts.items()})
    return built


def own_groups(cfg: Config, dataset: Dataset) -> list[str] | None:
    """The groups of a data set's images, where the config says such."""
    groups = cfg.evaluation.get('groups')
    return None if groups is None else groups_of(names_of(dataset), groups)


def left_out(part: str, dataset: Dataset, labels: Tensor, unreadable: int = 0) -> dict[str, int]:
    """Count what of a data set no score tells of: images that cannot be read, and classes that `labels` do not have."""
    shown = int((labels == 1).any(0).sum()) if labels.ndim == 2 else labels.unique().numel()
    missing = max(0, len(getattr(dataset, 'classes', ())) - shown)
    counts = {f'unreadable {PARTS[part]} images': unreadable, f'classes without a {PARTS[part]} image': missing}
    return {name: count for name, count in counts.items() if count}


def held_out(data: Mapping) -> tuple[dict, dict]:
    """Return the images to fit on and to choose by: the config's validation set, or `held_out`, a fraction of every class.

    Raises:
        UserError: If the config says that images to choose by are test images or images to fit on.
            `require_apart` compares the images themselves.
    """
    if _contains(data['train'], data['test']) or _contains(data['test'], data['train']):
        raise UserError(
            'evaluation.train: the training images are test images; name other images under evaluation.test',
            code='train-is-test',
        )
    if 'val' in data:
        for part in ('test', 'train'):
            if _contains(data['val'], data[part]) or _contains(data[part], data['val']):
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
    """Raise if images to choose by are test images, by their content, or if a group is on two sides.

    Copies between the training images and the others cannot decide a choice, and are an error only from a tenth of
    either side on.
    """
    fit, held = held_out(data)
    parts = dict(train=DATASETS.build(fit), val=DATASETS.build(held), test=DATASETS.build(data['test']))
    if 'groups' in data:
        named = {PARTS[part]: names_of(dataset) for part, dataset in parts.items()}
        refuse_shared({part: groups_of(names, data['groups']) for part, names in named.items()})
    require_no_test_images(data, parts['val'], parts['test'])
    if 'val' in data:
        for one, other in (('val', 'train'), ('train', 'val'), ('test', 'train'), ('train', 'test')):
            rows = np.linspace(0, len(parts[one]) - 1, min(SAMPLE, len(parts[one]))).astype(int)
            copies = shared_images(parts[one], parts[other], rows)
            if len(copies) > COPIES * len(rows):
                raise _overlap(one, other, copies, len(rows))


def require_no_test_images(data: Mapping, held: Dataset, test: Dataset) -> None:
    """Raise if an image to choose by is a test image, or a copy of one.

    Published data sets have a few copies between their own splits. Up to a hundredth of the images is logged there, and
    where the images are held out of the training images.
    """
    copies = shared_images(held, test)
    few = FEW * len(held) if 'val' not in data or _splits_of_one(data['val'], data['test']) else 0
    if len(copies) > few:
        raise _overlap('val', 'test', copies, len(held))
    if copies:
        print_log(f'{len(copies)} of {len(held)} validation images are copies of test images', logger='current')


def _splits_of_one(*described: Mapping) -> bool:
    plain = [with_views(one, None) for one in described]
    splits = [one.pop('split', None) for one in plain]
    return None not in splits and splits[0] != splits[1] and plain[0] == plain[1]


def _overlap(one: str, other: str, copies: Sequence[tuple[str, str]], compared: int) -> UserError:
    here, there = map(printable, copies[0])
    return UserError(
        f'evaluation: {len(copies)} of {compared} {PARTS[one]} images are also {PARTS[other]} images, first '
        f"('{here}' and '{there}'); remove them from one side, or name other images",
        code=f'{one}-in-{other}',
    )


def _contains(described: Mapping, other: Mapping) -> bool:
    """Whether a data set is made from another one, or is that one, views aside."""
    wanted = with_views(other, None)
    return any(with_views(inner, None) == wanted for inner in _inside(described))


def _inside(described: Mapping) -> Iterator[Mapping]:
    yield described
    inner = described.get('sets', {}).values() if 'sets' in described else [described.get('dataset')]
    for one in filter(None, inner):
        yield from _inside(one)


def refit(data: Mapping) -> dict:
    """The images that a tested classifier learns from: with those of validation, where both are splits of one set."""
    splits = [data[name].get('split') for name in ('train', 'val') if name in data]
    return {**copy.deepcopy(data['train']), 'split': 'train+val'} if splits == ['train', 'val'] else data['train']


def with_views(described: Mapping, views: Sequence | None) -> dict:
    """Return the description of a data set with other views of its images; with None, without any."""
    described = copy.deepcopy(described)
    inner = innermost(described)
    inner.pop('views', None)
    if views is not None:
        inner['views'] = [list(view) for view in expand_named_views(views)]
    return described


def innermost(described: Mapping) -> Mapping:
    """The description of the data set below those that pick or relabel its images."""
    while 'dataset' in described:
        described = described['dataset']
    return described
