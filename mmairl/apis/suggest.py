"""Suggest a config for custom images and hardware, with a reason next to each number."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from mmengine.config import Config, ConfigDict
from torch import nn

from mmairl.apis.given_network import register_network
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.released import is_released
from mmairl.config import PREFIX, home, load_config, override, python_text
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.view_sets import named_views, reasons
from mmairl.errors import UserError, closest
from mmairl.hardware import cores

METHOD = re.compile(r"^__method__ = '([\w.-]+)'$", re.MULTILINE)
TEMPLATE = Path(__file__).with_name('suggested.jinja')
FEWEST = 64  # smallest number of images that `suggest` accepts
LARGE = 1_000_000  # smallest number of images for which queue length, prototypes and epochs are those of the papers
CONTINUED = 10  # divisor of the learning rate for runs that start from pre-trained weights
BATCH_PER_GPU = 256
LARGEST_BATCH = 1024
LONGEST_QUEUE = 65_536
MOST_WORKERS = 16


@dataclass(frozen=True)
class Request:
    """The arguments of `suggest`: the images, the hardware and the options of a run.

    Args:
        method: Short name of the method, such as `'byol'`.
        images: Number of images.
        gpus: Number of GPUs.
        channels: Number of channels. If it is set, images are read as stored. Default: images are converted to RGB.
        weights: A checkpoint in any format that mmairl reads, to initialize student and teacher.
        network: A module to train instead of a ResNet-18.
        data: The folder of images.
        epochs: Number of passes over the images. Default: depends on the number of images.
        size: Side of the largest crop in pixels.
        batch: Images per step. Default: depends on the number of images.
        workers: Number of processes that load images for one GPU. Default: one per core, divided among the GPUs, at most 16.
        views: Name of a set of augmentations in data/view_sets.yaml. In each view, the set replaces all augmentations after
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


def config_for(
    method: str,
    images: int,
    data: str | Path,
    options: Mapping[str, Any] | None = None,
    **request: Any,
) -> Config:
    """Return the suggestions for the images in the folder `data` as a config, with `options` merged in.

    `suggest` returns the same settings as the text of a config file. This function does not execute that text, so file names
    cannot inject code.
    """
    base = full_size(method)
    cfg = load_config(base)
    values, _ = recommended(Request(method, images, data=data, **request))
    override(cfg, ConfigDict(values), base)
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
    full_request = Request(method, images, gpus, **request)
    values, facts = recommended(full_request)

    def code(key: str) -> Markup:
        return Markup(python_text(Config({key: values[key]})).strip())

    environment = Environment(trim_blocks=True)
    template = environment.from_string(TEMPLATE.read_text('utf-8'))
    return template.render(**facts, request=full_request, values=values, code=code)


def suggest_for(data: str | Path, method: str, channels: int | None = None, **request: Any) -> str:
    """Return the text of `suggest` for a folder of images."""
    count = len(UnlabelledFolder(data, channels=channels))
    return suggest(method, count, channels=channels, data=data, **request)


def recommended(request: Request) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings that replace those of the method's config, and the facts for the comments in the suggested file."""
    base = load_config(full_size(request.method))
    batch = _batch(request)
    epochs = request.epochs or _epochs(request.images)
    steps = request.images // batch * epochs
    momentum = base.default_hooks.momentum.base
    first_momentum = min(momentum, round(1 - 50 / max(steps, 500), 4))
    model, optimizer = _starting_point(request, base, batch)
    model.update(_model_changes(request, base, batch, model))
    views = base.train_dataloader.dataset.to_dict()['views']
    workers = request.workers
    if workers is None:
        workers = max(1, min(MOST_WORKERS, cores() // request.gpus))
    values = dict(
        model=model,
        total_batch_size=batch,
        optim_wrapper=dict(optimizer=optimizer),
        auto_scale_lr=dict(base_batch_size=batch),
        default_hooks=dict(
            checkpoint=dict(interval=max(1, epochs // 10)), momentum=dict(base=first_momentum)
        ),
        train_cfg=dict(max_epochs=epochs),
        train_dataloader=dict(num_workers=workers, dataset=_folder(request, views)),
    )
    schedules = base.to_dict()['param_scheduler']
    if len(schedules) > 1:
        warm_up = min(schedules[0]['end'], max(1, epochs // 10))
        schedules[0]['end'] = warm_up
        schedules[1]['begin'] = warm_up
        values['param_scheduler'] = schedules
    facts = dict(
        base=full_size(request.method),
        weights=request.weights and Path(request.weights).name,
        kind=optimizer.get('type', base.optim_wrapper.optimizer.type),
        steps=steps,
        momentum=momentum,
        cores=cores(),
        reasons=reasons(request.views) if request.views else (),
    )
    return values, facts


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


def _model_changes(
    request: Request, base: Config, batch: int, model: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the model settings that depend on the images: queue length, prototypes, channels and normalization."""
    changes: dict[str, Any] = {}
    if base.model.get('queue'):
        # If the queue held more than a quarter of the images, too many negatives would be old keys of the same image.
        quarter = min(LONGEST_QUEUE // 4, _power_of_two(request.images // 4))
        length = LONGEST_QUEUE if request.is_large else max(batch, quarter)
        changes['queue'] = dict(length=length)
    most_prototypes = max(batch, _power_of_two(request.images // 16))
    for part in ('projector', 'head'):
        prototypes = min(base.model[part].get('prototypes', 0), most_prototypes)
        if prototypes and not request.is_large:
            changes[part] = {**model.get(part, {}), 'prototypes': prototypes}
    channels = request.channels
    if channels:
        if request.network is None:
            changes['backbone'] = {**model['backbone'], 'in_channels': channels}
        changes['data_preprocessor'] = dict(mean=[0.5] * channels, std=[0.25] * channels)
    return changes


def _starting_point(
    request: Request, base: Config, batch: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the network, and those of the optimizer with the learning rate for this batch size."""
    optimizer: dict[str, Any] = {}
    rate = base.optim_wrapper.optimizer.lr / base.total_batch_size
    if request.weights:
        backbone, width = _pretrained_backbone(request.weights)
        if 'depth' not in backbone and base.optim_wrapper.optimizer.type != 'AdamW':
            # The configs in configs/vit use these settings of AdamW.
            optimizer = dict(_delete_=True, type='AdamW', weight_decay=0.1)
            rate = 1.5e-4 / 256
        rate /= CONTINUED
    elif request.network is not None:
        name, width = register_network(request.network, request.channels or 3, request.size)
        backbone = dict(_delete_=True, type='GivenNetwork', name=name)
    else:
        width = 512
        backbone = dict(depth=18)
    projector = dict(in_channels=width)
    as_wide = base.model.projector.hidden_channels == base.model.projector.in_channels
    if as_wide and not request.weights:
        # In MoCo v2, the hidden layer of the projector is as wide as the features.
        projector['hidden_channels'] = width
    return dict(backbone=backbone, projector=projector), {**optimizer, 'lr': rate * batch}


def _pretrained_backbone(weights: str | Path) -> tuple[dict[str, Any], int]:
    """Return a backbone config that loads the weights of a checkpoint, and the number of features of the backbone."""
    backbone = read_backbone(weights).network
    file = str(weights) if is_released(weights) else str(Path(weights).absolute())
    backbone['init_cfg'] = dict(type='PretrainedBackbone', checkpoint=file)
    if 'depth' in backbone:
        return backbone, backbone['base_channels'] * (8 if backbone['depth'] < 50 else 32)
    backbone['_delete_'] = True
    return backbone, backbone.get('arch', backbone)['embed_dims']


def _folder(request: Request, views: Sequence[Sequence[dict]]) -> dict[str, Any]:
    """Return the config of the data set. If the views of the method do not suit the images, the config has other views."""
    dataset: dict[str, Any] = dict(type='UnlabelledFolder', root=str(request.data))
    channels = request.channels
    if request.views:
        views = named_views(request.views, like=views)
        dataset['views'] = views
    if channels:
        dataset['channels'] = channels
    if request.size != 224:
        largest = max(step['size'] for view in views for step in view if 'size' in step)
        views = [_rescale_crops(view, request.size / largest) for view in views]
        dataset['views'] = views
    if channels not in (None, 3):
        dataset['views'] = [_without_rgb(view) for view in views]
    return dataset


def _rescale_crops(view: Sequence[dict], factor: float) -> list[dict]:
    """Return the view with the sizes of its crops multiplied by a factor."""
    return [
        {**step, 'size': round(step['size'] * factor)} if 'size' in step else step for step in view
    ]


def _without_rgb(view: Sequence[dict]) -> list[dict]:
    """Return the view without the augmentations that require RGB images."""
    steps = []
    for step in view:
        if step['type'] == 'ColorJitter':
            steps.append({**step, 'saturation': 0, 'hue': 0})
        elif step['type'] not in ('RandomGrayscale', 'StainJitter'):
            steps.append(step)
    return steps


def full_size(method: str) -> str:
    """Return the name of the config file that trains a method at full size, on ImageNet.

    Raises:
        UserError: If the method is unknown. The message lists all methods, grouped by their heads.
    """
    known = methods()
    if method not in known:
        families: dict[str, list[str]] = {}
        for name, path in known.items():
            head = load_config(str(path)).model.head.type.removesuffix('Head')
            families.setdefault(head, []).append(name)
        names = '; '.join(
            f'{family}: {", ".join(sorted(names))}' for family, names in families.items()
        )
        raise UserError(
            f"method: unknown name ('{method}'){closest(method.lower(), known, 0.6)}; use one of {names}",
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
