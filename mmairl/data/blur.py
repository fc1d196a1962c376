"""How sharp the view is."""

import cv2
import numpy as np
import torch
from torch import Tensor

from mmairl.data.augment import Augmentation, Params, chosen, interleaved, planes, put, to_bytes, uniform
from mmairl.registry import TRANSFORMS

REACH = 5.5  # sigmas; beyond lies less than 1e-6 of a kernel, which moves no value by a thousandth of a byte's step


@TRANSFORMS.register_module()
class GaussianBlur(Augmentation):
    """With probability p, blur by a Gaussian of a width drawn per image; the kernel is a tenth of the image unless given."""

    def __init__(self, p: float, sigma: tuple[float, float] = (0.1, 2.0), kernel_size: int | None = None) -> None:
        self.p, self.sigma, self.kernel_size = p, tuple(sigma), kernel_size

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p, sigma=uniform(*self.sigma, count))

    def taps(self, size: int) -> int:
        """The odd kernel length for images of this size: 23 at 224."""
        return self.kernel_size or size // 20 * 2 + 1

    def single(self, image: Tensor, params: Params) -> Tensor:
        if not params['on']:
            return image
        kernel = gaussian(params['sigma'].item(), self.taps(min(image.shape[-2:])))
        blurred = cv2.sepFilter2D(interleaved(image), cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
        return planes(to_bytes(blurred))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        rows = chosen(params['on'], images)
        if not len(rows):
            return images
        sigma = put(params['sigma'][params['on']].to(images.dtype), images)
        return images.index_copy(0, rows, blur(images[rows], sigma, self.taps(min(images.shape[-2:]))))


def gaussian(sigma: float, taps: int) -> np.ndarray:
    """The middle of the normalised kernel of so many taps, as far as it matters."""
    reach = taps // 2
    offset = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offset / sigma) ** 2)
    return (weights / weights.sum())[np.abs(offset) <= max(1, REACH * sigma)].astype(np.float32)


def blur(images: Tensor, sigma: Tensor, taps: int) -> Tensor:
    """Blur each image by its own sigma: two depthwise convolutions over (image, channel), edges reflected."""
    count, channels, height, width = images.shape
    reach = taps // 2
    offset = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernels = (-0.5 * (offset / sigma[:, None]) ** 2).softmax(1).repeat_interleave(channels, 0)
    padded = torch.nn.functional.pad(images, [reach] * 4, mode='reflect')
    padded = padded.view(1, count * channels, height + 2 * reach, width + 2 * reach)
    for shape in [(1, taps), (taps, 1)]:
        padded = torch.nn.functional.conv2d(padded, kernels.view(-1, 1, *shape), groups=count * channels)
    return padded.view(images.shape)
