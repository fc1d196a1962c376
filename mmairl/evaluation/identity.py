"""Record the identity of a result: everything that its scores depend on.

An identity is a nested dictionary of plain values, stored with the result. `identity_of` creates an identity, `difference`
compares two identities, and `key_of` returns a short digest. A stored result is reused only if its identity equals that of
the requested measurement. Settings that cannot change a score are not part of the identity: paths, worker count, device.
Data that are missing on this machine are recorded as ABSENT and count as unchanged. Data that exist but cannot be read are
recorded as UNKNOWN and count as changed.

Results of earlier versions have no digests of the source code (the key SOURCES). For them, only the other keys are compared.
`is_verified` returns False for these results, so that pages can label them "identity unknown".
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
from mmairl.evaluation.overlap import file_stat, in_threads
from mmairl.evaluation.sets import PARTS, described_sets, innermost, precision_of, with_views
from mmairl.evaluation.sources import key_of, outside_sources, protocol_source, room_source
from mmairl.io import read_json, write_json
from mmairl.registry import DATASETS

# Increment this number if a change outside the modules of the protocols changes scores.
REVISION = 5
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
# If files have more bytes than this in total, their digest covers names, sizes and modification times, but not the content.
WHOLE = 256 * 2**20
NAME = 'identity.json'
# Config keys of locations and caches. They are not part of an identity, because images are identified by their content.
PLACES = ('root', 'data_root', 'cache', 'cache_size')
RESULTS = ('scores.json', 'last_checkpoint')  # files that show that a run has used a folder
ABSENT = 'not on this machine'
UNKNOWN = 'unknown: '
FILE = 'file '
SOURCES = 'sources'
FEATURE_CODE = ('features', 'backbone')  # modules of this package that extract features from images
# Maps the digest of a model's weights to the digests that earlier versions computed for the same weights.
EARLIER: dict[str, set[str]] = {}


def identity_of(
    cfg: Config,
    settings: Any,
    subject: Backbone | str,
    asked: Mapping[str, Any] | None = None,
    data: Callable[[Mapping], dict] | None = None,
) -> dict[str, Any]:
    """Return everything that a result of `evaluate` depends on.

    Args:
        cfg: The config that defines the network and the data.
        settings: The protocol with its settings.
        subject: The backbone of a checkpoint, or the name of a baseline.
        asked: Further facts that the result depends on, such as how a study trained the weights.
        data: A function to call instead of `data_identity`, for example to reuse data sets that are already built.
    """
    network = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
    normal = cfg.model.data_preprocessor
    sets = described_sets(cfg, settings.name)
    protocol = dict(name=settings.name, **settings.identity(cfg, subject))
    images = dict(mean=list(normal.mean), std=list(normal.std))
    # These options are recorded only if they differ from their defaults. Results of earlier versions, which did not have
    # these options, then still match.
    if 'groups' in cfg.evaluation:
        protocol['groups'] = config_identity(cfg.evaluation.groups)
    if precision_of(cfg) != 'float32':
        images['precision'] = precision_of(cfg)
    identity = dict(
        protocol=protocol,
        weights=subject if isinstance(subject, str) else weights_identity(subject.weights),
        network='none' if subject == 'pixels' else config_identity(network),
        input=images,
        # The data sets are recorded before a protocol joins some of them, so that this entry is the same for all protocols.
        data={
            part: (data or data_identity)(cfg.evaluation[part])
            for part in PARTS
            if part in cfg.evaluation
        },
        views={
            name: config_identity(innermost(described).get('views'))
            for name, described in sets.items()
        },
        code=code_identity(),
        sources=dict(protocol=protocol_source(type(settings)), imports=outside_sources(cfg)),
    )
    if asked:
        identity['asked'] = config_identity(asked)
    return identity


def features_key(identity: Mapping[str, Any], name: str, described: Mapping[str, Any]) -> str:
    """Return a digest of everything that the features of a data set depend on. It serves as the file name of the features."""
    joined = described.get('split') == 'train+val' and 'val' in identity['data']
    parts = [name, 'val'] if joined else [name]
    shared = {key: identity[key] for key in ('weights', 'network', 'input', 'code')}
    shared['sources'] = dict(identity[SOURCES], protocol=room_source(FEATURE_CODE))
    shared['views'] = identity['views'][name]
    shared['data'] = [identity['data'][part] for part in parts]
    return key_of(shared)


def weights_identity(weights: Mapping[str, Tensor]) -> str:
    """Return a digest of the names, shapes and float32 values of weights.

    The digest does not depend on the file format. The batch counters of batch norm are not covered, because some formats
    lack them and no output depends on them.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if name.endswith('num_batches_tracked'):
            continue
        digest.update(f'{name} {tuple(tensor.shape)}\n'.encode())
        digest.update(_bytes(tensor.detach().float()))
    key = digest.hexdigest()[:16]
    EARLIER.setdefault(key, set()).add(_earlier_weights_identity(weights))
    return key


def _earlier_weights_identity(weights: Mapping[str, Tensor]) -> str:
    """Return the digest that earlier versions computed for these weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f'{name} {tensor.dtype} {tuple(tensor.shape)}\n'.encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()[:16]


def data_identity(described: Mapping[str, Any], dataset: Dataset | None = None) -> dict[str, Any]:
    """Return the settings and the number of images of a data set, and a digest of its images, labels and classes.

    The settings do not include the views, which state how images are preprocessed. The digest covers the labels, the arrays in
    memory, and the files. If the files have at most 256 MiB in total, it covers their bytes. Otherwise, it covers only the
    name, size and modification time of each file, and a change goes unnoticed if a file is rewritten with the same size and
    modification time. If the data set cannot be built, ABSENT or a text that begins with UNKNOWN replaces the digest and the
    number of images.

    Args:
        described: The config of the data set.
        dataset: The data set, if it is already built.
    """
    settings = config_identity(with_views(described, None))
    if dataset is None:
        try:
            dataset = DATASETS.build(dict(described))
        except Exception as error:  # The class may be user code, which can raise any exception.
            content = ABSENT if is_absent(described) else f'{UNKNOWN}{error}'
            return dict(settings=settings, content=content, images=content)
    digest = hashlib.sha256()
    rows = np.arange(len(dataset))
    images = len(dataset)
    while True:
        arrays = _add_arrays(digest, dataset)
        classes = list(map(str, getattr(dataset, 'classes', ())))
        digest.update(json.dumps(classes).encode())
        if not hasattr(dataset, 'dataset'):
            break
        if hasattr(dataset, 'indices'):
            rows = np.asarray(dataset.indices)[rows]
        dataset = dataset.dataset
    digest.update(_bytes(rows))
    _add_images(digest, described, dataset, rows, arrays)
    return dict(settings=settings, content=digest.hexdigest()[:16], images=images)


def _add_arrays(digest: Any, dataset: Dataset) -> set[str]:
    """Add the arrays of a data set to the digest and return their names.

    The array `files` is skipped, because `_add_images` adds the files themselves.
    """
    added = set()
    for name, value in sorted(vars(dataset).items()):
        if name == 'files' or not isinstance(value, (Tensor, np.ndarray)):
            continue
        added.add(name)
        digest.update(f'{name}{value.dtype} {tuple(value.shape)}\n'.encode())
        if isinstance(value, np.memmap) and value.filename and value.nbytes > WHOLE:
            _add_file(digest, value.filename)
        else:
            digest.update(_bytes(value))
    return added


def _add_images(
    digest: Any, described: Mapping, dataset: Dataset, rows: np.ndarray, arrays: set[str]
) -> None:
    """Add the images of `dataset`, which wraps no other data set, to the digest."""
    if hasattr(dataset, 'shards'):
        digest.update(dataset.fingerprint().encode())
    elif hasattr(dataset, 'path'):
        paths = [os.fspath(dataset.path(int(row))) for row in rows]
        if hasattr(dataset, 'target_path'):
            paths += [os.fspath(dataset.target_path(int(row))) for row in rows]
        digest.update(files_identity(paths, getattr(dataset, 'root', '/')).encode())
    elif arrays <= {'labels'}:
        # The class does not state where its images are, so all files below the paths in its config are added.
        for keys, value in walk(dict(described)):
            if keys and _is_location(keys[-1], value):
                place = str(value)
                paths: list[str] = []
                for folder, _, names in os.walk(place):
                    paths += [os.path.join(folder, name) for name in names]
                digest.update(files_identity(sorted(paths) or [place], place).encode())


def is_absent(described: Mapping[str, Any]) -> bool:
    """Return whether a folder of a data set is missing or empty, for example because a disk is not mounted."""
    for keys, value in walk(dict(described)):
        if (
            not {'root', 'data_root'} & set(keys)
            or not isinstance(value, (str, Path))
            or '://' in str(value)
        ):
            continue
        fixed = re.split(r'[*?\[{]', str(value))[0]  # the part of the path before wildcards
        place = fixed if fixed == str(value) else os.path.dirname(fixed) or '.'
        if not os.path.exists(place):
            return True
        if os.path.isdir(place) and os.access(place, os.R_OK) and not os.listdir(place):
            return True
    return False


def files_identity(paths: Sequence[str], root: str | Path) -> str:
    """Return a digest of the names of files below `root`, their sizes and their bytes.

    If the files have more than 256 MiB in total, the digest covers their modification times instead of their bytes.
    """
    digest = hashlib.sha256()
    inside = os.path.join(root, '')
    stats = in_threads(file_stat, paths)
    whole = sum(size for size, _ in stats) <= WHOLE
    for path, (size, changed) in zip(paths, stats):
        name = os.fspath(path).removeprefix(inside)
        line = f'{name} {size} {"" if whole else changed}\n'
        digest.update(line.encode(errors='surrogateescape'))
        if whole:
            _add_file(digest, path)
    return digest.hexdigest()[:16]


def config_identity(value: Any, key: str = '') -> Any:
    """Return a config as plain values. The path of a file becomes a digest of the file, and keys in PLACES are omitted."""
    if isinstance(value, Mapping):
        plain = {}
        for name, inner in sorted(value.items()):
            if name not in PLACES:
                plain[str(name)] = config_identity(inner, str(name))
        return plain
    if isinstance(value, (list, tuple)):
        return [config_identity(inner) for inner in value]
    if _is_location(key, value):
        if os.path.isdir(value):
            return 'a folder'
        digest = hashlib.sha256()
        _add_file(digest, value)
        return f'{FILE}{digest.hexdigest()[:16]}'
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def code_identity() -> dict[str, str]:
    """Return the versions of mmairl, of the packages that scores depend on, and of the JPEG decoder."""
    code = {'mmairl': f'{mmairl.__version__}, revision {REVISION}', **versions(PACKAGES)}
    if pillow.check_feature('libjpeg_turbo'):
        code['jpeg'] = f'libjpeg-turbo {pillow.version("libjpeg_turbo")}'
    else:
        code['jpeg'] = f'libjpeg {pillow.version("jpg")}'
    return code


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of the given packages. Packages that are not installed are omitted."""
    installed = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed


def difference(
    saved: Mapping[str, Any], current: Mapping[str, Any], ignored: Collection[str] = ()
) -> str:
    """Return text that names the differences between two identities, or '' if they match. `ignored` keys are not compared.

    >>> difference(dict(weights='3f2a', k=20, code='1'), dict(weights='9b1c', k=20, code='2'), ignored=['code'])
    'weights (3f2a vs. 9b1c)'
    """
    if SOURCES not in saved:
        ignored = [*ignored, SOURCES]  # Earlier versions did not record digests of the source code.
    old = _flat(saved, ignored)
    new = _flat(current, ignored)
    names = dict.fromkeys([*old, *new])
    without_content = [name for name in names if ABSENT in (old.get(name), new.get(name))]
    absent = tuple(name.removesuffix('content') for name in without_content)

    def differs(name: str) -> bool:
        before = old.get(name)
        now = new.get(name)
        is_file = str(before).startswith(FILE) or str(now).startswith(FILE)
        if name.startswith(absent) and (is_file or ABSENT in (before, now)):
            return False  # If images are absent, the images and the files that list them count as unchanged.
        if str(before) in EARLIER.get(str(now), ()):
            return False
        return before != now or str(now).startswith(UNKNOWN)

    differing = [name for name in names if differs(name)]
    words = [
        f'{name} ({old.get(name, "absent")} vs. {new.get(name, "absent")})'
        for name in differing[:2]
    ]
    more = f' and {len(differing) - 2} more' if len(differing) > 2 else ''
    return ' and '.join(words) + more


def _flat(identity: Mapping[str, Any], ignored: Collection[str]) -> dict[str, Any]:
    """Return the values of an identity as JSON would store them. The keys of nested values are joined by dots."""
    parts = {name: value for name, value in identity.items() if name not in ignored}
    return flat(json.loads(json.dumps(parts)))


def is_verified(identity: Mapping[str, Any]) -> bool:
    """Return whether an identity records its source code. Identities of earlier versions do not."""
    return SOURCES in identity


def claim(folder: Path, identity: Mapping[str, Any], results: Sequence[str] = RESULTS) -> None:
    """Reserve a folder for one result by writing its identity there.

    Raises:
        UserError: If the folder contains another result, or a result without an identity. The folder is then not changed.
    """
    path = folder / NAME
    if path.is_file():
        if differs := difference(read_json(path), identity):
            raise UserError(
                f'{folder}: contains another result, which differs in {differs}; use another folder (--work-dir), remove this '
                'folder, or pass --remeasure to replace the result',
                code='other-result',
            )
        return
    for name in results:
        if (folder / name).exists():
            raise UserError(
                f'{folder}: {name} exists without {NAME}, so the settings and weights of this result are unknown; use another '
                'folder (--work-dir), or remove this folder',
                code='unknown-result',
            )
    write_json(path, identity)


def _bytes(values: Tensor | np.ndarray) -> bytes | memoryview:
    if isinstance(values, Tensor):
        # The bytes are viewed as integers, because NumPy does not have the type bfloat16.
        flat_values = values.detach().cpu().contiguous().view(-1)
        values = flat_values.view(torch.uint8).numpy()
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _add_file(digest: Any, path: str | Path) -> None:
    """Add the bytes of a file to the digest. For a file above 256 MiB, add its size and modification time instead."""
    size, changed = file_stat(path)
    if size > WHOLE:
        digest.update(f'{size} {changed}\n'.encode())
        return
    try:
        digest.update(Path(path).read_bytes())
    except OSError as error:
        digest.update(f'unreadable: {error.errno}'.encode())


def _is_location(key: str, value: Any) -> bool:
    """Return whether a config value is the path of an existing file or folder.

    Except under the keys `root` and `csv`, a path must contain a separator. Without this rule, the name of a split or class
    would count as a path if a file has the same name.
    """
    if not isinstance(value, (str, Path)):
        return False
    return (key in ('root', 'csv') or os.sep in str(value)) and os.path.exists(value)
