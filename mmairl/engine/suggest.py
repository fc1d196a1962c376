"""A config for one's own images and hardware, each number with its reason: what tools/train.py --suggest prints."""

import textwrap
from dataclasses import dataclass

from mmairl.configs import load_config
from mmairl.engine.memory import GIB, activations, build, shares
from mmairl.engine.pretrain import FEWEST, batch_for, highest_momentum, queue_for, without_rgb
from mmairl.errors import UserError
from mmairl.machine import cores

BASE = 'mmairl::mocov2plus_r18_folder_100e.py'
SPARE = 0.9  # of a GPU's memory; the rest is for the context, work space and gaps
VIEWS, SIZE = 2, 224


@dataclass(frozen=True)
class Line:
    """A setting and why it is so: `known` from a paper, or merely `customary`."""

    code: str
    sort: str
    reason: str

    def __str__(self) -> str:
        text = textwrap.wrap(f'{self.sort}: {self.reason}', 118)
        return '\n'.join([*(f'# {line}' for line in text), self.code])


def suggest(images: int, gpus: int = 1, memory: float | None = None, channels: int | None = None) -> str:
    """A config that trains MoCo v2+ on so many unlabelled images, on `gpus` GPUs of `memory` GiB.

    With `channels` the images are read as they are stored.
    """
    if images < FEWEST:
        raise UserError(
            f'{images} images are too few for a queue of negatives and too few to learn from; give at least {FEWEST}, or '
            'start from published weights'
        )
    large = images >= 1_000_000
    batch = max(1, (1024 if large else batch_for(images)) // gpus) * gpus
    queue = 65536 if large else queue_for(images, batch)
    epochs = 200 if large else 400 if images >= 100_000 else 800
    steps, lr = epochs * (images // batch), 0.03 * batch / 256
    momentum = min(0.99, round(highest_momentum(steps), 4))
    workers = max(1, min(16, cores() // gpus))
    unknown = 1, 'memory not given, so try whether this fits.'
    accumulated, fits = fitting(batch, gpus, memory, channels or 3) if memory else unknown
    optimizer = f'optimizer=dict(lr={lr:.3g})' + (f', accumulative_counts={accumulated}' if accumulated > 1 else '')
    lines = [
        Line(
            f'total_batch_size = {batch}',
            'known' if batch in (256, 1024) else 'customary',
            "256 is MoCo's and 1024 the benchmark's; smaller ones give a small set 16 steps an epoch or more. "
            f'On each GPU: {fits}',
        ),
        Line(
            f'optim_wrapper = dict({optimizer})\nauto_scale_lr = dict(base_batch_size={batch})',
            'known',
            'SGD at 0.03 per 256 images, in proportion to the batch (MoCo v2, the benchmark).',
        ),
        Line(
            f'model = dict(queue=dict(length={queue}))',
            'customary',
            f'{100 * queue / images:.0f} % of the images. MoCo found that more negatives do better, and has 65 536 of 1.28 '
            'million images (5 %); beyond a quarter, too many images meet their own old keys.',
        ),
        Line(
            f"default_hooks = dict(momentum=dict(base={momentum:g}, schedule='cosine'))",
            'known' if momentum == 0.99 else 'customary',
            "from 0.99 to 1 is the benchmark's; short runs start lower. The teacher first averages over "
            f'{1 / (1 - momentum):.0f} of the {steps:,} steps, and the oldest key of the queue is {-(-queue // batch)} old.',
        ),
        Line(
            f'train_cfg = dict(max_epochs={epochs})',
            'known' if epochs == 200 else 'customary',
            "200 is the papers' on 1.28 million images. Small sets are given more: others give 400 to ImageNet-100 and 800 "
            'to Imagenette. Start with a tenth, and look at the health page.',
        ),
        Line(
            f'train_dataloader = dict(num_workers={workers})',
            'customary',
            f'a data worker for each of the {cores()} cores here, shared by the GPUs, and at most 16. If the '
            'health page shows time spent waiting for data, give more.',
        ),
    ]
    if channels:
        lines.append(as_stored(channels))
    title = f'MoCo v2+ on {images:,} images without labels, for {gpus} GPU{"s" * (gpus > 1)}, as mmairl suggests.'
    head = f"# {title}\n# The folder of the images: --cfg-options train_dataloader.dataset.root=DIR\n_base_ = '{BASE}'"
    return '\n\n'.join([head, *map(str, lines)])


def as_stored(channels: int) -> Line:
    """What images of other channels or depths want of the config above."""
    [view, *_] = load_config(BASE).train_dataloader.dataset.views
    view = view if channels == 3 else without_rgb(view)
    steps = [', '.join(f'{key}={value!r}' for key, value in step.items()) for step in view]
    code = [
        *('view = [', *(f'    dict({step}),' for step in steps), ']'),
        f'normal = dict(mean=[0.5] * {channels}, std=[0.25] * {channels})',
        f'model.update(backbone=dict(in_channels={channels}), data_preprocessor=normal)',
        f'train_dataloader.update(dataset=dict(channels={channels}, views=[view, view]))',
        f'evaluation = dict(train=dict(channels={channels}), test=dict(channels={channels}))',
    ]
    lost = '' if channels == 3 else ' The views have no grey, saturation and hue, which only RGB has.'
    reason = f'images of {channels} channels are read as they are stored. Put your own mean and std in place of 0.5 and 0.25: '
    command = f'tools/pack.py DIR --statistics --channels {channels} prints them.'
    return Line('\n'.join(code), 'customary', f'{reason}{command}{lost}')


def fitting(batch: int, gpus: int, memory: float, channels: int = 3) -> tuple[int, str]:
    """How many steps to accumulate so that a GPU of `memory` GiB holds its part of the batch in float32, in words too."""
    cfg, share = load_config(BASE, {'model.backbone.in_channels': channels}), batch // gpus
    fixed = sum(shares(build(cfg), cfg.optim_wrapper.optimizer.type, gpus)['DDP'].values())
    few, more = (activations(build(cfg), VIEWS, count, SIZE) for count in (16, 32))  # beyond, each image takes the same
    need = {
        count: fixed + few + (more - few) / 16 * (count - 16) for count in range(2, share + 1) if share % count == 0
    }
    once = max((count for count, size in need.items() if size <= SPARE * memory * GIB), default=None)
    if once is None:
        raise UserError(f'{memory:g} GiB hold not even 2 images of {SIZE} pixels at once; give GPUs of more memory')
    said = f'{once} images at once take {need[once] / GIB:.1f} of {memory:g} GiB in float32, as counted without a GPU.'
    if once < share:
        said += f' Batch statistics are over {once * gpus} images instead of {batch}, which nothing can make equal.'
    return share // once, said
