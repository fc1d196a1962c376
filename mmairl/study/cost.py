"""Estimate the hours and the disk space of a study before its first run starts.

A row of a study is one configuration, usually trained with several seeds. A scale is a set of changes that make all configs
of a study smaller.

The work of a model is counted in FLOPs and in bytes moved. Counting takes seconds and its result depends only on the model
and on the code, so results are stored in the user's cache folder.
"""

import hashlib
import json
import math
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

# The next two modules are private. They are needed, because torch's public counter counts FLOPs but no bytes.
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl import hardware
from mmairl.data.preprocess import channels_of
from mmairl.data.view_sets import expand_named_views
from mmairl.errors import UserError
from mmairl.evaluation.identity import key_of, versions
from mmairl.evaluation.sets import innermost
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json
from mmairl.registry import MODELS
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row

BYTES = 4  # the number of bytes of a float32 value
# The number of float32 FLOPs that take as long as moving one byte. According to the data sheets, it is 17 for a V100 and 10
# for an A100 with 80 GB.
BALANCE = 15
CHANNELS = 3
COUNTED_BY = ('torch', 'mmengine', 'mmpretrain')  # Counts depend on the versions of these packages.


@dataclass(frozen=True)
class RunCost:
    """The cost of pre-training in one run. The cost of measuring the tasks afterwards is not included.

    Args:
        epochs: The number of epochs. An epoch has the number of images that the scale states, even if the row trains on
            only a part of them.
        hours: The hours on one device. They are computed from the scale's rate (the images per second with the reference
            config `Scale.rate_of`), and from the row's work per image relative to that of the reference config.
        gigabytes: The size of the checkpoints that the run keeps.
    """

    epochs: float
    hours: float
    gigabytes: float

    def times(self, runs: int) -> 'RunCost':
        """Return the total cost of several runs. `epochs` remains the number of epochs of a single run."""
        return RunCost(self.epochs, self.hours * runs, self.gigabytes * runs)

    def after(self, epochs: float) -> 'RunCost':
        """Return the cost of the rest of a run, after its first `epochs` epochs."""
        remaining = self.epochs - epochs
        return RunCost(remaining, self.hours * remaining / self.epochs, self.gigabytes)


@dataclass(frozen=True)
class ImageWork:
    """The work per training image.

    Args:
        flops: The number of FLOPs, where a multiply-add counts as two.
        bytes: The number of bytes that operators read and write in float32.
    """

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """The estimated time, in units of the time of one FLOP.

        Moved bytes are included, because normalization layers have few FLOPs but much memory traffic.
        """
        return self.flops + BALANCE * self.bytes


def cost(cfg: Config, scale: Scale, more_checkpoints: int = 0) -> RunCost:
    """Return the cost of one run of a config.

    Args:
        cfg: The config, to which the scale has been applied.
        scale: The scale, whose rate and number of images are used.
        more_checkpoints: The number of checkpoints that the run also keeps because forks (rows that continue this
            run) start from them.
    """
    own = work_per_image(cfg)
    reference = reference_work(scale)
    relative = own.time / reference.time if own and reference else 1.0
    seen = epochs(cfg, scale.images)
    seconds = seen * scale.images * relative / scale.rate
    checkpoints = kept_checkpoints(cfg) + more_checkpoints
    return RunCost(seen, seconds / 3600, checkpoint_bytes(cfg) * checkpoints / 1e9)


def kept_checkpoints(cfg: Config) -> int:
    """Return the largest number of checkpoints that the checkpoint hook of a run keeps."""
    hook = cfg.default_hooks.checkpoint
    most = hook.get('max_keep_ckpts', -1)
    if most > 0:
        return most
    length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters
    interval = hook.get('interval', -1)
    return math.ceil(length / interval) if interval > 0 else 1


def reference_work(scale: Scale) -> ImageWork | None:
    """Return the work per image of the reference config `scale.rate_of`."""
    return _reference_work(msgspec.json.encode(scale))


@cache
def _reference_work(scale: bytes) -> ImageWork | None:
    sizes = msgspec.json.decode(scale, type=Scale)
    return work_per_image(resolve(Row('', sizes.rate_of), sizes))


def flops(configs: Mapping[str, Config]) -> dict[str, float]:
    """For each config, return a number that is proportional to the training FLOPs of a run.

    The number is the FLOPs per image times the length of training. The length is the number of epochs if the config states
    it, and otherwise the number of images that the run trains on. If the FLOPs per image of any config cannot be counted,
    they are taken to be equal for all configs.
    """
    counted = {name: flops_per_image(cfg) for name, cfg in configs.items()}
    if not all(counted.values()):
        counted = dict.fromkeys(configs, 1)
    return {name: counted[name] * epochs(cfg) for name, cfg in configs.items()}


def epochs(cfg: Config, images: int = 1) -> float:
    """Return the number of epochs of a run.

    If the config states the length of training in iterations, `images` is the number of training images per epoch.
    """
    fixed = cfg.train_cfg.get('max_epochs')
    return fixed or cfg.train_cfg.max_iters * cfg.total_batch_size / images


def flops_per_image(cfg: Config) -> int | None:
    work = work_per_image(cfg)
    return work and work.flops


def work_per_image(cfg: Config) -> ImageWork | None:
    """Return the work of a training step per image. It includes all views, the teacher and the backward pass.

    Return None if the config does not state the sizes of the views, or if the networks read the values of tensors, which
    are not computed during counting. If only the head reads values, the work of the networks alone is returned.
    """
    sizes = view_sizes(cfg)
    if not sizes or None in sizes:
        return None
    batch = cfg.get('total_batch_size') or cfg.train_dataloader.batch_size
    return counted_work(cfg.model.to_dict(), sizes, batch, outside_sources(cfg))


def view_sizes(cfg: Config) -> list[int | None]:
    """Return the size of each view in pixels, after its transforms in the data loader and on the device.

    The size of a view is None if none of its transforms states a size as a single integer.
    """
    in_worker = expand_named_views(innermost(cfg.train_dataloader.dataset).get('views')) or []
    on_device = (cfg.model.get('data_preprocessor') or {}).get('views') or []
    sizes = []
    for first, second in zip_longest(in_worker, on_device, fillvalue=[]):
        stated = [step['size'] for step in [*first, *second] if isinstance(step.get('size'), int)]
        sizes.append(stated[-1] if stated else None)
    return sizes


def counted_work(
    model: Mapping[str, Any], sizes: Sequence[int], batch: int, sources: Mapping[str, str]
) -> ImageWork | None:
    """Return the work of a training step per image, from the cache or by counting.

    Args:
        model: The model's config.
        sizes: The size of each view in pixels.
        batch: The batch size of the step whose work is counted.
        sources: Digests of the modules that the model uses from outside the package.
    """
    subject = dict(model=model, sizes=sizes, batch=batch, sources=sources)
    counted = remembered(subject, lambda: _count_work(model, sizes, batch))
    return counted and ImageWork(**counted)


def checkpoint_bytes(cfg: Config) -> int:
    """Return the size in bytes of a checkpoint, which has the model's tensors and the momentum of its trained weights."""
    model = cfg.model.to_dict()
    subject = dict(checkpoint=model, sources=outside_sources(cfg))
    return remembered(subject, lambda: _count_bytes(model))


# The counts that this process has read or computed, by their keys in the cache.
COUNTS: dict[str, Any] = {}


def remembered(subject: Mapping[str, Any], count: Callable[[], Any]) -> Any:
    """Return a count from the user's cache folder, or compute and store it.

    Args:
        subject: Everything that the count depends on, apart from the code.
        count: The function that computes the count.
    """
    key = key_of({**subject, 'code': counting_code()})
    if key not in COUNTS:
        path = hardware.cache() / 'plans' / f'{key}.json'
        # If the file is missing or unreadable, the count is computed below.
        with suppress(UserError):
            COUNTS[key] = read_json(path)
            return COUNTS[key]
        COUNTS[key] = count()
        # If the count cannot be stored, it is computed again next time.
        with suppress(UserError, OSError):
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
    """Count the work per image of one training step on meta tensors, which have shapes but no values.

    If the model's head reads values, the step fails. Then the work of the networks is counted without the head.
    """
    # This module is slow to import, and it is not needed if all counts are in the cache.
    from torch.utils.flop_counter import FlopCounterMode

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
            except RuntimeError:  # The step has tried to read the value of a meta tensor.
                continue
        return dict(flops=counter.get_total_flops() // batch, bytes=moved.total // batch)
    return None


class BytesMoved(TorchDispatchMode):
    """Counts the bytes that all operators read and write, as if the device had no cache."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and 'empty' not in func.name():
            for leaf in tree_leaves((args, result)):
                if isinstance(leaf, torch.Tensor):
                    self.total += leaf.nbytes
        return result


class UncountedHead(nn.Module):
    """Replaces a head that reads the values of tensors, so that at least the work of the networks can be counted."""

    def forward(self, q: Mapping[int, torch.Tensor], *_: object) -> dict[str, torch.Tensor]:
        return dict(loss=sum(z.sum() for z in q.values()))
