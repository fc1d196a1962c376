"""Create parts that several pages share: pictures of images and of their views."""

import io
from base64 import b64encode
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import Dataset, default_collate
from torchvision.transforms.v2.functional import resize, to_pil_image

from mmairl.data.datasets import innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.registry import DATASETS, MODELS

REACH = 3  # in images other than photographs, black and white are this many standard deviations from the mean


def pictured_views(
    cfg: Config, count: int, seed: int, longest: int = 0
) -> list[list[tuple[Markup, str]]]:
    """Return a row for each of `count` random training images: a picture of the image and of each view, with their names.

    The views are created exactly as in training.
    """
    dataset = DATASETS.build(cfg.train_dataloader.dataset)
    preprocessor = MODELS.build(cfg.model.data_preprocessor)
    generator = np.random.default_rng(seed)
    chosen = generator.choice(len(dataset), min(count, len(dataset)), replace=False).tolist()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch = default_collate([dataset[index] for index in chosen])
        views = preprocessor(batch, training=True)['inputs']
    if isinstance(views, Tensor):
        views = [views]
    rows = []
    for place, index in enumerate(chosen):
        shown = {'image': to_unit(dataset.raw(index))}
        for number, batch in enumerate(views, 1):
            shown[f'view {number}'] = batch[place].float() * preprocessor.std + preprocessor.mean
        pictures = [
            picture(visible(image, dataset, preprocessor), name, longest)
            for name, image in shown.items()
        ]
        rows.append([*zip(pictures, [Path(dataset.name(index)).name, *list(shown)[1:]])])
    return rows


def visible(images: Tensor, dataset: Dataset, preprocessor: nn.Module) -> Tensor:
    """Convert images to uint8 for a page.

    In photographs, 0 is black and 1 is white. In other images, black and white are REACH standard deviations from the mean.
    """
    if innermost_dataset(dataset).as_stored:
        reach = REACH * preprocessor.std
        images = (images - preprocessor.mean + reach) / (2 * reach)
    return in_bytes(images)


def in_bytes(values: Tensor) -> Tensor:
    return (255 * values).round().clamp(0, 255).byte()


def picture(image: Tensor, alt: str, longest: int = 0, style: str = '') -> Markup:
    """Return an image (C, H, W) for a page, with its alternative text.

    It shows the first three channels as color, or the first channel in gray if there are fewer than three. If `longest`
    is set, a larger image is reduced to this side length.
    """
    shown = image[:3] if len(image) >= 3 else image[:1]
    if shown.dtype is not torch.uint8:
        shown = in_bytes(to_unit(shown))
    if longest and max(shown.shape) > longest:
        shown = resize(shown, None, max_size=longest)
    buffer = io.BytesIO()
    to_pil_image(shown).save(buffer, 'WEBP', quality=90)
    content = b64encode(buffer.getvalue()).decode()
    html = '<img class="{}" alt="{}" title="{}" src="data:image/webp;base64,{}">'
    return Markup(html).format(style, alt, alt, content)
