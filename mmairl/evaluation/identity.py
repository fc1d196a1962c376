"""The identity of a number is all that it depends on: made by `identity_of`, compared by `difference`, named by `key_of`.

An identity is a nested dictionary of plain values, which is stored beside the result. Two results with equal identities are the
same measurement; a result with another identity is never returned and never mixed. Nothing is in it that does not change
the number: no path, no number of workers, no device. Data that are not on this machine are ABSENT, which counts as unchanged;
data that are there and cannot be looked at are UNKNOWN, which equals nothing.

Results of earlier versions do not record their source code (SOURCES). They stay readable: their other parts are compared, and
`is_verified` is False, so that pages can label them "identity unknown".
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine import Config
from PIL import features as pillow
from torch import Tensor
from torch.utils.data import Dataset

import mmairl
from mmairl.checkpoints.read import Backbone
from mmairl.config import flat, walk
from mmairl.errors import UserError
from mmairl.evaluation.sets import PARTS, described_sets, innermost, precision_of, with_views
from mmairl.evaluation.sources import outside_sources, protocol_source
from mmairl.io import read_json, write_json
from mmairl.registry import DATASETS

REVISION = 5  # of our code; raise it with a change that changes what is measured
PACKAGES = (
    'torch',
    'torchvision',
    'mmengine',
    'mmpretrain',
    'onedl-mmpretrain',
    'scikit-learn',
    'pillow',
    'simplejpeg',
)
WHOLE = 256 * 2**20  # bytes; what is smaller is read whole, of the rest every name, size and time
THREADS = 16  # that wait for a network disk
NAME = 'identity.json'
PLACES = ('root', 'data_root', 'cache', 'cache_size')  # where images lie, and copies of them: they count by content
RESULTS = ('scores.json', 'last_checkpoint')  # what a run leaves in its folder
ABSENT = 'not on this machine'
UNKNOWN = 'unknown: '
FILE = 'file '
SOURCES = 'sources'
FEATURE_CODE = ('features', 'backbone')  # files of this folder that turn images into features
# By a digest of weights: those that earlier versions gave the same weights. For comparison with stored identities.
EARLIER: dict[str, set[str]] = {}


def identity_of(
    cfg: Config,
    protocol: str,
    subject: Backbone | str,
    settings: Any,
    asked: Mapping[str, Any] | None = None,
    data: Callable[[Mapping], dict] | None = None,
) -> dict[str, Any]:
    """Return all that a result of `evaluate` depends on.

    Args:
        subject: a checkpoint's backbone, or a baseline's name.
        settings: of the protocol; their `identity` says what of them decides the number.
        asked: what else was asked of whoever measures, such as the way in which a study made the weights.
        data: in place of `data_identity`, for data sets that have been looked at before.
    """
    network = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
    normal, sets = cfg.model.data_preprocessor, described_sets(cfg, protocol)
    # Left out where it is the usual one, so that results of before there was a choice are still the same measurement.
    groups = dict(groups=config_identity(cfg.evaluation.groups)) if 'groups' in cfg.evaluation else {}
    precision = {} if precision_of(cfg) == 'float32' else dict(precision=precision_of(cfg))
    return dict(
        protocol=dict(name=protocol, **settings.identity(cfg, protocol, subject), **groups),
        weights=subject if isinstance(subject, str) else weights_identity(subject.weights),
        network='none' if subject == 'pixels' else config_identity(network),
        input=dict(mean=list(normal.mean), std=list(normal.std), **precision),
        # Not as the protocol joins them: so two protocols on the same images say the same.
        data={part: (data or data_identity)(cfg.evaluation[part]) for part in PARTS if part in cfg.evaluation},
        views={name: config_identity(innermost(described).get('views')) for name, described in sets.items()},
        code=code_identity(),
        sources=dict(protocol=protocol_source(protocol, settings.implementation), imports=outside_sources(cfg)),
        **(dict(asked=config_identity(asked)) if asked else {}),
    )


def features_key(identity: Mapping[str, Any], name: str, described: Mapping[str, Any]) -> str:
    """Name the features of one data set of an evaluation, by what they depend on."""
    parts = [name, 'val'] if described.get('split') == 'train+val' and 'val' in identity['data'] else [name]
    shared = {key: identity[key] for key in ('weights', 'network', 'input', 'code')}
    shared['sources'] = dict(identity[SOURCES], protocol=protocol_source('features', FEATURE_CODE))
    return key_of(dict(**shared, views=identity['views'][name], data=[identity['data'][part] for part in parts]))


def weights_identity(weights: Mapping[str, Tensor]) -> str:
    """Return a digest of the names, shapes and float32 values of a network's weights, whatever the file format or precision.

    Batch counters are left out: some formats lack them, and no output depends on them.
    """
    digest = hashlib.sha256()
    for name, tensor in _sorted_weights(weights):
        digest.update(f'{name} {tuple(tensor.shape)}\n'.encode())
        digest.update(_bytes(tensor.detach().float()))
    found = digest.hexdigest()[:16]
    EARLIER.setdefault(found, set()).add(_earlier_weights_identity(weights))
    return found


def _earlier_weights_identity(weights: Mapping[str, Tensor]) -> str:
    """Return the digest that versions up to revision 5 stored."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}\n'.encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:16]


def _sorted_weights(weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in sorted(weights.items()) if not name.endswith('num_batches_tracked')]


def data_identity(described: Mapping[str, Any], dataset: Dataset | None = None) -> dict[str, Any]:
    """Return a data set's settings, but for its views, and a digest of the images that it picks, their labels and classes.

    The digest covers the labels and arrays in memory, and the files: of up to 256 MiB every byte; of more, every name below
    the root, size and time of change. So one thing goes unnoticed: a file of a large set that is rewritten with its size
    and time kept.
    """
    settings = config_identity(with_views(described, None))
    if dataset is None:
        try:
            dataset = DATASETS.build(dict(described))
        except Exception as error:  # a class of the user's can fail in any way
            content = ABSENT if is_absent(described) else f'{UNKNOWN}{error}'
            return dict(settings=settings, content=content, images=content)
    digest, rows, images = hashlib.sha256(), np.arange(len(dataset)), len(dataset)
    while True:
        arrays = {name: x for name, x in sorted(vars(dataset).items()) if isinstance(x, (Tensor, np.ndarray))}
        arrays.pop('files', None)  # they are digested one by one
        for name, value in arrays.items():
            digest.update(f'{name}{value.dtype} {tuple(value.shape)}\n'.encode())
            if isinstance(value, np.memmap) and value.filename and value.nbytes > WHOLE:
                _add_file(digest, value.filename)
            else:
                digest.update(_bytes(value))
        digest.update(json.dumps([str(name) for name in getattr(dataset, 'classes', ())]).encode())
        if not hasattr(dataset, 'dataset'):
            break
        rows = np.asarray(getattr(dataset, 'indices', np.arange(len(dataset))))[rows]
        dataset = dataset.dataset
    digest.update(_bytes(rows))
    if hasattr(dataset, 'sets'):
        digest.update(json.dumps([data_identity({}, part)['content'] for part in dataset.sets.values()]).encode())
    elif hasattr(dataset, 'contents'):  # its images lie in shards
        shards, stamps = dataset.contents.shards, dataset.contents.stamps
        if '://' in shards[0]:  # far away
            told = [(os.path.basename(shard), *stamp) for shard, stamp in zip(shards, stamps)]
            digest.update(json.dumps(told).encode())
        else:
            digest.update(files_identity(shards, os.path.commonpath(list(map(os.path.dirname, shards)))).encode())
    elif hasattr(dataset, 'path'):
        paths = [os.fspath(dataset.path(int(row))) for row in rows]
        digest.update(files_identity(paths, getattr(dataset, 'root', '/')).encode())
    elif set(arrays) <= {'labels'}:  # a class that does not say where its images are
        for place in (str(value) for keys, value in walk(dict(described)) if keys and _is_location(keys[-1], value)):
            paths = sorted(os.path.join(at, name) for at, _, names in os.walk(place) for name in names) or [place]
            digest.update(files_identity(paths, place).encode())
    return dict(settings=settings, content=digest.hexdigest()[:16], images=images)


def is_absent(described: Mapping[str, Any]) -> bool:
    """Whether a place of images that a data set names is not there, or is empty, as where a disk is not mounted."""
    roots = [value for keys, value in walk(dict(described)) if 'root' in keys and isinstance(value, (str, Path))]
    for root in roots:
        fixed = re.split(r'[*?\[{]', str(root))[0]  # of a pattern of shards, the folder
        place = fixed if fixed == str(root) else os.path.dirname(fixed) or '.'
        listable = os.path.isdir(place) and os.access(place, os.R_OK)
        if '://' not in place and (not os.path.exists(place) or (listable and not os.listdir(place))):
            return True
    return False


def files_identity(paths: Sequence[str], root: str | Path) -> str:
    """A digest of files by name below `root`, and by their bytes or, above 256 MiB, by size and time."""
    digest, inside = hashlib.sha256(), os.path.join(root, '')
    with ThreadPoolExecutor(THREADS) as pool:
        blocks = [paths[at : at + 1024] for at in range(0, len(paths), 1024)]  # a million tasks would take long
        stats = [stat for block in pool.map(lambda block: list(map(_stat, block)), blocks) for stat in block]
    whole = sum(size for size, _ in stats) <= WHOLE
    for path, (size, changed) in zip(paths, stats):
        name = os.fspath(path).removeprefix(inside)
        digest.update(f'{name} {size} {"" if whole else changed}\n'.encode(errors='surrogateescape'))
        if whole:
            _add_file(digest, path)
    return digest.hexdigest()[:16]


def config_identity(value: Any, key: str = '') -> Any:
    """A config as plain values, where a file that is named counts by its content, and a place of images not at all."""
    if isinstance(value, Mapping):
        kept = [(name, inner) for name, inner in sorted(value.items()) if name not in PLACES]
        return {str(name): config_identity(inner, str(name)) for name, inner in kept}
    if isinstance(value, (list, tuple)):
        return [config_identity(inner) for inner in value]
    if _is_location(key, value):
        if os.path.isdir(value):
            return 'a folder'
        _add_file(digest := hashlib.sha256(), value)
        return f'{FILE}{digest.hexdigest()[:16]}'
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def code_identity() -> dict[str, str]:
    """The versions of what turns files into numbers, the image decoder and its back end included."""
    code = {'mmairl': f'{mmairl.__version__}, revision {REVISION}', **versions(PACKAGES)}
    turbo = pillow.check_feature('libjpeg_turbo')
    code['jpeg'] = f'libjpeg-turbo {pillow.version("libjpeg_turbo")}' if turbo else f'libjpeg {pillow.version("jpg")}'
    return code


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def key_of(identity: Mapping[str, Any]) -> str:
    """16 hexadecimal digits that stand for the identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def difference(there: Mapping[str, Any], here: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """Say what differs between two identities, `but` for some of their parts; '' where nothing does.

    >>> difference(dict(weights='3f2a', k=20, code='1'), dict(weights='9b1c', k=20, code='2'), but=['code'])
    'weights (3f2a there, 9b1c here)'
    """
    but = {*but, *({SOURCES} - there.keys())}  # not recorded by earlier versions
    old, new = (
        flat(json.loads(json.dumps({name: value for name, value in side.items() if name not in but})))
        for side in (there, here)
    )
    absent = tuple(name.removesuffix('content') for name in [*old, *new] if ABSENT in (old.get(name), new.get(name)))

    def differs(name: str) -> bool:
        values = old.get(name), new.get(name)
        if name.startswith(absent) and (ABSENT in values or any(str(value).startswith(FILE) for value in values)):
            return False  # files that data are listed in are absent with them
        if str(values[0]) in EARLIER.get(str(values[1]), ()):
            return False
        return values[0] != values[1] or str(values[1]).startswith(UNKNOWN)

    names = list(filter(differs, dict.fromkeys([*old, *new])))
    words = [f'{name} ({old.get(name, "nothing")} there, {new.get(name, "nothing")} here)' for name in names[:2]]
    return ' and '.join(words) + (f' and {len(names) - 2} more' if len(names) > 2 else '')


def is_verified(identity: Mapping[str, Any]) -> bool:
    """Return whether an identity records its source code; those of earlier versions do not."""
    return SOURCES in identity


def claim(folder: Path, identity: Mapping[str, Any], results: Sequence[str] = RESULTS) -> None:
    """Mark a folder as this result's; refuse one that holds another's, before anything in it is touched."""
    path = folder / NAME
    if path.is_file():
        if differs := difference(read_json(path), identity):
            raise UserError(
                f'{folder} holds another result, which differs in {differs}; name another folder (--work-dir), '
                'remove this one, or replace it by --remeasure'
            )
        return
    if left := [name for name in results if (folder / name).exists()]:
        raise UserError(
            f'{folder} holds {left[0]} and no {NAME}, so what it measured is not known; name another folder '
            '(--work-dir), or remove this one'
        )
    write_json(path, identity)


def _bytes(values: Tensor | np.ndarray) -> bytes | memoryview:
    if isinstance(values, Tensor):
        values = values.detach().cpu().reshape(-1).view(torch.uint8).numpy() if values.numel() else np.empty(0)
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _stat(path: str | Path) -> tuple[int, int]:
    """Size and time of change; -1 and 0 of what is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, 0
    return status.st_size, status.st_mtime_ns


def _add_file(digest: Any, path: str | Path) -> None:
    """All bytes of a file, or size and time of change of one that is large."""
    size, changed = _stat(path)
    if size > WHOLE:
        digest.update(f'{size} {changed}\n'.encode())
        return
    try:
        digest.update(Path(path).read_bytes())
    except OSError as error:
        digest.update(f'unreadable: {error.errno}'.encode())


def _is_location(key: str, value: Any) -> bool:
    """Whether a value of a config names a file or folder that is there, and not a split or a class."""
    return isinstance(value, (str, Path)) and (key in ('root', 'csv') or os.sep in str(value)) and os.path.exists(value)
