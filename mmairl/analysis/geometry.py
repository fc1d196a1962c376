"""How embeddings lie on the sphere: alignment, uniformity, spectrum, and which changes of an image leave it where it is."""

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
import torchvision.transforms.v2.functional as T
from torch import Tensor

from mmairl.models.spectrum import singular_values

BLOCK = 4096


def alignment(first: Tensor, second: Tensor) -> float:
    """Mean squared distance of the unit embeddings of two views of an image (Wang and Isola 2020); 0 is best."""
    return (F.normalize(first.double()) - F.normalize(second.double())).square().sum(dim=1).mean().item()


def uniformity(x: Tensor, t: float = 2.0) -> float:
    """log mean exp(-t d^2) over pairs of different images; -2t at the least, reached far from one another, 0 when collapsed."""
    x = F.normalize(x.double())
    total = x.new_zeros(())
    for block in x.split(BLOCK):
        total += torch.exp(-t * (2 - 2 * block @ x.T).clamp_min(0)).sum()
    pairs = len(x) * (len(x) - 1)
    return ((total - len(x)) / pairs).clamp_min(torch.finfo(torch.float64).tiny).log().item()


def spectrum(x: Tensor) -> Tensor:
    """The eigenvalues of the unit embeddings' covariance, descending, as fractions of their sum."""
    values = singular_values(F.normalize(x.double()), centred=True).square()
    return values / values.sum().clamp_min(torch.finfo(torch.float64).tiny)


# Each change alone, from none (0) to strong (1), of images as floats in [0, 1].
CHANGES: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    'crop': lambda x, s: T.resize(T.center_crop(x, _side(x, s)), list(x.shape[-2:]), antialias=True),
    'flip': lambda x, s: x.flip(-1) if s else x,  # it has no strength
    'brightness': lambda x, s: T.adjust_brightness(x, 1 + 0.8 * s),
    'contrast': lambda x, s: T.adjust_contrast(x, 1 - 0.8 * s),
    'saturation': lambda x, s: T.adjust_saturation(x, 1 - s),
    'hue': lambda x, s: T.adjust_hue(x, 0.5 * s),
    'blur': lambda x, s: T.gaussian_blur(x, max(3, x.shape[-1] // 20 * 2 + 1), sigma=2.0 * s) if s else x,
    'solarize': lambda x, s: torch.where(x >= 1 - 0.9 * s, 1 - x, x) if s else x,
    'rotation': lambda x, s: T.rotate(x, 90.0 * s, interpolation=T.InterpolationMode.BILINEAR) if s else x,
}
OF_RGB = ('brightness', 'contrast', 'saturation', 'hue')  # as torchvision has them
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


def _side(images: Tensor, strength: float) -> list[int]:
    """The middle of the image, down to a fifth of its area."""
    return [max(1, round((1 - 0.8 * strength) ** 0.5 * side)) for side in images.shape[-2:]]


@torch.inference_mode()
def invariance(
    embed: Callable[[Tensor], Tensor], images: Tensor, strengths: Sequence[float] = STRENGTHS
) -> dict[str, list[float]]:
    """For each change alone, how much of the likeness to itself an image keeps as the change grows.

    1 where the embedding does not notice, 0 where the changed image is no more like the image than another image is.
    Images that are not RGB keep their colours.
    """
    here = F.normalize(embed(images).double())
    others = (here @ here.T).fill_diagonal_(0).sum() / (len(here) * (len(here) - 1))
    apart = (
        1 - others if (here - here[:1]).abs().max() > 1e-9 else torch.nan
    )  # where all are one point there is no answer
    kept = {}
    for name, change in CHANGES.items():
        if images.shape[1] != 3 and name in OF_RGB:
            continue
        there = (F.normalize(embed(change(images, strength).clamp(0, 1)).double()) for strength in strengths)
        kept[name] = [(((here * x).sum(dim=1).mean() - others) / apart).item() for x in there]
    return kept
