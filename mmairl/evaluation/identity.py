"""Record the identity of a result: everything that its scores depend on.

An identity is a nested dictionary of plain values, stored with the result. `identity_of` creates
it, and `key_of` returns a short digest. A stored result is reused only if
its identity equals that of the requested measurement. Settings that cannot change a score are not
part of it: paths, worker count, device.
"""

import hashlib
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from mmengine import Config
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.checkpoints.read import Backbone
from mmairl.evaluation.sets import PARTS, described_sets, innermost, with_views
from mmairl.evaluation.sources import SCORING, key_of, outside_sources, source_of
from mmairl.registry import DATASETS

PACKAGES = ('torch', 'torchvision', 'mmengine', 'mmpretrain', 'scikit-learn', 'pillow')
# Config keys of locations and caches. Images are identified by their content instead.
PLACES = ('root', 'data_root', 'cache', 'download')


def identity_of(
    cfg: Config,
    settings: Any,
    subject: Backbone | str,
    sets: Mapping[str, tuple[dict, Dataset]] | None = None,
) -> dict[str, Any]:
    """Return everything that a result of `evaluate` depends on.

    Args:
        cfg: The config that defines the network and the data.
        settings: The protocol with its settings.
        subject: The backbone of a checkpoint, or the name of a baseline.
        sets: The data sets that are already built, with their configs.
    """
    network = {key: value for key, value in cfg.model.backbone.items() if key != 'init_cfg'}
    normal = cfg.model.data_preprocessor
    views = {
        name: innermost(described).get('views')
        for name, described in described_sets(cfg, settings.name).items()
    }
    built = {str(with_views(each, None)): dataset for each, dataset in (sets or {}).values()}
    data = {}
    for part in PARTS:
        if described := cfg.evaluation.get(part):
            described = with_views(described, None)
            dataset = built.get(str(described)) or DATASETS.build(described)
            data[part] = dict(
                settings=config_identity(described),
                content=dataset.fingerprint()[:16],
                images=len(dataset),
            )
    identity = dict(
        protocol=dict(name=settings.name, **settings.identity(cfg, subject)),
        weights=subject if isinstance(subject, str) else weights_identity(subject.weights),
        network='none' if subject == 'pixels' else network,
        input=dict(mean=normal.mean, std=normal.std),
        data=data,
        views=views,
        groups=cfg.evaluation.get('groups'),
        held_out=cfg.evaluation.get('held_out') if settings.chooses(cfg) else None,
        code=dict(versions(), mmairl=source_of(*SCORING), **outside_sources(cfg)),
    )
    return config_identity(identity)


def features_key(identity: Mapping[str, Any], name: str, described: Mapping[str, Any]) -> str:
    """Return a digest of everything that the features of a data set depend on."""
    shared = {key: identity[key] for key in ('weights', 'network', 'input', 'code', 'data')}
    shared['part'] = [name, described.get('split'), identity['views'][name]]
    return key_of(shared)


def weights_identity(weights: Mapping[str, Tensor]) -> str:
    """Return a digest of the names, shapes and float32 values of weights.

    The digest does not depend on the file format. Batch counters of batch norm are not covered,
    because some formats lack them and no output depends on them.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        if not name.endswith('num_batches_tracked'):
            digest.update(f'{name} {tuple(tensor.shape)}\n'.encode())
            digest.update(tensor.detach().cpu().float().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def config_identity(value: Any) -> Any:
    """Return a config value as JSON stores it, without places, and with digests of files."""
    if isinstance(value, Mapping):
        items = {str(key): part for key, part in value.items() if key not in PLACES}
        return {key: config_identity(part) for key, part in items.items()}
    if isinstance(value, list | tuple):
        return [config_identity(part) for part in value]
    if isinstance(value, str | Path) and Path(value).suffix and Path(value).is_file():
        status = Path(value).stat()
        return f'file {_digest_of_file(str(value), status.st_size, status.st_mtime_ns)}'
    if callable(value):
        return f'{value.__module__}.{value.__qualname__}'
    return value if isinstance(value, int | float | None) else str(value)


@cache
def _digest_of_file(path: str, size: int, changed: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


def versions(packages: Collection[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the installed packages that can change scores."""
    found = {'cuda': str(torch.version.cuda)}
    for name in packages:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
