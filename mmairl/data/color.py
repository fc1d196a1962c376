"""What the view's colours become: jitter, grey, solarize."""

import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor

from mmairl.data.augment import Augmentation, Params, per_image, uniform
from mmairl.registry import TRANSFORMS

LUMA = (0.2989, 0.587, 0.114)


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """With probability p, change brightness, contrast, saturation and hue, in an order drawn per image.

    A factor of strength s is uniform in [max(0, 1 - s), 1 + s], the hue shift in [-hue, hue] of the circle.
    """

    def __init__(self, p: float, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        self.p, self.hue = p, hue
        self.strengths = (brightness, contrast, saturation)

    def draw(self, count: int, height: int, width: int) -> Params:
        factors = [uniform(max(0.0, 1 - strength), 1 + strength, count) for strength in self.strengths]
        return dict(
            on=torch.rand(count) < self.p,
            amounts=torch.stack([*factors, uniform(-self.hue, self.hue, count)], dim=1),
            order=torch.rand(count, 4).argsort(1),
        )

    def single(self, image: Tensor, params: Params) -> Tensor:
        if not params['on']:
            return image
        adjusts = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
        amounts = params['amounts'][0].tolist()
        for operation in params['order'][0].tolist():
            image = adjusts[operation](image, amounts[operation])
        return image

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Four rounds; in each, every operation takes the images whose turn for it this is, so each image pays once."""
        images = images.clone()
        for turn in params['order'].T:
            for operation, adjust in enumerate((brighten, contrast, saturate, shift_hue)):
                chosen = (params['on'] & (turn == operation)).nonzero().squeeze(1)
                if len(chosen):
                    amounts = per_image(params['amounts'][chosen, operation], images)
                    chosen = chosen.to(images.device)
                    images[chosen] = adjust(images[chosen], amounts)
        return images


def grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def brighten(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp_(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(grey(images).mean((2, 3), keepdim=True), images, factor).clamp_(0, 1)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    return torch.lerp(grey(images), images, factor).clamp_(0, 1)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue by a fraction of the circle at fixed saturation and value.

    With V the largest channel, C the chroma and h in [0, 6) the hue, a channel is V - C clip(min(k, 4 - k), 0, 1),
    k = (h + n) mod 6, n = 5, 3, 1 for red, green, blue: no table of sectors.
    """
    red, green, blue = images.split(1, dim=1)
    low, value = images.aminmax(dim=1, keepdim=True)
    chroma = value - low
    divisor = torch.where(chroma == 0, 1, chroma)
    of_red, of_green, of_blue = (green - blue) / divisor, (blue - red) / divisor + 2, (red - green) / divisor + 4
    hue = torch.where(value == red, of_red, torch.where(value == green, of_green, of_blue)) + 6 * shift
    k = (hue + torch.tensor([5.0, 3.0, 1.0], device=images.device).view(3, 1, 1)).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


@TRANSFORMS.register_module()
class RandomGrayscale(Augmentation):
    """Replace all three channels by the luminance, with probability p."""

    def __init__(self, p: float) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.rgb_to_grayscale(image, num_output_channels=3) if params['on'] else image

    def apply(self, images: Tensor, params: Params) -> Tensor:
        chosen = params['on'].nonzero().squeeze(1).to(images.device)
        return images.index_copy(0, chosen, grey(images[chosen]).expand(-1, 3, -1, -1))


@TRANSFORMS.register_module()
class Solarize(Augmentation):
    """Invert every value at or above the threshold (of 255), with probability p."""

    def __init__(self, p: float, threshold: int = 128) -> None:
        self.p, self.threshold = p, threshold

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.solarize(image, self.threshold) if params['on'] else image

    def apply(self, images: Tensor, params: Params) -> Tensor:
        # Half a step lower: a uint8 worker would have rounded such a value up to the threshold.
        bright = images >= (self.threshold - 0.5) / 255
        return torch.where(bright & params['on'].to(images.device).view(-1, 1, 1, 1), 1 - images, images)
