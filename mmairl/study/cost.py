"""Estimate the cost of a study in runs, hours and disk before its first run starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest

import torch
from mmengine.config import Config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import (
    tree_leaves,
)  # both private: torch's public counter counts FLOPs alone

from mmairl.data.preprocess import channels_of
from mmairl.evaluation.sets import innermost
from mmairl.registry import MODELS
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row

BYTES = 4  # of a float32
# FLOPs in the time of one byte from memory, in float32: 17 on a V100 and 10 on an A100 by their data sheets; not measured.
BALANCE = 15
CHANNELS = 3


@dataclass(frozen=True)
class RunCost:
    """The cost of one run, without the tasks after pre-training.

    Args:
        epochs: Epochs of the scale's images, whatever part of them the row sees.
        hours: Hours on one device, at the scale's rate times the work of the config that the rate is of.
        gigabytes: Size of the checkpoints that are kept.
    """

    epochs: float
    hours: float
    gigabytes: float


def cost(cfg: Config, scale: Scale) -> RunCost:
    """Return the cost of one run of a config at a scale."""
    own = work_per_image(cfg)
    usual = work_per_image(resolve(Row('', scale.rate_of), scale))
    relative = own.time / usual.time if own and usual else 1.0
    seen = epochs(cfg, scale.images)
    seconds = seen * scale.images * relative / scale.rate
    checkpoints = max(1, cfg.default_hooks.checkpoint.get('max_keep_ckpts', -1))
    size = checkpoint_bytes(json.dumps(cfg.model.to_dict()))
    return RunCost(seen, seconds / 3600, size * checkpoints / 1e9)


@cache
def checkpoint_bytes(model_config: str) -> int:
    """Return the size of a model's weights and of the momentum of its trained weights.

    Args:
        model_config: The model's config as JSON. Most rows share one.
    """
    model = MODELS.build(json.loads(model_config))
    trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
    state = sum(
        value.numel() for value in model.state_dict().values() if isinstance(value, torch.Tensor)
    )
    return BYTES * (state + trained)


def flops(configs: Mapping[str, Config]) -> dict[str, float]:
    """Return the training FLOPs of each run per image of its data set. All images cost 1 if one cannot be counted."""
    counted = {name: flops_per_image(cfg) for name, cfg in configs.items()}
    if not all(counted.values()):
        counted = dict.fromkeys(configs, 1)
    return {name: counted[name] * epochs(cfg) for name, cfg in configs.items()}


def epochs(cfg: Config, images: int = 1) -> float:
    """Return how often so many images are seen."""
    return (
        cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters * cfg.total_batch_size / images
    )


@dataclass(frozen=True)
class ImageWork:
    """The work on an image.

    Args:
        flops: FLOPs; a multiply-add counts as two.
        bytes: Bytes that are read and written in float32.
    """

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """The time in FLOPs. A norm has few FLOPs and takes as long as its bytes."""
        return self.flops + BALANCE * self.bytes


def flops_per_image(cfg: Config) -> int | None:
    work = work_per_image(cfg)
    return work and work.flops


def work_per_image(cfg: Config) -> ImageWork | None:
    """Return the work of a step per image, with all views, the teacher and the backward pass.

    Returns None if the config does not state the size of the views, or the network cannot run without values.
    """
    sizes = view_sizes(cfg)
    if not sizes or None in sizes:
        return None
    batch = cfg.get('total_batch_size') or cfg.train_dataloader.batch_size
    return counted_work(json.dumps(cfg.model.to_dict()), tuple(sizes), batch)


def view_sizes(cfg: Config) -> list[int | None]:
    """Return the size of each view, from its steps in the worker and on the device; None if no step states one."""
    in_worker = innermost(cfg.train_dataloader.dataset).get('views') or []
    on_device = (cfg.model.get('data_preprocessor') or {}).get('views') or []
    sizes = []
    for first, second in zip_longest(in_worker, on_device, fillvalue=[]):
        stated = [step['size'] for step in [*first, *second] if isinstance(step.get('size'), int)]
        sizes.append(stated[-1] if stated else None)
    return sizes


@cache
def counted_work(model_config: str, sizes: Sequence[int], batch: int) -> ImageWork | None:
    """Count the work of a step on tensors without values, so that nothing is computed. Most rows share a network."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    model = MODELS.build(json.loads(model_config)).to('meta')
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
            except RuntimeError:  # torch raises it if a step reads a value
                continue
        return ImageWork(counter.get_total_flops() // batch, moved.total // batch)
    return None


class BytesMoved(TorchDispatchMode):
    """Counts what each operator reads and writes, as if nothing stayed in a cache."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and 'empty' not in func.name():
            tensors = [
                leaf for leaf in tree_leaves((args, result)) if isinstance(leaf, torch.Tensor)
            ]
            self.total += sum(tensor.nbytes for tensor in tensors)
        return result


class UncountedHead(nn.Module):
    """Replaces a head that reads values. Its FLOPs are not counted; those of the networks are."""

    def forward(self, q: Mapping[int, torch.Tensor], *_: object) -> dict[str, torch.Tensor]:
        return dict(loss=sum(z.sum() for z in q.values()))
