"""The geometry of features, measured without labels, and their invariance to changes of an image."""

import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as T
from torch import Tensor

from mmairl.models.spectrum import effective, rankme, singular_values, spread

BLOCK = 4096
TINY = torch.finfo(torch.float64).tiny
STRENGTHS = (0.5, 1.0)  # of the changes of images


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
    total = 0.0
    for block in x.split(BLOCK):
        squared_distances = (2 - 2 * block @ x.T).clamp_min(0)
        total += torch.exp(-2 * squared_distances).sum().item()
    images = len(x)
    others = total - images
    return math.log(max(others / (images * (images - 1)), TINY))


def alpha_req(eigenvalues: Tensor, first: int = 5, last: int = 100) -> float:
    """Return alpha-ReQ, which is the alpha of ``eigenvalue ~ rank^-alpha`` (Agrawal et al. 2022).

    It is fitted by least squares to the logarithms of the eigenvalues from rank `first` to rank `last`. It is infinite if
    fewer than five of these eigenvalues are larger than rounding errors.
    """
    above_rounding = int((eigenvalues > 1e-10 * eigenvalues[0]).sum())
    tail = eigenvalues[:above_rounding][first - 1 : last]
    if len(tail) < 5:
        return math.inf
    ranks = np.arange(first, first + len(tail))
    slope, _ = np.polyfit(np.log(ranks), tail.double().log().numpy(), 1)
    return -float(slope)


def lidar(views: Tensor, delta: float = 1e-4) -> float:
    """Return LiDAR (Thilak et al. 2023) of the features (views, images, C) of augmented views.

    LiDAR is the effective rank of a linear discriminant analysis in which the views of each image form a class.
    """
    means = views.double().mean(dim=0)
    deviations = (views - means).flatten(0, 1)
    within = deviations.T @ deviations / len(deviations)
    within.diagonal().add_(delta)
    root = torch.linalg.cholesky(within)
    centered = means - means.mean(dim=0)
    whitened = torch.linalg.solve_triangular(root, centered.T, upper=False)
    discriminants = torch.linalg.eigvalsh(whitened @ whitened.T)
    return effective(discriminants.clamp_min(0))


def numbers_of(x: Tensor, views: Tensor | None = None) -> dict[str, float]:
    """Return the label-free measures of the features (images, C) of images and (views, images, C) of augmented views."""
    found = {
        'RankMe': rankme(x),
        'alpha-ReQ': alpha_req(singular_values(x, centred=True).square()),
        'uniformity': uniformity(x),
        'spread': spread(x),
    }
    if views is not None:
        found |= {'alignment': alignment(*views[:2]), 'LiDAR': lidar(views)}
    return found


def spectrum(x: Tensor) -> Tensor:
    """Return the eigenvalues of the covariance of embeddings, in descending order, as fractions of their sum.

    Embeddings are scaled to unit length first.
    """
    unit = F.normalize(x.double())
    values = singular_values(unit, centred=True).square()
    return values / values.sum().clamp_min(TINY)


def _crop(images: Tensor, strength: float) -> Tensor:
    """Return the center crop, resized. At strength 1, the crop has a fifth of the area."""
    height, width = images.shape[-2:]
    share = math.sqrt(1 - 0.8 * strength)
    crop = T.center_crop(images, [round(share * height), round(share * width)])
    return T.resize(crop, [height, width], antialias=True)


def _blur(images: Tensor, strength: float) -> Tensor:
    kernel = 2 * max(1, images.shape[-1] // 20) + 1
    return T.gaussian_blur(images, kernel, sigma=2.0 * strength)


# Each change takes images in [0, 1] and a strength above 0, up to 1. A flip ignores the strength.
CHANGES: dict[str, Callable[[Tensor, float], Tensor]] = {
    'crop': _crop,
    'flip': lambda images, strength: images.flip(-1),
    'brightness': lambda images, strength: T.adjust_brightness(images, 1 + 0.8 * strength),
    'contrast': lambda images, strength: T.adjust_contrast(images, 1 - 0.8 * strength),
    'saturation': lambda images, strength: T.adjust_saturation(images, 1 - strength),
    'hue': lambda images, strength: T.adjust_hue(images, 0.5 * strength),
    'blur': _blur,
    'solarize': lambda images, strength: T.solarize(images, 1 - 0.9 * strength),
    'rotation': lambda images, strength: T.rotate(
        images, 90.0 * strength, T.InterpolationMode.BILINEAR
    ),
}
RGB_ONLY = ('brightness', 'contrast', 'saturation', 'hue')


@torch.inference_mode()
def invariance(embed: Callable[[Tensor], Tensor], images: Tensor) -> dict[str, float]:
    """Return the mean similarity of images and changed copies, for each change.

    It is 1 if a change does not affect the features, 0 if a changed copy is only as similar to its
    image as a different image is, and NaN if all features are equal. Changes of color are left out
    for images that are not RGB.
    """
    original = F.normalize(embed(images).double())
    count = len(original)
    others = ((original @ original.T).sum() - count) / (count * (count - 1))
    reach = 1 - others if original.std(dim=0).max() > 1e-9 else torch.nan
    kept = {}
    for name, change in CHANGES.items():
        if images.shape[1] != 3 and name in RGB_ONLY:
            continue
        likeness = 0.0
        for strength in STRENGTHS:
            changed = change(images, strength).clamp(0, 1)
            features = F.normalize(embed(changed).double())
            likeness += (original * features).sum(dim=1).mean() / len(STRENGTHS)
        kept[name] = float((likeness - others) / reach)
    return kept
