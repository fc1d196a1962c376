"""A framework's config for one's own images and hardware: a template with a reason beside each number."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jinja2 import Environment
from markupsafe import Markup
from mmengine.config import Config, ConfigDict

from mmairl.checkpoints.load import is_released
from mmairl.checkpoints.read import read_backbone
from mmairl.config import PREFIX, home, literal_braces, load_config, override, python_text
from mmairl.data.datasets import UnlabelledFolder, ViewDataset
from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.data.view_sets import named_views, reasons
from mmairl.errors import UserError, closest, printable
from mmairl.hardware import cores

METHOD = re.compile(r"^__method__ = '([\w.-]+)'$", re.MULTILINE)
TEMPLATE = Path(__file__).with_name('suggested.jinja')
FEWEST, LARGE = 64, 1_000_000  # images
LOWER = 10  # the rate's divisor where a run goes on from weights
SHARE, LARGEST_BATCH, LONGEST_QUEUE, MOST_WORKERS = 256, 1024, 65_536, 16


def config_for(
    method: str, images: int, data: str | Path, options: Mapping[str, Any] | None = None, **how: Any
) -> Config:
    """Return the config that `suggest` prints for the images in the folder `data`, with `options` merged in.

    The values are merged as they are: no text with names of files is ever executed.
    """
    base = full_size(method)
    cfg = load_config(base)
    override(cfg, ConfigDict(recommended(method, images, data=data, **how)[0]), base)
    override(cfg, options or {}, base)
    return cfg


def suggest(method: str, images: int, gpus: int = 1, *given: Any, **how: Any) -> str:
    """Return the text of a commented config for training on unlabeled images (arguments: `recommended`)."""
    values, facts = recommended(method, images, gpus, *given, **how)

    def code(key: str) -> Markup:
        return Markup(python_text(Config({key: values[key]})).strip())

    # File names may contain line breaks: whatever is not code is made printable, on one line.
    lines = Environment(
        trim_blocks=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
    )
    template = lines.from_string(TEMPLATE.read_text('utf-8'))
    return literal_braces(
        template.render(**facts, method=method, images=images, gpus=gpus, code=code)
    )


def recommended(
    method: str,
    images: int,
    gpus: int = 1,
    channels: int | None = None,
    weights: str | Path | None = None,
    *,
    data: str | Path = 'data/images',
    epochs: int | None = None,
    size: int = 224,
    batch: int | None = None,
    workers: int | None = None,
    views: str | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what to change in a method's config for training on unlabeled images, and facts for the comments.

    Args:
        method: The method's short name, such as `'byol'`.
        images: How many images there are.
        gpus: How many GPUs train.
        channels: Channels of images that are read as stored. Default: RGB.
        weights: A checkpoint of any known project to start student and teacher from.
        data: The folder of images.
        epochs: How often each image is seen. Default: by the number of images.
        size: Side of the largest crop in pixels.
        batch: Images in a step. Default: by the number of images.
        workers: Data workers. Default: one per core, at most 16.
        views: A list of data/view_sets.yaml that replaces each view's steps after its crop.
    """
    for name, value in dict(epochs=epochs, size=size, batch=batch).items():
        if value is not None and not (isinstance(value, Integral) and value >= 1):
            raise UserError(f'{name}={value!r} is not a whole number of 1 or more; set one')
    if images < FEWEST:
        raise UserError(
            f'{images} images are too few to learn from; give at least {FEWEST}, or start from published weights'
        )
    base, large = load_config(full_size(method)), images >= LARGE
    batch = (
        batch
        or max(1, (min(LARGEST_BATCH, SHARE * gpus) if large else batch_for(images)) // gpus) * gpus
    )
    epochs = epochs or (200 if large else 400 if images >= 100_000 else 800)
    steps, momentum = images // batch * epochs, base.default_hooks.momentum.base
    start = min(momentum, round(1 - 50 / max(steps, 500), 4))
    schedules = base.to_dict()['param_scheduler']
    if len(schedules) > 1:
        schedules[0]['end'] = schedules[1]['begin'] = min(schedules[0]['end'], max(1, epochs // 10))
    begun = begun_from(weights, base, batch) if weights else begun_anew(base, batch)
    model = begun['model']
    if base.model.get('queue'):
        model['queue'] = dict(length=LONGEST_QUEUE if large else queue_for(images, batch))
    for part in ('projector', 'head') if not large else ():
        if fewer := min(
            base.model[part].get('prototypes', 0), max(batch, power_of_two(images // 16))
        ):
            model.setdefault(part, {})['prototypes'] = fewer
    if channels:
        model['backbone']['in_channels'] = channels
        model['data_preprocessor'] = dict(mean=[0.5] * channels, std=[0.25] * channels)
    workers = max(1, min(MOST_WORKERS, cores() // gpus)) if workers is None else workers
    dataset = folder_of(
        data, base.train_dataloader.dataset.to_dict()['views'], size, channels, views
    )
    values = dict(
        model=model,
        total_batch_size=batch,
        optim_wrapper=dict(optimizer=begun['optimizer']),
        auto_scale_lr=dict(base_batch_size=batch),
        default_hooks=dict(
            checkpoint=dict(interval=max(1, epochs // 10)), momentum=dict(base=start)
        ),
        train_cfg=dict(max_epochs=epochs),
        train_dataloader=dict(num_workers=workers, dataset=dataset),
    )
    if len(schedules) > 1:
        values['param_scheduler'] = schedules
    facts = dict(
        base=full_size(method),
        weights=weights and Path(weights).name,
        channels=channels,
        model=model,
        batch=batch,
        kind=begun['kind'],
        rate=begun['rate'],
        epochs=epochs,
        steps=steps,
        momentum=momentum,
        start=start,
        schedules=schedules,
        cores=cores(),
        views=views,
        reasons=reasons(views) if views else (),
    )
    return values, facts


def suggest_for(
    data: str | Path, method: str, channels: int | None = None, views: str | None = None, **how: Any
) -> str:
    """Return `suggest`'s text for the images of a folder, which are counted, and looked at unless their `views` are named."""
    dataset = UnlabelledFolder(data, channels=channels)
    return suggest(
        method, len(dataset), channels=channels, data=data, views=views or domain_of(dataset), **how
    )


def domain_of(dataset: ViewDataset) -> str | None:
    """Name the list of views for what some images look like at 8 x 8 pixels; None of photographs.

    Documents are white without colour, medical images grey, stained tissue has more red and blue than green. In images from
    above no place is brighter than another but by chance, as the variance of the mean image tells.
    """
    small = []
    for index in torch.linspace(0, len(dataset) - 1, min(len(dataset), FEWEST)).long().tolist():
        with suppress(UnreadableImage):
            image = to_unit(dataset.raw(index))[:3].float()
            small.append(
                F.interpolate(image[None], (8, 8), mode='bilinear', antialias=True).expand(
                    -1, 3, -1, -1
                )
            )
    if not small or dataset.channels == 2:
        return None
    x = torch.cat(small)
    grey, colour, (red, green, blue) = x.mean(1), (x.amax(1) - x.amin(1)).mean(), x.mean((0, 2, 3))
    if grey.median() > 0.8 and colour < 0.1:
        return 'documents'
    if colour < 0.01:
        return 'medical_grey'
    if min(red, blue) - green > 0.03:
        return 'microscopy'
    return 'satellite' if len(x) * grey.mean(0).var() < 2.5 * grey.var(0).mean() else None


def begun_anew(base: Config, batch: int) -> dict[str, Any]:
    """Return the network and the optimizer of a run from random weights."""
    optimizer, projector = base.optim_wrapper.optimizer, {'in_channels': 512}
    if (
        base.model.projector.hidden_channels == base.model.projector.in_channels
    ):  # as wide as the features, in MoCo v2
        projector['hidden_channels'] = 512
    rate = optimizer.lr / base.total_batch_size
    model = dict(backbone=dict(depth=18), projector=projector)
    return dict(model=model, kind=optimizer.type, rate=rate, optimizer=dict(lr=rate * batch))


def begun_from(weights: str | Path, base: Config, batch: int) -> dict[str, Any]:
    """Return the network that a checkpoint holds, begun from it, and an optimizer with a lower rate."""
    read, kind = read_backbone(weights), base.optim_wrapper.optimizer.type
    backbone, rate = read.network, base.optim_wrapper.optimizer.lr / base.total_batch_size
    file, optimizer = str(weights) if is_released(weights) else str(Path(weights).absolute()), {}
    backbone['init_cfg'] = dict(type='PretrainedBackbone', checkpoint=file)
    if 'depth' in backbone:
        width = backbone['base_channels'] * (8 if backbone['depth'] < 50 else 32)
    else:
        width = backbone.get('arch', backbone)['embed_dims']
        backbone['_delete_'] = True
        if kind != 'AdamW':  # those of configs/vit
            kind, rate, optimizer = (
                'AdamW',
                1.5e-4 / 256,
                dict(_delete_=True, type='AdamW', weight_decay=0.1),
            )
    model = dict(backbone=backbone, projector=dict(in_channels=width))
    return dict(
        model=model,
        kind=kind,
        rate=rate / LOWER,
        optimizer={**optimizer, 'lr': rate / LOWER * batch},
    )


def folder_of(
    data: str | Path,
    views: Sequence[Sequence[dict]],
    size: int,
    channels: int | None,
    named: str | None = None,
) -> dict[str, Any]:
    """Return the data set of a folder, with views of its own where images are of another size or kind, or no RGB."""
    dataset = dict(type='UnlabelledFolder', root=str(data))
    if named:
        dataset['views'] = views = named_views(named, like=views)
    if channels:
        dataset['channels'] = channels
    if size != 224:
        largest = max(step['size'] for view in views for step in view if 'size' in step)
        dataset['views'] = views = [resized(view, size, largest) for view in views]
    if channels not in (None, 3):
        dataset['views'] = [without_rgb(view) for view in views]
    return dataset


def resized(view: Sequence[dict], size: int, largest: int) -> list[dict]:
    """Return the view with crops of `size` in place of the largest, and smaller ones in proportion."""
    return [
        {**step, 'size': round(step['size'] * size / largest)} if 'size' in step else step
        for step in view
    ]


def full_size(method: str) -> str:
    """Return the name of a method's config, at full size.

    Raises:
        UserError: If there is no such method; the message lists all methods by their heads.
    """
    known = methods()
    if method not in known:
        families: dict[str, list[str]] = {}
        for name, path in known.items():
            head = load_config(str(path)).model.head.type.removesuffix('Head')
            families.setdefault(head, []).append(name)
        listed = '; '.join(
            f'{family}: {", ".join(sorted(names))}' for family, names in families.items()
        )
        raise UserError(
            f"there is no method '{method}'{closest(method.lower(), known, 0.6)}; say one of {listed}",
            code='unknown-method',
        )
    return f'{PREFIX}{known[method].relative_to(home() / "configs").as_posix()}'


def methods() -> dict[str, Path]:
    """Return the config of each method, by the name that it states as `__method__`.

    The files are only parsed. Names with two underscores are neither inherited nor part of the loaded config.
    """
    known = {}
    for path in sorted((home() / 'configs').rglob('*.py')):
        for name in METHOD.findall(path.read_text('utf-8')):
            known[name] = path
    return known


def without_rgb(view: Sequence[dict]) -> list[dict]:
    """Return the view without what only RGB has."""
    kept = [step for step in view if step['type'] not in ('RandomGrayscale', 'StainJitter')]
    return [
        {**step, 'saturation': 0, 'hue': 0} if step['type'] == 'ColorJitter' else step
        for step in kept
    ]


def batch_for(images: int) -> int:
    """Return a batch of sixteen steps an epoch, where there are images enough: statistics over less than 16 say little."""
    return max(16, min(SHARE, power_of_two(images // 16)))


def queue_for(images: int, batch: int) -> int:
    """Return a queue of a quarter of the images at most: the key of the same image would be a negative."""
    return max(batch, min(LONGEST_QUEUE // 4, power_of_two(images // 4)))


def power_of_two(number: int) -> int:
    """Return the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)
