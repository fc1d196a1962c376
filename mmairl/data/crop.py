"""Where the view looks: crops, flips, and the fixed resizing of evaluation."""

import math

import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode

from mmairl.data.augment import Augmentation, Params, uniform
from mmairl.registry import TRANSFORMS

ATTEMPTS = 10


@TRANSFORMS.register_module()
class RandomResizedCrop(Augmentation):
    """Cut a box of random area and aspect ratio and resize it, antialiased, to a square.

    The batched form is one matrix product per axis, `rows @ image @ columns`, whose matrices are the weights of the
    antialiased bilinear filter inside each image's own box: exact, and faster than sampling a grid on small images.
    """

    def __init__(
        self, size: int, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
    ) -> None:
        self.size, self.scale, self.ratio = size, tuple(scale), tuple(ratio)

    def draw(self, count: int, height: int, width: int) -> Params:
        area = uniform(*self.scale, count, ATTEMPTS) * height * width
        ratio = uniform(math.log(self.ratio[0]), math.log(self.ratio[1]), count, ATTEMPTS).exp()
        heights, widths = (area / ratio).sqrt().round(), (area * ratio).sqrt().round()
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        first = fits.int().argmax(1, keepdim=True)  # the first attempt that fits
        centre_height, centre_width = self._largest(height, width)
        none = ~fits.any(1)
        h = heights.gather(1, first).squeeze(1).masked_fill(none, centre_height)
        w = widths.gather(1, first).squeeze(1).masked_fill(none, centre_width)
        top = (torch.rand(count) * (height - h + 1)).floor().clamp(max=height - h)
        left = (torch.rand(count) * (width - w + 1)).floor().clamp(max=width - w)
        top = top.masked_fill(none, (height - centre_height) // 2)
        left = left.masked_fill(none, (width - centre_width) // 2)
        return dict(top=top, left=left, height=h, width=w)

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        """The largest centred box of an allowed aspect ratio: what is left when no attempt fits a very long image."""
        if width / height < self.ratio[0]:
            return round(width / self.ratio[0]), width
        if width / height > self.ratio[1]:
            return height, round(height * self.ratio[1])
        return height, width

    def single(self, image: Tensor, params: Params) -> Tensor:
        box = [int(params[key]) for key in ('top', 'left', 'height', 'width')]
        return F.resized_crop(image, *box, [self.size, self.size], antialias=True)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        count, channels, height, width = images.shape
        params = {key: value.to(images.device, images.dtype) for key, value in params.items()}
        rows = filter_weights(params['top'], params['height'], height, self.size)
        columns = filter_weights(params['left'], params['width'], width, self.size)
        narrow = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2))
        return torch.matmul(rows[:, None], narrow.view(count, channels, height, self.size))


def filter_weights(start: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """(B, target, source) weights of antialiased bilinear resizing of the interval [start, start + length)."""
    start, length = start[:, None, None], length[:, None, None]
    step = length / target
    centre = start + (torch.arange(target, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(source, device=start.device) + 0.5
    weights = (1 - (pixel - centre).abs() / step.clamp(min=1)).clamp_(min=0)
    weights *= (pixel > start) & (pixel < start + length)
    return weights / weights.sum(-1, keepdim=True)


@TRANSFORMS.register_module()
class RandomFlip(Augmentation):
    """Mirror left and right with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.horizontal_flip(image) if params['on'] else image

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(params['on'].to(images.device).view(-1, 1, 1, 1), images.flip(-1), images)


@TRANSFORMS.register_module()
class Resize:
    """Bring the shorter side to `size`, antialiased."""

    def __init__(self, size: int, interpolation: str = 'bilinear') -> None:
        self.size, self.interpolation = size, InterpolationMode(interpolation)

    def __call__(self, image: Tensor) -> Tensor:
        return F.resize(image, [self.size], self.interpolation, antialias=True)

    def batch(self, images: Tensor) -> Tensor:
        return self(images).clamp_(0, 1)  # bicubic overshoots


@TRANSFORMS.register_module()
class CenterCrop:
    """Cut the `size` square in the middle."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Tensor) -> Tensor:
        return F.center_crop(image, [self.size, self.size])

    def batch(self, images: Tensor) -> Tensor:
        return self(images)
