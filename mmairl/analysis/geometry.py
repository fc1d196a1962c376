"""The geometry of features, measured without labels, and their invariance to changes of an image."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as T
from torch import Tensor

from mmairl.models.spectrum import rankme, singular_values, spread

BLOCK = 4096
TINY = torch.finfo(torch.float64).tiny


def alignment(first: Tensor, second: Tensor) -> float:
    """Return the mean squared distance between the embeddings of two views of an image (Wang and Isola 2020); 0 is best.

    Embeddings are scaled to unit length first.
    """
    first = F.normalize(first.double())
    second = F.normalize(second.double())
    squared_distances = (first - second).square().sum(dim=1)
    return squared_distances.mean().item()


def uniformity(x: Tensor) -> float:
    """Return ``log mean exp(-2 d^2)`` over all pairs of different images, where d is the distance between their embeddings.

    Embeddings are scaled to unit length first. Uniformity is 0 after a collapse, and near -4 for many embeddings that are
    far from each other.
    """
    x = F.normalize(x.double())
    images = len(x)
    # The squared distance of unit vectors is twice the difference of 1 and their product.
    total = sum((4 * (block @ x.T - 1)).exp().sum().item() for block in x.split(BLOCK))
    return math.log((total - images) / (images * (images - 1)))


def numbers_of(x: Tensor, views: Sequence[Tensor] = ()) -> dict[str, float]:
    """Return the label-free measures of the features (images, C) of images, and of two augmented views of each, if any."""
    found = {'RankMe': rankme(x), 'uniformity': uniformity(x), 'spread': spread(x)}
    if len(views) == 2:
        found['alignment'] = alignment(*views)
    return found


def spectrum(x: Tensor) -> Tensor:
    """Return the eigenvalues of the covariance of embeddings, in descending order, as fractions of their sum.

    Embeddings are scaled to unit length first.
    """
    unit = F.normalize(x.double())
    values = singular_values(unit, centred=True).square()
    return values / values.sum().clamp_min(TINY)


def _crop(images: Tensor) -> Tensor:
    """Return the center crop with a quarter of the area, resized."""
    size = list(images.shape[-2:])
    crop = T.center_crop(images, [side // 2 for side in size])
    return T.resize(crop, size, antialias=True)


def _blur(images: Tensor) -> Tensor:
    kernel = 2 * (images.shape[-1] // 20) + 3
    return T.gaussian_blur(images, kernel, sigma=1.5)


# Each change takes images in [0, 1].
CHANGES = {
    'crop': _crop,
    'flip': T.horizontal_flip,
    'blur': _blur,
    'solarize': partial(T.solarize, threshold=0.3),
    'rotation': partial(T.rotate, angle=60.0, interpolation=T.InterpolationMode.BILINEAR),
}
COLOR_CHANGES = {
    'brightness': partial(T.adjust_brightness, brightness_factor=1.6),
    'contrast': partial(T.adjust_contrast, contrast_factor=0.4),
    'saturation': partial(T.adjust_saturation, saturation_factor=0.25),
    'hue': partial(T.adjust_hue, hue_factor=0.4),
}


@torch.inference_mode()
def invariance(embed: Callable[[Tensor], Tensor], images: Tensor) -> dict[str, float]:
    """Return the mean similarity of images and changed copies, for each change of the images.

    It is 1 if a change does not affect the features, 0 if a changed copy is only as similar to its
    image as a different image is, and NaN if all features are equal. Changes of color are left out
    for images that are not RGB.
    """
    original = F.normalize(embed(images).double())
    count = len(original)
    others = ((original @ original.T).sum() - count) / (count * (count - 1))
    reach = 1 - others if original.std(dim=0).max() > 1e-9 else torch.nan
    changes = CHANGES | COLOR_CHANGES if images.shape[1] == 3 else CHANGES
    found = {}
    for name, change in changes.items():
        changed = F.normalize(embed(change(images).clamp(0, 1)).double())
        likeness = (original * changed).sum(dim=1).mean()
        found[name] = float((likeness - others) / reach)
    return found
