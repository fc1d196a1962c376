"""Build the training, validation and test sets of a config's `evaluation`, and keep them apart.

In this module, these three sets are called parts. A group is a set of images that must stay in one
part, such as all images of a patient.
"""

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from mmengine import Config, ConfigDict
from torch.utils.data import Dataset

from mmairl.checkpoints.load import warn
from mmairl.checkpoints.read import Backbone
from mmairl.data.datasets import ViewDataset
from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import preprocessing_of, require_channels, view_of
from mmairl.data.splits import HELD_OUT, groups_of, image_names, refuse_shared
from mmairl.errors import UserError
from mmairl.evaluation.sources import key_of
from mmairl.io import read_json, write_json
from mmairl.registry import DATASETS, PROTOCOLS

# This dictionary maps the key of each part in `evaluation` to the name of the part in messages.
PARTS = dict(train='training', val='validation', test='test')
HEAD = 4096  # images of equal size are first compared by this number of bytes
THREADS = 16
# Published validation sets contain some copies of test images. A larger fraction is an error.
TOLERATED = 0.01


def evaluation_data(cfg: Config) -> ConfigDict:
    """Return a config's `evaluation`, or raise a `UserError` if it has no images."""
    data = cfg.get('evaluation')
    if not data or not data.get('train') or not data.get('test'):
        raise UserError(
            f'{cfg.filename or "config"}: no data to evaluate on; give --data FOLDER, or add '
            'evaluation = dict(train=..., test=...)',
            code='no-evaluation-data',
        )
    return prepared_config(cfg).evaluation


def prepared_config(cfg: Config, subject: Backbone | str = '') -> Config:
    """Return a copy of a config whose images are prepared as the checkpoint or the config states.

    The key `preprocessing` of the config overrides what the checkpoint states. Data sets keep their
    own views, as the protocols of papers require. Data sets without files have images of one size,
    and do not need views.
    """
    cfg = copy.deepcopy(cfg)
    stated = {}
    if isinstance(subject, Backbone) and subject.input.origin:
        stated = {key: value for key, value in vars(subject.input).items() if value is not None}
        stated.pop('origin')
    cfg.preprocessing = stated | (cfg.get('preprocessing') or {})
    cfg.preprocessing = steps = preprocessing_of(cfg)
    if 'data_preprocessor' in cfg.model:
        cfg.model.data_preprocessor.update(mean=steps['mean'], std=steps['std'])
    for part in PARTS:
        if described := (cfg.get('evaluation') or {}).get(part):
            images = innermost(described)
            kind = images['type']
            kind = DATASETS.get(kind) if isinstance(kind, str) else kind
            if getattr(kind, 'encoded', ViewDataset.encoded) is not ViewDataset.encoded:
                images.setdefault('views', [view_of(steps)])
                images.setdefault('channels', steps['channels'])
    return cfg


def described_sets(cfg: Config, protocol: str = 'knn') -> dict[str, dict]:
    """Return the config of each part that a protocol uses.

    If the protocol joins the validation images to the training images, there is no entry 'val'. If
    `evaluation.views` sets views for the protocol, they replace the views of the data sets.
    """
    data = viewed(evaluation_data(cfg), protocol)
    if PROTOCOLS.get(protocol).validation == 'join':
        return {'train': refit(data), 'test': data['test']}
    return {name: data[name] for name in PARTS if data.get(name)}


def viewed(data: Mapping, protocol: str) -> Mapping:
    """Return an `evaluation` whose parts have the protocol's own view, if `views` states one."""
    if view := data.get('views', {}).get(protocol):
        parts = {name: with_views(data[name], [view]) for name in PARTS if data.get(name)}
        return {**data, **parts}
    return data


def evaluation_sets(cfg: Config, protocol: str = 'knn') -> dict[str, tuple[dict, Dataset]]:
    """Build the protocol's data sets and return each with its config.

    Raises:
        UserError: If a data set is empty, unlabeled or of another kind, if there is only one class,
            if a class has only one training image, if two data sets have different classes, or if
            two parts share a group.
    """
    described = described_sets(cfg, protocol)
    sets = {name: (dataset, DATASETS.build(dataset)) for name, dataset in described.items()}
    train = sets['train'][1]
    for name, (_, dataset) in sets.items():
        require_channels(dataset, cfg.model.data_preprocessor.mean)
        require_labels(
            f'evaluation.{name}', dataset, train, described[name], PROTOCOLS.get(protocol).labels
        )
    data = cfg.evaluation
    if data.get('groups') is not None:
        groups = {}
        for part, label in PARTS.items():
            if data.get(part):
                names = image_names(DATASETS.build(data[part]))
                groups[label] = groups_of(names, data.groups)
        refuse_shared(groups)
    return sets


def require_labels(
    key: str, dataset: Dataset, train: Dataset, described: Mapping, kinds: Sequence[str]
) -> None:
    """Raise if the labels of a data set, which `described` at this key of the config builds, cannot be used."""
    kind = label_kind(dataset)
    problem = code = ''
    if not len(dataset):
        problem, code = 'is empty', 'no-images'
    elif kind not in kinds:
        problem, code = f'has {kind} labels instead of {kinds[0]} labels', 'unsupported-labels'
    elif list(dataset.classes) != list(train.classes):
        problem, code = 'has other classes than the training images', 'other-classes'
    elif kind == 'single' and dataset is train:
        _, counts = dataset.labels.unique(return_counts=True)
        if len(counts) < 2:
            problem, code = 'has images of only one class', 'one-class'
        elif counts.min() < 2:
            problem, code = 'has a class of only one training image', 'class-of-one'
    if problem:
        where = innermost(described).get('root', type(dataset).__name__)
        raise UserError(f'{key}: {where} {problem}; check its images', code=code)


def label_kind(dataset: Dataset) -> str:
    """Return the kind of a data set's labels: 'single', 'multi' or 'dense' (see `Protocol`)."""
    labels = getattr(dataset, 'labels', None)
    if labels is None:
        return 'dense'
    return 'multi' if labels.ndim == 2 else 'single'


def held_out(data: Mapping) -> tuple[dict, dict]:
    """Return the configs of the images to train on, and of the images to choose hyperparameters on.

    The latter are the validation images or, if there are none, a part of the training images.
    """
    if data.get('val'):
        return data['train'], data['val']
    part = dict(type='Part', dataset=data['train'], fraction=data.get('held_out', HELD_OUT))
    if 'groups' in data:
        part['groups'] = data['groups']
    return {**part, 'held': False}, {**part, 'held': True}


def require_apart(data: Mapping, cache: Path | None = None) -> None:
    """Raise if the images on which settings would be chosen contain copies of test images."""
    held, test = DATASETS.build(held_out(data)[1]), DATASETS.build(data['test'])
    found = copies(held, test, cache)
    if len(found) > TOLERATED * len(held):
        raise UserError(
            f'evaluation.val: {len(found)} of {len(held)} images on which settings are chosen are '
            f'also test images, such as {found[0][1]}; remove them from one of the two sets',
            code='val-in-test',
        )


def leaked_images(cfg: Config, settings: Any, sets: Mapping[str, tuple[dict, Dataset]]) -> int:
    """Return how many test images are exact copies of training images.

    Raises:
        UserError: If all of them are, or if validation images are copies of test images.
    """
    train, test = sets['train'][1], sets['test'][1]
    if settings.metric == 'none' or label_kind(test) == 'dense':
        return 0
    if settings.chooses(cfg) and cfg.evaluation.get('val'):
        require_apart(cfg.evaluation, settings.cache)
    found = copies(train, test, settings.cache)
    if len(found) == len(test):
        raise UserError(
            'evaluation: all test images are also training images; set other images under '
            'evaluation.test',
            code='train-is-test',
        )
    if found:
        warn(
            f'{len(found)} of {len(test)} test images are exact copies of training images, such as '
            f'{" and ".join(found[0])}; the scores are too high'
        )
    return len(found)


def copies(one: Dataset, other: Dataset, cache: Path | None = None) -> list[list[str]]:
    """Return the names of each image of `other` that equals an image of `one`, with that image.

    Only images of equal size are read, and only those with equal first 4 KB completely. The result
    is stored in the folder `cache`, so that two data sets are compared once.
    """
    path = cache and cache / f'copies_{key_of([one.fingerprint(), other.fingerprint()])}.json'
    if path and path.is_file():
        return read_json(path)
    rows = [np.arange(len(one)), np.arange(len(other))]
    sizes = [one.sizes(), other.sizes()]
    if sizes[0] is not None and sizes[1] is not None:
        rows = [np.flatnonzero(np.isin(*pair)) for pair in (sizes, sizes[::-1])]
    for count in (HEAD, None):
        first, second = (_digests(*side, count) for side in zip((one, other), rows))
        shared = set(first.values()) & set(second.values())
        rows = [[row for row in side if side[row] in shared] for side in (first, second)]
    twin = {digest: one.name(row) for row, digest in first.items()}
    pairs = [[other.name(row), twin[second[row]]] for row in rows[1]]
    if path:
        write_json(path, pairs)
    return pairs


def _digests(dataset: Dataset, rows: Sequence[int], count: int | None) -> dict[int, bytes]:
    """Return a digest of the first `count` bytes of each image, or of all bytes."""

    def digest(row: int) -> bytes:
        path = Path(dataset.name(row))
        try:
            if path.is_file():
                with path.open('rb') as file:
                    content = file.read(count)
            else:
                content = dataset.encoded(row)[:count]
        except (OSError, UnreadableImage):
            content = os.urandom(32)  # an unreadable image equals no other image
        return hashlib.sha256(content).digest()

    rows = list(map(int, rows))
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(rows, pool.map(digest, rows)))


def refit(data: Mapping) -> dict:
    """Return the config of the images on which the final classifier is trained.

    If `train` and `val` are splits of one data set, the images of both are used.
    """
    if data.get('val'):
        train, val = (with_views(data[name], None) for name in ('train', 'val'))
        splits = [part.pop('split', None) for part in (train, val)]
        if splits == ['train', 'val'] and train == val:
            return {**copy.deepcopy(data['train']), 'split': 'train+val'}
    return data['train']


def with_views(described: Mapping, views: Sequence | None) -> dict:
    """Return a copy of a data set's config with these views, or without views."""
    described = copy.deepcopy(described)
    inner = innermost(described)
    inner.pop('views', None)
    if views is not None:
        inner['views'] = [list(view) for view in views]
    return described


def innermost(described: Mapping) -> Mapping:
    """Return the config of the data set that contains the images, without wrappers."""
    while 'dataset' in described:
        described = described['dataset']
    return described
