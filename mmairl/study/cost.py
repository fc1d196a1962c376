"""Estimate the hours and the disk space of a study before its first run starts.

Counting the work of a model takes seconds and depends only on the model and on the code, so counts are stored in the user's
cache folder.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec
import torch
from mmengine.config import Config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves  # private, because torch's public counter has no bytes

from mmairl import hardware
from mmairl.data.preprocess import channels_of
from mmairl.errors import UserError
from mmairl.evaluation.identity import key_of, versions
from mmairl.evaluation.sets import innermost
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json
from mmairl.registry import MODELS
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row

BYTES = 4  # of a float32
# float32 FLOPs in the time of moving one byte: by their data sheets, 17 on a V100 and 10 on an A100.
BALANCE = 15
CHANNELS = 3
COUNTED_BY = ('torch', 'mmengine', 'mmpretrain')  # packages whose versions counts depend on


@dataclass(frozen=True)
class RunCost:
    """The cost of one run, without the tasks after pre-training.

    Args:
        epochs: Epochs over the scale's images, even if the row trains on a part of them.
        hours: Hours on one device, from the scale's rate and the work of the row relative to the scale's `rate_of`.
        gigabytes: The size of the checkpoints that the run keeps.
    """

    epochs: float
    hours: float
    gigabytes: float

    def times(self, runs: int) -> 'RunCost':
        """Return the cost of several runs. The epochs remain those of one run."""
        return RunCost(self.epochs, self.hours * runs, self.gigabytes * runs)

    def after(self, epochs: float) -> 'RunCost':
        """Return the cost of the rest of a run."""
        remaining = self.epochs - epochs
        return RunCost(remaining, self.hours * remaining / self.epochs, self.gigabytes)


@dataclass(frozen=True)
class ImageWork:
    """The work per image.

    Args:
        flops: FLOPs, two for each multiply-add.
        bytes: Bytes that are read and written in float32.
    """

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """The time in units of FLOPs. Bytes are included, because norms have few FLOPs and much memory traffic."""
        return self.flops + BALANCE * self.bytes


def cost(cfg: Config, scale: Scale, more_checkpoints: int = 0) -> RunCost:
    """Return the cost of one run of a config at a scale.

    Args:
        cfg: The config.
        scale: The scale.
        more_checkpoints: The number of checkpoints that the run keeps for other runs.
    """
    own = work_per_image(cfg)
    reference = reference_work(scale)
    relative = own.time / reference.time if own and reference else 1.0
    seen = epochs(cfg, scale.images)
    seconds = seen * scale.images * relative / scale.rate
    checkpoints = max(1, cfg.default_hooks.checkpoint.get('max_keep_ckpts', -1)) + more_checkpoints
    return RunCost(seen, seconds / 3600, checkpoint_bytes(cfg) * checkpoints / 1e9)


def reference_work(scale: Scale) -> ImageWork | None:
    """Return the work of the config to which the scale's rate applies."""
    return _reference_work(msgspec.json.encode(scale))


@cache
def _reference_work(scale: bytes) -> ImageWork | None:
    sizes = msgspec.json.decode(scale, type=Scale)
    return work_per_image(resolve(Row('', sizes.rate_of), sizes))


def flops(configs: Mapping[str, Config]) -> dict[str, float]:
    """Return the training FLOPs of each run per image of its data set, or its epochs if some FLOPs cannot be counted."""
    counted = {name: flops_per_image(cfg) for name, cfg in configs.items()}
    if not all(counted.values()):
        counted = dict.fromkeys(configs, 1)
    return {name: counted[name] * epochs(cfg) for name, cfg in configs.items()}


def epochs(cfg: Config, images: int = 1) -> float:
    """Return the number of epochs of a run. A length in iterations is divided by the training set's `images`."""
    fixed = cfg.train_cfg.get('max_epochs')
    return fixed or cfg.train_cfg.max_iters * cfg.total_batch_size / images


def flops_per_image(cfg: Config) -> int | None:
    work = work_per_image(cfg)
    return work and work.flops


def work_per_image(cfg: Config) -> ImageWork | None:
    """Return the work of a training step per image, with all views, the teacher and the backward pass.

    None if the config does not state the size of the views, or if the step depends on values of tensors.
    """
    sizes = view_sizes(cfg)
    if not sizes or None in sizes:
        return None
    batch = cfg.get('total_batch_size') or cfg.train_dataloader.batch_size
    return counted_work(cfg.model.to_dict(), sizes, batch, outside_sources(cfg))


def view_sizes(cfg: Config) -> list[int | None]:
    """Return the size of each view after its transforms in the worker and on the device; None if no transform states it."""
    in_worker = innermost(cfg.train_dataloader.dataset).get('views') or []
    on_device = (cfg.model.get('data_preprocessor') or {}).get('views') or []
    sizes = []
    for first, second in zip_longest(in_worker, on_device, fillvalue=[]):
        stated = [step['size'] for step in [*first, *second] if isinstance(step.get('size'), int)]
        sizes.append(stated[-1] if stated else None)
    return sizes


def counted_work(
    model: Mapping[str, Any], sizes: Sequence[int], batch: int, sources: Mapping[str, str]
) -> ImageWork | None:
    """Return the work of a step per image.

    Args:
        model: The model's config.
        sizes: The size of each view.
        batch: The batch size to count with.
        sources: Digests of the modules outside the package that the model uses.
    """
    subject = dict(model=model, sizes=sizes, batch=batch, sources=sources)
    counted = remembered(subject, lambda: _count_work(model, sizes, batch))
    return counted and ImageWork(**counted)


def checkpoint_bytes(cfg: Config) -> int:
    """Return the size of a model's weights and of the momentum of its trained weights."""
    model = cfg.model.to_dict()
    subject = dict(checkpoint=model, sources=outside_sources(cfg))
    return remembered(subject, lambda: _count_bytes(model))


COUNTS: dict[str, Any] = {}  # the counts that this process has used, by key


def remembered(subject: Mapping[str, Any], count: Callable[[], Any]) -> Any:
    """Return a count from the user's cache folder, or count and store it. `subject` holds its inputs, apart from code."""
    key = key_of({**subject, 'code': counting_code()})
    if key not in COUNTS:
        path = hardware.cache() / 'plans' / f'{key}.json'
        with suppress(UserError):  # the file does not exist, or is unreadable
            COUNTS[key] = read_json(path)
            return COUNTS[key]
        COUNTS[key] = count()
        with suppress(UserError, OSError):  # without a cache, counting is only slower
            write_json(path, COUNTS[key])
    return COUNTS[key]


@cache
def counting_code() -> str:
    """Return a digest of the code and the package versions that counts depend on."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256(json.dumps(versions(COUNTED_BY)).encode())
    for path in [*sorted((package / 'models').rglob('*.py')), Path(__file__)]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _count_bytes(config: Mapping[str, Any]) -> int:
    model = MODELS.build(dict(config))
    values = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    values += [param for param in model.parameters() if param.requires_grad]
    return BYTES * sum(value.numel() for value in values)


def _count_work(config: Mapping[str, Any], sizes: Sequence[int], batch: int) -> dict | None:
    """Count on meta tensors, which compute nothing. If the head reads their values, count the networks only."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    model = MODELS.build(dict(config)).to('meta')
    for head in (getattr(model, 'head', None), UncountedHead()):
        model.head = head
        with torch.device('meta'), FlopCounterMode(display=False) as counter, BytesMoved() as moved:
            channels = channels_of(model.backbone) or CHANNELS
            label = torch.zeros(batch, dtype=torch.int64)
            views = [torch.empty(batch, channels, size, size) for size in sizes]
            try:
                loss = model(views, dict(label=label), mode='loss')['loss']
                if loss.requires_grad:
                    loss.backward()
            except RuntimeError:  # the step reads a value
                continue
        return dict(flops=counter.get_total_flops() // batch, bytes=moved.total // batch)
    return None


class BytesMoved(TorchDispatchMode):
    """Counts the bytes that each operator reads and writes, as if there were no cache."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and 'empty' not in func.name():
            for leaf in tree_leaves((args, result)):
                if isinstance(leaf, torch.Tensor):
                    self.total += leaf.nbytes
        return result


class UncountedHead(nn.Module):
    """Replaces a head that reads values, so that at least the work of the networks is counted."""

    def forward(self, q: Mapping[int, torch.Tensor], *_: object) -> dict[str, torch.Tensor]:
        return dict(loss=sum(z.sum() for z in q.values()))
