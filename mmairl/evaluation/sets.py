"""The labelled data of a config's `evaluation`: its training, validation and test images, as a protocol takes them."""

import copy
from collections.abc import Mapping, Sequence

from mmengine import Config
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.domains import listed
from mmairl.data.splits import HELD_OUT, groups_of, names_of, refuse_shared
from mmairl.data.views import require_channels
from mmairl.errors import UserError
from mmairl.evaluation.features import require_labelled_images
from mmairl.registry import DATASETS

PARTS = dict(train='training', val='validation', test='test')  # and the words for them
PRECISIONS = ('float32', 'bfloat16')
CHOOSE_NOTHING = ('knn', 'svm')  # k-NN at all, the SVM outside of its training images


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
    if 'groups' in cfg.evaluation:
        refuse_shared({PARTS[part]: own_groups(cfg, dataset) for part, (_, dataset) in built.items()})
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
    """Images to fit on and to choose by: the config's validation set, or `held_out`, a fraction of every class."""
    if 'val' in data:
        return data['train'], data['val']
    part = dict(type='Part', dataset=data['train'], fraction=data.get('held_out', HELD_OUT))
    if 'groups' in data:
        part['groups'] = data['groups']
    return {**part, 'held': False}, {**part, 'held': True}


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
        inner['views'] = [list(view) for view in listed(views)]
    return described


def innermost(described: Mapping) -> Mapping:
    """The description of the data set below those that pick or relabel its images."""
    while 'dataset' in described:
        described = described['dataset']
    return described
