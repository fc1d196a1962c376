"""Suggest a config for custom images and hardware, with a reason for each setting."""

import copy
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from textwrap import fill
from typing import Any

from mmengine.config import Config
from torch import nn
from torch.utils.data import default_collate

from mmairl.apis.given_network import register_network
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released
from mmairl.config import PREFIX, home, load_config, override, python_text, walk
from mmairl.data.datasets import UnlabelledFolder
from mmairl.errors import UserError, closest
from mmairl.evaluation.protocol import default_device
from mmairl.hardware import cores
from mmairl.registry import DATASETS, MODELS

METHOD = re.compile(r"^__method__ = '([\w.-]+)'$", re.MULTILINE)
# The kinds of images for which configs/_base_/views has a file with transforms and their reasons.
DOMAINS = ('satellite', 'microscopy', 'medical_gray', 'documents')
FEWEST = 64  # smallest number of images that `suggest` accepts
LARGE = 1_000_000  # smallest number of images for which queue length, prototypes and epochs are those of the papers
CONTINUED = 10  # divisor of the learning rate for runs that start from pre-trained weights
BATCH_PER_GPU = 256
LARGEST_BATCH = 1024
LONGEST_QUEUE = 65_536
MOST_WORKERS = 16
TIMED_IMAGES = 16
BATCH_TEXT = (
    "customary: MoCo used 256 images per step, and most of mmairl's ImageNet configs use 1024. For data sets with fewer than "
    '4096 images, mmairl suggests a smaller batch: about a sixteenth of the images, but at least 16.'
)
COLORFUL = ('ColorJitter', 'RandomGrayscale', 'StainJitter')


@dataclass(frozen=True)
class Request:
    """The arguments of `suggest`: the images, the hardware and the options of a run.

    Args:
        method: Short name of the method, such as `'byol'`.
        images: Number of images.
        gpus: Number of GPUs.
        channels: Number of channels. If it is set, images are read as stored. Default: images are converted to RGB.
        weights: A checkpoint in any format that mmairl reads, to initialize student and teacher.
        network: A module to train instead of the default network.
        data: The folder of images.
        epochs: Number of passes over the images. Default: depends on the number of images.
        size: Side of the largest crop in pixels.
        batch: Images per step. Default: depends on the number of images.
        workers: Number of processes that load images for one GPU. Default: one per core, divided among the GPUs, at most 16.
        views: Name of a set of augmentations in configs/_base_/views. In each view, the set replaces all augmentations after
            the crop.

    Raises:
        UserError: If `epochs`, `size` or `batch` is not a positive integer, if there are too few images, or if both `weights`
            and `network` are set.
    """

    method: str
    images: int
    gpus: int = 1
    channels: int | None = None
    weights: str | Path | None = None
    network: nn.Module | None = None
    data: str | Path = 'data/images'
    epochs: int | None = None
    size: int = 224
    batch: int | None = None
    workers: int | None = None
    views: str | None = None

    def __post_init__(self) -> None:
        for name in ('epochs', 'size', 'batch'):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and value >= 1):
                raise UserError(
                    f"{name}: expected a whole number of 1 or more ('{value}'); correct the number",
                    code='bad-number',
                )
        if self.images < FEWEST:
            raise UserError(
                f"images: too few to learn from ('{self.images}'); give at least {FEWEST}, or use a released model",
                code='too-few-images',
            )
        if self.network is not None and self.weights is not None:
            raise UserError(
                'network: cannot be combined with weights; load the weights into the module',
                code='network-and-weights',
            )

    @property
    def is_large(self) -> bool:
        return self.images >= LARGE


@dataclass(frozen=True)
class Choice:
    """Settings by dotted key, which replace settings of the method's config, and the reasons for them."""

    settings: Mapping[str, Any]
    reasons: Sequence[str] = ()

    def text(self) -> str:
        """Return the settings as the text of a config, below comments with the reasons."""
        cfg = Config()
        cfg.merge_from_dict(dict(self.settings))
        comments = [
            fill(reason, 120, initial_indent='# ', subsequent_indent='# ')
            for reason in self.reasons
        ]
        return '\n'.join([*comments, python_text(cfg)])


def named_views(name: str, like: Sequence) -> tuple[list[list[dict]], list[tuple[dict, str]]]:
    """Return views for a kind of images, and its transforms with the reasons for them.

    Each view consists of the crop of the view in `like`, followed by the transforms for `name`.
    """
    if name not in DOMAINS:
        raise UserError(
            f"views: unknown name ('{name}'){closest(name, DOMAINS)}; set one of {', '.join(DOMAINS)}",
            code='unknown-views',
        )
    cfg = load_config(f'{PREFIX}_base_/views/{name}.py')
    crops = [[step for step in view if step['type'] == 'RandomResizedCrop'] for view in like]
    views = [[*crop, *copy.deepcopy(cfg[name])] for crop in crops]
    return views, list(zip(cfg[name], cfg[f'{name}_reasons']))


def config_for(
    method: str,
    images: int,
    data: str | Path,
    options: Mapping[str, Any] | None = None,
    **request: Any,
) -> Config:
    """Return the suggestions for the images in the folder `data` as a config, with `options` merged in."""
    base = full_size(method)
    cfg = load_config(base)
    for choice in choices(Request(method, images, data=data, **request)):
        override(cfg, choice.settings, base)
    override(cfg, options or {}, base)
    return cfg


def suggest(method: str, images: int, gpus: int = 1, **request: Any) -> str:
    """Return the text of a config file for training on unlabeled images. Its comments give a reason for each setting.

    Args:
        method: Short name of the method.
        images: Number of images.
        gpus: Number of GPUs.
        **request: Further fields of `Request`.
    """
    devices = '1 GPU' if gpus == 1 else f'{gpus} GPUs'
    head = (
        f'# {method} on {images:,} unlabeled images, for {devices}, suggested by mmairl.\n'
        '# "known" marks a value from the papers. "customary" marks a choice that the papers leave open.\n'
        f"_base_ = '{full_size(method)}'\n"
    )
    return '\n'.join(
        [head, *(choice.text() for choice in choices(Request(method, images, gpus, **request)))]
    )


def suggest_for(data: str | Path, method: str, channels: int | None = None, **request: Any) -> str:
    """Return the text of `suggest` for a folder of images, with an estimate of the hours on this machine."""
    count = len(UnlabelledFolder(data, channels=channels))
    request = dict(request, channels=channels, data=data)
    text = suggest(method, count, **request)
    gpus = request.pop('gpus', 1)
    hours = estimated_hours(config_for(method, count, **request)) / gpus
    return f'# Estimated from a few steps on this machine: {hours:.2g} hours of training.\n{text}'


def estimated_hours(cfg: Config) -> float:
    """Estimate the hours of a run on one device of this machine by loading a few images and taking two steps."""
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    model = MODELS.build(cfg.model).to(default_device())
    count = min(TIMED_IMAGES, cfg.total_batch_size)
    start = time.perf_counter()
    batch = default_collate([dataset[index] for index in range(count)])
    loading = (time.perf_counter() - start) / max(1, cfg.train_dataloader.num_workers)
    for _ in range(2):  # The first step is slower.
        start = time.perf_counter()
        losses = model(**model.data_preprocessor(batch, training=True), mode='loss')
        model.parse_losses(losses)[0].backward()
        step = time.perf_counter() - start
    return max(loading, step) / count * len(dataset) * cfg.train_cfg.max_epochs / 3600


def choices(request: Request) -> list[Choice]:
    """Return the settings for a request, in the order of the suggested file. No two choices set parts of the same key."""
    base = load_config(full_size(request.method))
    batch = _batch(request)
    return [
        _model(request, base, batch),
        Choice({'total_batch_size': batch, 'auto_scale_lr.base_batch_size': batch}, [BATCH_TEXT]),
        _rate(request, base, batch),
        _schedule(request, base, batch),
        _data(request, base),
    ]


def _batch(request: Request) -> int:
    """Return the requested batch size. If none is requested, return a multiple of the number of GPUs.

    With fewer than LARGE images, the default is about a sixteenth of the images, at least 16 and at most BATCH_PER_GPU.
    """
    if request.batch:
        return request.batch
    gpus = request.gpus
    if request.is_large:
        batch = min(LARGEST_BATCH, BATCH_PER_GPU * gpus)
    else:
        # Batch statistics over fewer than 16 images are too noisy.
        batch = max(16, min(BATCH_PER_GPU, _power_of_two(request.images // 16)))
    return max(1, batch // gpus) * gpus


def _epochs(images: int) -> int:
    if images >= LARGE:
        return 200
    return 400 if images >= 100_000 else 800


def _power_of_two(number: int) -> int:
    """Return the largest power of two that does not exceed a number."""
    return 1 << (number.bit_length() - 1)


def _model(request: Request, base: Config, batch: int) -> Choice:
    """Return the network, the queue, the number of prototypes and the normalization."""
    settings, why = _network(request, base)
    texts = [why]
    if base.model.get('queue'):
        quarter = min(LONGEST_QUEUE // 4, _power_of_two(request.images // 4))
        length = LONGEST_QUEUE if request.is_large else max(batch, quarter)
        settings['model.queue.length'] = length
        texts.append(
            f'customary: a queue of {100 * length / request.images:.0f} % of the images. Its oldest key is '
            f'{-(-length // batch)} steps old. MoCo found that more negatives are better, and used 65536 for 1.28 million '
            'images (5 %). If the queue held more than a quarter of the images, too many negatives would be old keys of the '
            'same image.'
        )
    most = max(batch, _power_of_two(request.images // 16))
    for keys, value in walk(base.model.to_dict()):
        if keys and keys[-1] == 'prototypes' and value and not request.is_large:
            settings['.'.join(('model', *keys))] = min(value, most)
    if any(key.endswith('.prototypes') for key in settings):
        texts.append(
            'customary: at most one prototype per sixteen images, but never fewer prototypes than images per step. DINO uses '
            'one prototype per 20 images.'
        )
    if channels := request.channels:
        settings['model.data_preprocessor.mean'] = [0.5] * channels
        settings['model.data_preprocessor.std'] = [0.25] * channels
        texts.append(
            f'customary: images of {channels} channels are read as stored. Replace 0.5 and 0.25 with the mean and standard '
            f'deviation of your images, which `mmairl pack DIR --statistics --channels {channels}` prints.'
        )
    return Choice(settings, texts)


def _network(request: Request, base: Config) -> tuple[dict[str, Any], str]:
    """Return the settings of the backbone and of the input of the projector, and the reason for them."""
    projector = base.model.get('projector') or {}
    settings: dict[str, Any] = {}
    if request.weights:
        backbone, width = _pretrained_backbone(request.weights)
        why = f'known: the network of the checkpoint {Path(request.weights).name}.'
    elif request.network is not None:
        name, width = register_network(request.network, request.channels or 3, request.size)
        backbone = dict(_delete_=True, type='GivenNetwork', name=name)
        why = 'known: the network that was passed.'
    elif 'depth' in base.model.backbone:
        backbone, width = dict(depth=18), 512
        why = 'customary: a small network. For a ResNet-50, set depth=50 and all widths of 512 to 2048.'
    else:
        backbone, width = {}, projector.get('in_channels')
        if 'img_size' in base.model.backbone:
            backbone['img_size'] = request.size
        why = 'known: the network of the paper, for this size of images.'
    if request.channels and request.network is None:
        backbone['in_channels'] = request.channels
    if backbone:
        settings['model.backbone'] = backbone
    if projector:
        settings['model.projector.in_channels'] = width
        # In MoCo v2, the hidden layer of the projector is as wide as the features.
        if projector.hidden_channels == projector.in_channels and not request.weights:
            settings['model.projector.hidden_channels'] = width
    return settings, why


def _pretrained_backbone(weights: str | Path) -> tuple[dict[str, Any], int]:
    """Return a backbone config that loads the weights of a checkpoint, and the number of features of the backbone."""
    backbone = read_backbone(weights).network
    file = str(weights) if is_released(weights) else str(Path(weights).absolute())
    backbone['init_cfg'] = dict(type='PretrainedBackbone', checkpoint=file)
    if 'depth' in backbone:
        return backbone, backbone['base_channels'] * (8 if backbone['depth'] < 50 else 32)
    backbone['_delete_'] = True
    return backbone, backbone.get('arch', backbone)['embed_dims']


def _rate(request: Request, base: Config, batch: int) -> Choice:
    """Return the optimizer. Its learning rate is proportional to the batch size."""
    optimizer: dict[str, Any] = {}
    kind = base.optim_wrapper.optimizer.type
    rate = base.optim_wrapper.optimizer.lr / base.total_batch_size
    why = f'known: {kind} with a learning rate of {256 * rate:g} per 256 images, proportional to the batch size.'
    if request.weights:
        if 'depth' not in read_backbone(request.weights).network and kind != 'AdamW':
            # The configs in configs/vit use these settings of AdamW.
            optimizer = dict(_delete_=True, type='AdamW', weight_decay=0.1)
            rate = 1.5e-4 / 256
        rate /= CONTINUED
        why = (
            f'customary: a learning rate of {256 * rate:g} per 256 images. This is a tenth of the rate for random weights, '
            'because the full rate would destroy the learned features. If the k-NN accuracy on labeled images falls, reduce it.'
        )
    return Choice({'optim_wrapper.optimizer': {**optimizer, 'lr': rate * batch}}, [why])


def _schedule(request: Request, base: Config, batch: int) -> Choice:
    """Return the number of epochs, a warm-up of at most a tenth of them, and the momentum of the teacher."""
    epochs = request.epochs or _epochs(request.images)
    steps = request.images // batch * epochs
    texts = [
        f'{"known" if epochs == 200 else "customary"}: the configs of MoCo and BYOL use 200 epochs for 1.28 million images, '
        '10 of them for the warm-up. Small data sets require more: published recipes use 400 for ImageNet-100 and 800 for '
        'Imagenette. Start with a tenth of the epochs, and check the health page.'
    ]
    settings = {
        'train_cfg.max_epochs': epochs,
        'default_hooks.checkpoint.interval': max(1, epochs // 10),
        # Short runs log their health more often.
        'default_hooks.health.interval': max(1, min(50, steps // 20)),
    }
    schedules = base.to_dict().get('param_scheduler') or []
    if len(schedules) > 1:
        warm_up = min(schedules[0]['end'], max(1, epochs // 10))
        schedules[0]['end'] = warm_up
        schedules[1]['begin'] = warm_up
        settings['param_scheduler'] = schedules
    if momentum := base.get('default_hooks', {}).get('momentum'):
        first = min(momentum.base, round(1 - 50 / max(steps, 500), 4))
        settings['default_hooks.momentum.base'] = first
        texts.append(
            f"{'known' if first == momentum.base else 'customary'}: the method's ImageNet config has a teacher momentum of "
            f'{momentum.base:g}, and short runs use a lower one. Methods without a teacher ignore this setting. At first, the '
            f'teacher averages over {1 / (1 - first):.0f} of {steps:,} steps. In runs of 500 steps or more, it averages over '
            'at most about a fiftieth of the steps, because with a longer average, it would stay close to its initial weights.'
        )
    return Choice(settings, texts)


def _data(request: Request, base: Config) -> Choice:
    """Return the data set, its views, and the number of data workers."""
    channels = request.channels
    views = base.train_dataloader.dataset.to_dict()['views']
    dataset: dict[str, Any] = dict(type='UnlabelledFolder', root=str(request.data))
    texts = [
        f'customary: one data worker per core of this machine ({cores()}), divided among the GPUs, but at most 16 per GPU. If '
        'the health page shows that the training waits for data, use more workers.'
    ]
    if request.views:
        views, reasons = named_views(request.views, views)
        for step, why in reasons:
            texts.append(f'customary, for {request.views}: {step["type"]}, because {why}.')
    else:
        texts.append(
            'customary: the views of the method, which were made for photographs. Look at them with `mmairl report views '
            f'CONFIG`. If your images are of another kind, consider views= one of {", ".join(DOMAINS)}: for example, aerial '
            'images have no upright direction, and mirrored text is not text.'
        )
    if request.size != 224:
        largest = max(step['size'] for view in views for step in view if 'size' in step)
        patch = base.model.backbone.get('patch_size', 1)
        views = [_rescale_crops(view, request.size / largest, patch) for view in views]
    if channels not in (None, 3):
        views = [_without_rgb(view) for view in views]
        texts.append('The views leave out random grayscale, saturation and hue, which require RGB.')
    if request.views or request.size != 224 or channels not in (None, 3):
        dataset['views'] = views
    if channels:
        dataset['channels'] = channels
    workers = request.workers
    if workers is None:
        workers = max(1, min(MOST_WORKERS, cores() // request.gpus))
    settings = {'train_dataloader.num_workers': workers, 'train_dataloader.dataset': dataset}
    # The images have no labels, so the run cannot be evaluated on them.
    return Choice({**settings, 'evaluation': None}, texts)


def _rescale_crops(view: Sequence[dict], factor: float, patch: int) -> list[dict]:
    """Return the view with the sizes of its crops multiplied by a factor, and rounded to whole patches of a ViT."""
    return [
        {**step, 'size': max(1, round(step['size'] * factor / patch)) * patch}
        if 'size' in step
        else step
        for step in view
    ]


def _without_rgb(view: Sequence[dict]) -> list[dict]:
    """Return the view without the augmentations that require RGB images."""
    steps = []
    for step in view:
        if step['type'] == 'ColorJitter':
            steps.append({**step, 'saturation': 0, 'hue': 0})
        elif step['type'] not in COLORFUL:
            steps.append(step)
    return steps


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
