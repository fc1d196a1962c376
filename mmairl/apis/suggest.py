"""Suggest a config for custom images and hardware, with a reason for each setting."""

import itertools
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from mmengine.config import Config
from torch import nn
from torch.utils.data import default_collate

from mmairl.apis.continuation import Trained, continued, distilled, trained, whole_patches
from mmairl.apis.given_network import register_network
from mmairl.config import PREFIX, home, load_config, override, walk
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import SIZE
from mmairl.data.sampler import TrainingImages
from mmairl.errors import UserError, closest
from mmairl.evaluation.protocol import default_device
from mmairl.hardware import cores
from mmairl.registry import DATASETS, MODELS

METHOD = re.compile(r"^__method__ = '([\w.-]+)'$", re.MULTILINE)
FEWEST = 64  # smallest number of images that `suggest` accepts
# The number of epochs for at least this number of images.
EPOCHS = {1_000_000: 200, 100_000: 400, FEWEST: 800}
LONGEST_QUEUE = 65_536
FEWEST_PATCHES = 8  # a ViT divides the side of an image into at least this number of patches
CONTINUED = 10  # divisor of the learning rate for runs that start from pre-trained weights
TIMED_IMAGES = 16
SAMPLED = 100  # approximate number of images whose sides are measured
# Suggested crops have a multiple of this number of pixels, which is the stride of a ResNet.
STEP = 32
# The reasons that a suggested file states for its settings.
REASONS = {
    'model.backbone.depth': 'customary: a small network. For a ResNet-50, set depth=50 and all widths of 512 to 2048.',
    'model.backbone.patch_size': "known: the network of the paper. Small images have smaller patches than the paper's.",
    'model.queue.length': 'customary: a queue of at most a quarter of the images, because otherwise many negatives '
    'would be old keys of the same image. MoCo used 65536 for 1.28 million images.',
    'model.head.prototypes': 'customary: at most one prototype per sixteen images, but at least as many as images per step.',
    'model.data_preprocessor.mean': 'customary: replace 0.5 and 0.25 with the mean and standard deviation of your images, '
    'which `mmairl pack DIR --statistics --channels N` prints.',
    'total_batch_size': 'customary: a sixteenth of the images, at most 256 per GPU as in MoCo, and at least 16, because batch '
    'statistics over fewer are too noisy.',
    'optim_wrapper.optimizer': "known: the method's learning rate, proportional to the batch size. A run that starts from "
    'pre-trained weights has a tenth of it, because the full rate would destroy the learned features.',
    'train_cfg.max_epochs': 'customary: MoCo and BYOL use 200 epochs for 1.28 million images. Published recipes use 400 for '
    'ImageNet-100 and 800 for Imagenette. Start with a tenth of the epochs, and check the health page.',
    'default_hooks.momentum.base': 'customary: at first, the teacher averages over at most a fiftieth of the steps (or 10 '
    'steps), because with a longer average, it would stay close to its initial weights.',
    'custom_hooks': 'customary: prototypes stay frozen for the first tenth of a run that starts from trained weights, because '
    'their first gradients would destroy the learned features.',
    'train_dataloader.num_workers': 'customary: one data worker per core of this machine, divided among the GPUs, but at most '
    '16. If the health page shows that the training waits for data, use more.',
    'train_dataloader.dataset': 'customary: the views of the method were made for photographs. Look at them with `mmairl '
    'report views CONFIG`. For other images, consider configs/_base_/views (satellite, microscopy, medical_gray, documents): '
    'for example, aerial images have no upright direction.',
}


def config_for(
    method: str,
    images: int,
    data: str | Path,
    options: Mapping[str, Any] | None = None,
    **request: Any,
) -> Config:
    """Return the suggestions for the images in the folder `data` as a config, with `options` merged in."""
    base = full_size(method)
    cfg = load_config(base, suggested_settings(method, images, data=data, **request))
    override(cfg, options or {}, base)
    return cfg


def suggest(method: str, images: int, gpus: int = 1, **request: Any) -> str:
    """Return the text of a config file for training on unlabeled images. Its comments give a reason for each setting.

    Args:
        method: Short name of the method.
        images: Number of images.
        gpus: Number of GPUs.
        **request: Further arguments of `suggested_settings`.
    """
    settings = suggested_settings(method, images, gpus=gpus, **request)
    lines = [
        f'# {method} on {images:,} unlabeled images, suggested by mmairl. Number of GPUs: {gpus}.',
        '# "known" marks a value from the papers. "customary" marks a choice that the papers leave open.',
    ]
    for key, reason in REASONS.items():
        if key in settings:
            text = f'{key}: {reason}'
            lines.append(fill(text, 120, initial_indent='# ', subsequent_indent='#     '))
    cfg = Config(dict(_base_=full_size(method)))
    cfg.merge_from_dict(settings)
    return '\n'.join([*lines, cfg.pretty_text])


def suggest_for(data: str | Path, method: str, channels: int | None = None, **request: Any) -> str:
    """Return the text of `suggest` for a folder of images, with an estimate of the hours on this machine."""
    dataset = UnlabelledFolder(data, channels=channels)
    side = median_side(dataset)
    size = min(SIZE, max(STEP, round(side / STEP) * STEP))
    request.update(channels=channels, data=data, size=size)
    hours = estimated_hours(config_for(method, len(dataset), **request)) / request.get('gpus', 1)
    return '\n'.join(
        [
            f'# Estimated from a few steps on this machine: {hours:.2g} hours of training.',
            f'# Crops of {size} pixels, because the median shorter side of the images is {side:g} pixels (crops have a',
            f'#     multiple of {STEP} pixels, and at most {SIZE}). Larger crops would only enlarge the images.',
            suggest(method, len(dataset), **request),
        ]
    )


def median_side(dataset: UnlabelledFolder) -> float:
    """Return the median shorter side, in pixels, of a sample of the images."""
    sides = []
    for index in range(0, len(dataset), max(1, len(dataset) // SAMPLED)):
        with suppress(UnreadableImage):
            sides.append(min(dataset.raw(index).shape[1:]))
    return median(sides or [SIZE])


def estimated_hours(cfg: Config) -> float:
    """Estimate the hours of a run on one device of this machine by loading a few images and taking two steps."""
    dataset = TrainingImages(DATASETS.build(cfg.train_dataloader.dataset))
    model = MODELS.build(cfg.model).to(default_device())
    count = min(TIMED_IMAGES, cfg.total_batch_size)
    start = time.perf_counter()
    batch = default_collate([dataset[index] for index in range(count)])
    loading = (time.perf_counter() - start) / cfg.train_dataloader.num_workers
    for _ in range(2):  # The first step is slower.
        start = time.perf_counter()
        losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
        loss, _ = model.parse_losses(losses)
        loss.backward()
        loss.item()  # wait for the GPU
        step = time.perf_counter() - start
    return max(loading, step) / count * len(dataset) * cfg.train_cfg.max_epochs / 3600


def suggested_settings(
    method: str,
    images: int,
    *,
    gpus: int = 1,
    channels: int | None = None,
    data: str | Path = 'data/images',
    epochs: int | None = None,
    batch: int | None = None,
    workers: int | None = None,
    size: int = 224,
    views: str | None = None,
    weights: str | Path | None = None,
    network: nn.Module | None = None,
    teacher: str | Path | None = None,
) -> dict[str, Any]:
    """Return settings by dotted key, which replace settings of the method's config.

    The arguments are those of `mmairl.pretrain`. By default, the batch size and the number of epochs depend on the number of
    images. A ViT rounds the size of crops to whole patches.

    Raises:
        UserError: If there are too few images, if the method or the views are unknown, or if both `weights` and `network` are
            set.
    """
    if images < FEWEST:
        raise UserError(
            f"{data}: too few images to learn from ('{images}'); give at least {FEWEST}, or use a released model",
            code='too-few-images',
        )
    if weights is not None and network is not None:
        raise UserError(
            'network: cannot be combined with weights; load the weights into the module',
            code='network-and-weights',
        )
    base = load_config(full_size(method))
    if base.model.type != 'Siamese' and (weights or network is not None):
        raise UserError(
            f"method: '{method}' has a network of its own, so weights and network cannot be used; omit them, or use another "
            'method',
            code='fixed-network',
        )
    if batch is None:
        batch = max(16, min(256 * gpus, 1024, _power_of_two(images // 16)))
        batch = max(1, batch // gpus) * gpus
    if epochs is None:
        epochs = next(number for least, number in EPOCHS.items() if images >= least)
    start = trained(weights) if weights else None
    # If crops are small, the patches of a ViT are smaller than those of the method. Without a ViT, a patch is a pixel.
    patch = max(1, min(base.model.backbone.get('patch_size', 1), size // FEWEST_PATCHES))
    if start:
        patch = start.patch
    settings = _model(base, images, batch, size, channels, start, network, patch)
    settings['total_batch_size'] = settings['auto_scale_lr.base_batch_size'] = batch

    optimizer = {}
    rate = base.optim_wrapper.optimizer.lr / base.total_batch_size
    if start:
        if not start.is_resnet and base.optim_wrapper.optimizer.type != 'AdamW':
            # The configs in configs/vit use these settings of AdamW.
            optimizer = dict(_delete_=True, type='AdamW', weight_decay=0.1)
            rate = 1.5e-4 / 256
        rate /= CONTINUED
    settings['optim_wrapper.optimizer'] = {**optimizer, 'lr': rate * batch}

    settings |= _schedule(base, images // batch * epochs, epochs)
    crops = _views(base, views, size, channels, patch)
    dataset = dict(type='UnlabelledFolder', root=str(data), views=crops)
    if teacher:
        settings |= distilled(trained(teacher), size)
    if channels:
        dataset['channels'] = channels
    if workers is None:
        workers = max(1, min(16, cores() // gpus))
    return {
        **settings,
        'train_dataloader.dataset': dataset,
        'train_dataloader.num_workers': workers,
        'evaluation': None,  # the images have no labels
    }


def _schedule(base: Config, steps: int, epochs: int) -> dict[str, Any]:
    """Return the settings that depend on the length of the run. The warm-up takes at most a tenth of the epochs."""
    settings = {
        'train_cfg.max_epochs': epochs,
        'default_hooks.checkpoint.interval': max(1, epochs // 10),
        # Short runs log their health more often.
        'default_hooks.health.interval': max(1, min(50, steps // 20)),
    }
    if base.model.get('target') == 'teacher':
        momentum = round(1 - 50 / max(steps, 500), 4)
        settings['default_hooks.momentum.base'] = min(momentum, base.default_hooks.momentum.base)
    schedules = base.to_dict().get('param_scheduler') or []
    if len(schedules) > 1:
        warm_up = min(schedules[0]['end'], max(1, epochs // 10))
        schedules[0]['end'] = schedules[1]['begin'] = warm_up
        settings['param_scheduler'] = schedules
    return settings


def _power_of_two(number: int) -> int:
    """Return the largest power of two that does not exceed a number."""
    return 1 << (number.bit_length() - 1)


def _model(
    base: Config,
    images: int,
    batch: int,
    size: int,
    channels: int | None,
    start: Trained | None,
    network: nn.Module | None,
    patch: int,
) -> dict[str, Any]:
    """Return the settings of the network, of the queue, and of the prototypes."""
    projector = base.model.get('projector') or {}
    width = projector.get('in_channels')
    settings: dict[str, Any] = {}
    if start:
        settings, width = continued(base, start), start.width
    elif network is not None:
        name, width = register_network(network, channels or 3, size)
        settings['model.backbone'] = dict(_delete_=True, type='GivenNetwork', name=name)
    elif 'depth' in base.model.backbone:
        width = 512
        settings['model.backbone.depth'] = 18
    else:
        side = whole_patches(size, patch)
        settings['model.backbone.img_size'] = side
        for key in _named(base, 'patch_size'):
            settings[key] = patch
        if 'neck' in base.model:  # the decoder of MAE has position embeddings, too
            settings['model.neck.num_patches'] = (side // patch) ** 2
    for part in ('projector', 'patch_projector'):
        if base.model.get(part):
            settings[f'model.{part}.in_channels'] = width
    # In MoCo v2, the hidden layer of the projector is as wide as the features.
    if projector and projector.hidden_channels == projector.in_channels and not start:
        settings['model.projector.hidden_channels'] = width
    if channels:
        keys = ['backbone.in_channels']
        if network is not None:
            keys = []
        elif start and 'name' in start.backbone:
            keys = ['backbone.in_chans']
        elif 'neck' in base.model:
            keys = ['backbone.patch_cfg.in_channels', 'neck.in_chans', 'head.in_channels']
        settings |= {f'model.{key}': channels for key in keys}
        settings['model.data_preprocessor.mean'] = [0.5] * channels
        settings['model.data_preprocessor.std'] = [0.25] * channels
    if base.model.get('queue'):
        length = min(LONGEST_QUEUE, _power_of_two(images // 4))
        settings['model.queue.length'] = max(batch, length)
    most = max(batch, _power_of_two(images // 16))
    for key, value in _named(base, 'prototypes').items():
        settings[key] = min(value, most)
    return settings


def _named(base: Config, name: str) -> dict[str, Any]:
    """Return the settings in all parts of the model whose last key is `name`."""
    found = {}
    for keys, value in walk(base.model.to_dict()):
        if keys and keys[-1] == name and value:
            found['.'.join(('model', *keys))] = value
    return found


def _views(
    base: Config, domain: str | None, size: int, channels: int | None, patch: int
) -> list[list[dict]]:
    """Return the views for the kind, size and channels of the images. Each view begins with a crop of whole patches."""
    views = base.train_dataloader.dataset.to_dict()['views']
    if domain:
        steps = load_config(f'{PREFIX}_base_/views/{domain}.py')[domain]
        views = [[view[0], *deepcopy(steps)] for view in views]
    largest = max(view[0]['size'] for view in views)
    for view in views:
        view[0]['size'] = whole_patches(view[0]['size'] * size / largest, patch)
    if channels in (None, 3):
        return views
    for step in itertools.chain(*views):
        if step['type'] == 'ColorJitter':
            step.update(saturation=0, hue=0)
    return [[step for step in view if step['type'] != 'RandomGrayscale'] for view in views]


def full_size(method: str) -> str:
    """Return the name of the config file that trains a method at full size, on ImageNet.

    Raises:
        UserError: If the method is unknown. The message lists all methods.
    """
    known = methods()
    if method not in known:
        raise UserError(
            f"method: unknown name ('{method}'){closest(method.lower(), known, 0.6)}; use one of {', '.join(sorted(known))}",
            code='unknown-method',
        )
    return f'{PREFIX}{known[method].relative_to(home() / "configs").as_posix()}'


def methods() -> dict[str, Path]:
    """Return the config files of all methods. The keys are the names that the files assign to `__method__`.

    The files are searched for this assignment, but not executed. Since `__method__` starts with two underscores, mmengine
    does not pass it on to configs that inherit from the file.
    """
    known = {}
    for path in sorted((home() / 'configs').rglob('*.py')):
        for name in METHOD.findall(path.read_text('utf-8')):
            known[name] = path
    return known
