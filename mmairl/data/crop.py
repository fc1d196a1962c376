"""Where the view looks: crops, flips, and the fixed resizing of evaluation."""

import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode

from mmairl.data.augment import Augmentation, Params, interleaved, put
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
        # In numpy: for one image its calls take a fifth of the time of torch's.
        chance = torch.rand(count, 2 * ATTEMPTS + 2, dtype=torch.float64).numpy()
        area = between(*self.scale, chance[:, :ATTEMPTS]) * height * width
        ratio = np.exp(between(*np.log(self.ratio), chance[:, ATTEMPTS:-2]))
        heights, widths = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
        fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
        first = np.arange(count), fits.argmax(1)  # the first attempt that fits
        h, w = heights[first], widths[first]
        top, left = np.floor(chance[:, -2] * (height - h + 1)), np.floor(chance[:, -1] * (width - w + 1))
        if not (any_fits := fits.any(1)).all():
            h[~any_fits], w[~any_fits] = centre = self._largest(height, width)
            top[~any_fits], left[~any_fits] = (height - centre[0]) // 2, (width - centre[1]) // 2
        return {key: torch.from_numpy(value) for key, value in dict(top=top, left=left, height=h, width=w).items()}

    def _largest(self, height: int, width: int) -> tuple[int, int]:
        """The largest centred box of an allowed aspect ratio: what is left when no attempt fits a very long image."""
        if width / height < self.ratio[0]:
            return round(width / self.ratio[0]), width
        if width / height > self.ratio[1]:
            return height, round(height * self.ratio[1])
        return height, width

    def single(self, image: Tensor, params: Params) -> Tensor:
        top, left, height, width = (int(params[key].item()) for key in ('top', 'left', 'height', 'width'))
        box = image[:, top : top + height, left : left + width]
        # torch resizes bytes twice as fast where a pixel's channels are neighbours.
        box = torch.from_numpy(interleaved(box)).permute(2, 0, 1)
        return torch.ops.aten._upsample_bilinear2d_aa(box[None], [self.size, self.size], False)[0]

    def apply(self, images: Tensor, params: Params) -> Tensor:
        count, channels, height, width = images.shape
        params = {key: put(value.to(images.dtype), images) for key, value in params.items()}
        rows = filter_weights(params['top'], params['height'], height, self.size)
        columns = filter_weights(params['left'], params['width'], width, self.size)
        narrow = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2))
        return torch.matmul(rows[:, None], narrow.view(count, channels, height, self.size))


def between(low: float, high: float, chance: np.ndarray) -> np.ndarray:
    return low + (high - low) * chance


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
        return torch.where(put(params['on'], images).view(-1, 1, 1, 1), images.flip(-1), images)


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
