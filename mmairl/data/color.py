"""What the view's colours become: jitter, grey, solarize."""

import cv2
import numpy as np
import torch
from torch import Tensor

from mmairl.data.augment import Augmentation, Params, chosen, interleaved, planes, put, to_bytes, uniform
from mmairl.registry import TRANSFORMS

LUMA = (0.2989, 0.587, 0.114)
LUMA_ROW = np.array([LUMA], np.float32)
IDENTITY = np.eye(3, dtype=np.float32)


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """With probability p, change brightness, contrast, saturation and hue, in an order drawn per image.

    A factor of strength s is uniform in [max(0, 1 - s), 1 + s], the hue shift in [-hue, hue] of the circle. Nothing is
    rounded between the four, in either form.
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
        pixels, amounts = interleaved(image).astype(np.float32), params['amounts'][0].tolist()
        for operation in params['order'][0].tolist():
            pixels = SINGLE[operation](pixels, amounts[operation])
        return planes(to_bytes(pixels))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Four rounds; in each, every operation takes the images whose turn for it this is, so each image pays once."""
        turns = params['order'][params['on']].T  # which operation an image takes in each round
        by_operation = turns.argsort(1)
        rows = params['on'].nonzero().squeeze(1)[by_operation]
        amounts = params['amounts'][rows, turns.gather(1, by_operation)]
        counts = [[int((turn == operation).sum()) for operation in range(4)] for turn in turns]
        images, rows, amounts = images.clone(), put(rows, images), put(amounts.to(images.dtype), images)
        for count, row, amount in zip(counts, rows, amounts):
            for adjust, some, by in zip(BATCHED, row.split(count), amount.split(count)):
                if len(some):
                    images.index_copy_(0, some, adjust(images[some], by.view(-1, 1, 1, 1)))
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
    # one channel at a time: the constants stay on the host
    k = torch.cat([hue + 5, hue + 3, hue + 1], 1).remainder_(6)
    return value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1)


BATCHED = (brighten, contrast, saturate, shift_hue)

# The same on one image: float32 HWC in [0, 255].


def brighten_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    return clipped(cv2.transform(pixels, factor * IDENTITY))


def contrast_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    offset = (1 - factor) * cv2.transform(pixels, LUMA_ROW).mean()
    return clipped(cv2.transform(pixels, np.hstack([factor * IDENTITY, np.full((3, 1), offset, np.float32)])))


def saturate_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    return clipped(cv2.transform(pixels, factor * IDENTITY + (1 - factor) * LUMA_ROW))


def shift_pixels_hue(pixels: np.ndarray, shift: float) -> np.ndarray:
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # hue in degrees, value as it came
    # OpenCV takes a hue of more than 360 degrees for what it is, but not one below 0.
    return cv2.cvtColor(cv2.add(hsv, (360 * (shift % 1), 0, 0, 0)), cv2.COLOR_HSV2RGB)


def clipped(pixels: np.ndarray) -> np.ndarray:
    torch.from_numpy(pixels).clamp_(0, 255)  # in place, in a quarter of the time of numpy's
    return pixels


SINGLE = (brighten_pixels, contrast_pixels, saturate_pixels, shift_pixels_hue)


@TRANSFORMS.register_module()
class RandomGrayscale(Augmentation):
    """Replace all three channels by the luminance, with probability p."""

    def __init__(self, p: float) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        if not params['on']:
            return image
        luminance = to_bytes(cv2.transform(interleaved(image).astype(np.float32), LUMA_ROW))
        return torch.from_numpy(luminance).repeat(3, 1, 1)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        rows = chosen(params['on'], images)
        return images.index_copy(0, rows, grey(images[rows]).expand(-1, 3, -1, -1))


@TRANSFORMS.register_module()
class Solarize(Augmentation):
    """Invert every value at or above the threshold (of 255), with probability p."""

    def __init__(self, p: float, threshold: int = 128) -> None:
        self.p, self.threshold = p, threshold
        values = np.arange(256, dtype=np.uint8)
        self.table = np.where(values >= threshold, 255 - values, values)

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return planes(cv2.LUT(interleaved(image), self.table)) if params['on'] else image

    def apply(self, images: Tensor, params: Params) -> Tensor:
        # Half a step lower: a uint8 worker would have rounded such a value up to the threshold.
        bright = images >= (self.threshold - 0.5) / 255
        return torch.where(bright & put(params['on'], images).view(-1, 1, 1, 1), 1 - images, images)
