"""The cost of a study, in runs, hours and disk, before its first run starts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest

import torch
from mmengine.config import Config
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves  # both private: torch's public counter counts FLOPs alone

from mmairl.data.preprocess import channels_of
from mmairl.evaluation.sets import innermost
from mmairl.registry import MODELS
from mmairl.study.scale import Scale, resolve
from mmairl.study.spec import Row

BYTES = 4
# FLOPs in the time of a byte from memory, in float32: by their data sheets 17 of a V100 and 10 of an A100; not measured.
BALANCE = 15


@dataclass(frozen=True)
class Cost:
    """The cost of one run, without the tasks after pre-training."""

    epochs: float  # of the scale's images, whatever part of them the row sees
    hours: float  # on one device, at the scale's rate times the work of the config that it is of
    gigabytes: float  # of checkpoints that are kept


def cost(cfg: Config, scale: Scale) -> Cost:
    kept = cfg.default_hooks.checkpoint.get('max_keep_ckpts', -1)
    own, usual = work_per_image(cfg), work_per_image(resolve(Row('', scale.rate_of), scale))
    share = own.time / usual.time if own and usual else 1.0
    seen = epochs(cfg, scale.images)
    hours = seen * scale.images * share / scale.rate / 3600
    return Cost(seen, hours, checkpoint_bytes(json.dumps(cfg.model.to_dict())) * max(1, kept) / 1e9)


@cache
def checkpoint_bytes(model_config: str) -> int:
    """Weights, and the optimizer's momentum of those that are trained, of a model's config as JSON; most rows share one."""
    model = MODELS.build(json.loads(model_config))
    trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
    state = sum(value.numel() for value in model.state_dict().values() if isinstance(value, torch.Tensor))
    return BYTES * (state + trained)


def flops(configs: Mapping[str, Config]) -> dict[str, float]:
    """Return the training FLOPs of each run for an image of its data set; all images cost 1 where one cannot be counted."""
    counted = {name: flops_per_image(cfg) for name, cfg in configs.items()}
    if not all(counted.values()):
        counted = dict.fromkeys(configs, 1)
    return {name: counted[name] * epochs(cfg) for name, cfg in configs.items()}


def epochs(cfg: Config, images: int = 1) -> float:
    """How often so many images are seen."""
    return cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters * cfg.total_batch_size / images


@dataclass(frozen=True)
class Work:
    """The work on an image: FLOPs, of which a multiply-add is two, and the bytes that are read and written in float32."""

    flops: int
    bytes: int

    @property
    def time(self) -> float:
        """In FLOPs; a norm has few of them and takes as long as its bytes."""
        return self.flops + BALANCE * self.bytes


def flops_per_image(cfg: Config) -> int | None:
    work = work_per_image(cfg)
    return work and work.flops


def work_per_image(cfg: Config) -> Work | None:
    """Count the work of a step per image, with all views, the teacher and the backward pass.

    None where the config does not say how large the views are, or the network cannot run without numbers.
    """
    images = innermost(cfg.train_dataloader.dataset)
    by_worker, on_device = images.get('views') or [], (cfg.model.get('data_preprocessor') or {}).get('views') or []
    steps = [[*one, *two] for one, two in zip_longest(by_worker, on_device, fillvalue=[])]
    sizes = [[step['size'] for step in view if isinstance(step.get('size'), int)][-1:] for view in steps]
    if not sizes or not all(sizes):
        return None
    batch = cfg.get('total_batch_size') or cfg.train_dataloader.batch_size
    return counted_work(json.dumps(cfg.model.to_dict()), tuple(size for (size,) in sizes), batch)


@cache
def counted_work(model_config: str, sizes: Sequence[int], batch: int) -> Work | None:
    """Counted on tensors that have a shape and no numbers, so that nothing is computed; most rows share a network."""
    from torch.utils.flop_counter import FlopCounterMode  # slow to import

    model = MODELS.build(json.loads(model_config)).to('meta')
    for head in (getattr(model, 'head', None), Uncounted()):
        model.head = head
        with torch.device('meta'), FlopCounterMode(display=False) as counter, BytesMoved() as moved:
            channels, label = channels_of(model.backbone) or 3, torch.zeros(batch, dtype=torch.int64)
            views = [torch.empty(batch, channels, size, size) for size in sizes]
            try:
                loss = model(views, dict(label=label), mode='loss')['loss']
                if loss.requires_grad:
                    loss.backward()
            except RuntimeError:  # torch's, of a step that looks at a number
                continue
        return Work(counter.get_total_flops() // batch, moved.total // batch)
    return None


class BytesMoved(TorchDispatchMode):
    """Counts what each operator reads and writes, as if nothing stayed in a cache."""

    total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not func.is_view and 'empty' not in func.name():
            self.total += sum(x.nbytes for x in tree_leaves((args, made)) if isinstance(x, torch.Tensor))
        return made


class Uncounted(nn.Module):
    """In the place of a head that looks at numbers; its own FLOPs are not counted, those of the networks are."""

    def forward(self, q: Mapping[int, torch.Tensor], *_: object) -> dict[str, torch.Tensor]:
        return dict(loss=sum(z.sum() for z in q.values()))
