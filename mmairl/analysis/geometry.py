"""Geometry of embeddings on the sphere: alignment, uniformity, spectrum, and invariance to changes of an image."""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as T
from torch import Tensor

from mmairl.models.spectrum import singular_values

BLOCK = 4096
TINY = torch.finfo(torch.float64).tiny
BILINEAR = T.InterpolationMode.BILINEAR
Change = Callable[[Tensor, float], Tensor]


def alignment(first: Tensor, second: Tensor) -> float:
    """Return the mean squared distance of the unit embeddings of two views (Wang and Isola 2020); 0 is best."""
    first = F.normalize(first.double())
    second = F.normalize(second.double())
    squared_distances = (first - second).square().sum(dim=1)
    return squared_distances.mean().item()


def uniformity(x: Tensor) -> float:
    """Return ``log mean exp(-2 d^2)`` over pairs of different images.

    It is 0 after a collapse and near -4 for many embeddings that are far from each other.
    """
    x = F.normalize(x.double())
    total = 0.0
    for block in x.split(BLOCK):
        squared_distances = (2 - 2 * block @ x.T).clamp_min(0)
        potentials = torch.exp(-2 * squared_distances)
        total += potentials.sum().item()
    images = len(x)
    others = total - images
    mean = others / (images * (images - 1))
    return math.log(max(mean, TINY))


def spectrum(x: Tensor) -> Tensor:
    """Return the eigenvalues of the unit embeddings' covariance, descending, as fractions of their sum."""
    unit = F.normalize(x.double())
    values = singular_values(unit, centred=True).square()
    return values / values.sum().clamp_min(TINY)


def _crop(images: Tensor, strength: float) -> Tensor:
    """Return the center, down to a fifth of the area, at the size of the image."""
    size = images.shape[-2:]
    share = math.sqrt(1 - 0.8 * strength)
    center = []
    for side in size:
        center.append(max(1, round(share * side)))
    crop = T.center_crop(images, center)
    return T.resize(crop, size, antialias=True)


def _blur(images: Tensor, strength: float) -> Tensor:
    reach = max(1, images.shape[-1] // 20)
    kernel = 2 * reach + 1
    return T.gaussian_blur(images, kernel, sigma=2.0 * strength)


# Changes of images in [0, 1] with a strength from 0 (none) to 1. A flip has no strength.
CHANGES: Mapping[str, Change] = {
    'crop': _crop,
    'flip': lambda images, strength: images.flip(-1),
    'brightness': lambda images, strength: T.adjust_brightness(images, 1 + 0.8 * strength),
    'contrast': lambda images, strength: T.adjust_contrast(images, 1 - 0.8 * strength),
    'saturation': lambda images, strength: T.adjust_saturation(images, 1 - strength),
    'hue': lambda images, strength: T.adjust_hue(images, 0.5 * strength),
    'blur': _blur,
    'solarize': lambda images, strength: T.solarize(images, 1 - 0.9 * strength),
    'rotation': lambda images, strength: T.rotate(images, 90.0 * strength, BILINEAR),
}
# The functions of these changes do not support strength 0.
UNCHANGED_AT_ZERO = ('flip', 'blur', 'solarize', 'rotation')
RGB_ONLY = ('brightness', 'contrast', 'saturation', 'hue')  # torchvision supports them for RGB only
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def change_images(images: Tensor, name: str, strength: float) -> Tensor:
    """Return images in [0, 1] after one change of `CHANGES`."""
    if strength == 0 and name in UNCHANGED_AT_ZERO:
        return images
    change = CHANGES[name]
    return change(images, strength).clamp(0, 1)


@torch.inference_mode()
def invariance(
    embed: Callable[[Tensor], Tensor],
    images: Tensor,
    strengths: Sequence[float] = STRENGTHS,
) -> dict[str, list[float]]:
    """Return the similarity of an image to its changed copy, for each change and strength.

    It is 1 if the embedding does not change, 0 if the copy is no more similar to the image than other images are, and NaN if
    all embeddings are equal. Changes of color are left out for images that are not RGB.
    """
    original = F.normalize(embed(images).double())
    count = len(original)
    similarities = original @ original.T
    similarities.fill_diagonal_(0)
    others = similarities.sum() / (count * (count - 1))
    largest = (original - original[:1]).abs().max()
    collapsed = largest <= 1e-9
    reach = torch.nan if collapsed else 1 - others
    is_rgb = images.shape[1] == 3
    kept = {}
    for name in CHANGES:
        if is_rgb or name not in RGB_ONLY:
            kept[name] = []
            for strength in strengths:
                changed = change_images(images, name, strength)
                features = F.normalize(embed(changed).double())
                likeness = (original * features).sum(dim=1).mean()
                share = (likeness - others) / reach
                kept[name].append(share.item())
    return kept
