"""Count the training FLOPs of models, with which plans and pages compare the compute of rows."""

from contextlib import suppress
from itertools import zip_longest

import torch
from mmengine.config import Config

import mmairl
from mmairl import hardware
from mmairl.data.preprocess import channels_of
from mmairl.errors import UserError
from mmairl.evaluation.identity import key_of
from mmairl.evaluation.sets import innermost
from mmairl.evaluation.sources import outside_sources
from mmairl.io import read_json, write_json
from mmairl.registry import MODELS

# Counts are stored for these versions of the code.
VERSIONS = torch.__version__, mmairl.__version__


def run_flops(cfg: Config) -> float | None:
    """Return a number that is proportional to the training FLOPs of a run; None if they cannot be counted."""
    flops = flops_per_image(cfg)
    length = cfg.train_cfg.get('max_epochs') or cfg.train_cfg.max_iters * batch_size(cfg)
    return flops and flops * length


def batch_size(cfg: Config) -> int:
    return cfg.get('total_batch_size') or cfg.train_dataloader.batch_size


def flops_per_image(cfg: Config) -> float | None:
    """Return the FLOPs of a training step per image, from the cache of this machine or by counting.

    They include all views, the teacher and the backward pass. A multiply-add counts as two FLOPs. Return None if they cannot be
    counted, for example because the model reads the values of tensors.
    """
    views = innermost(cfg.train_dataloader.dataset).get('views')
    subject = [cfg.model.to_dict(), views, batch_size(cfg), outside_sources(cfg), VERSIONS]
    path = hardware.cache() / 'flops' / f'{key_of(str(subject))}.json'
    if path.is_file():
        return read_json(path)
    flops = count_flops(cfg)
    with suppress(UserError, OSError):
        write_json(path, flops)
    return flops


def count_flops(cfg: Config) -> float | None:
    """Count the FLOPs of one training step on meta tensors, which have shapes but no values."""
    # The model may be the user's. A count that fails must never stop a study, whatever the reason is.
    with suppress(Exception), torch.random.fork_rng(devices=[]):
        # Some models mask patches at random, and the FLOPs depend on their number.
        torch.manual_seed(0)
        return _counted_step(cfg) / batch_size(cfg) or None
    return None


def _counted_step(cfg: Config) -> int:
    # This module is slow to import.
    from torch.utils.flop_counter import FlopCounterMode

    model = MODELS.build(cfg.model).to('meta').train()
    with torch.device('meta'), FlopCounterMode(display=False) as counter:
        channels = channels_of(model.backbone) or 3
        views = [torch.empty(batch_size(cfg), channels, size, size) for size in view_sizes(cfg)]
        label = torch.zeros(batch_size(cfg), dtype=torch.int64)
        single = cfg.model.get('data_preprocessor', {}).get('single_view')
        losses = model(views[0] if single else views, dict(label=label), mode='loss')
        sum(loss for loss in losses.values() if loss.requires_grad).backward()
    return counter.get_total_flops()


def view_sizes(cfg: Config) -> list[int]:
    """Return the size of each view in pixels, after its transforms in the data loader and on the device.

    It is the last size that the transforms state as a single integer.
    """
    in_worker = innermost(cfg.train_dataloader.dataset).get('views') or []
    on_device = (cfg.model.get('data_preprocessor') or {}).get('views') or []
    sizes = []
    for parts in zip_longest(in_worker, on_device, fillvalue=()):
        steps = [step for part in parts for step in part]
        sizes.append([step['size'] for step in steps if isinstance(step.get('size'), int)][-1])
    return sizes
