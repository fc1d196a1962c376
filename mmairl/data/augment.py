"""What every random augmentation shares: one drawing of parameters, two ways of applying them."""

import cv2
import numpy as np
import torch
from torch import Tensor

Params = dict[str, Tensor]

# OpenCV's pool of threads does not survive a fork, and each data worker has one core to itself.
cv2.setNumThreads(0)


class Augmentation:
    """A random change of images, as `augment(uint8 CHW)` in a data worker or `augment.batch(float BCHW)` on any device.

    Both draw from torch's global CPU generator, one parameter per image, so a seed repeats a run bit for bit on any
    device, and the two forms have one distribution by construction: `single` is `apply` rounded to bytes.
    """

    def draw(self, count: int, height: int, width: int) -> Params:
        """Parameters for `count` images of this size, as CPU tensors whose first axis is the image."""
        raise NotImplementedError

    def single(self, image: Tensor, params: Params) -> Tensor:
        """Change one uint8 CHW image by the parameters of one image."""
        raise NotImplementedError

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change a float BCHW batch in [0, 1], each image by its own parameters."""
        raise NotImplementedError

    def __call__(self, image: Tensor) -> Tensor:
        return self.single(image, self.draw(1, *image.shape[-2:]))

    def batch(self, images: Tensor) -> Tensor:
        return self.apply(images, self.draw(len(images), *images.shape[-2:]))


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(low, high)


def put(values: Tensor, images: Tensor) -> Tensor:
    """Parameters where the images are, without waiting for what a GPU has still to do: from pinned memory."""
    if images.is_cuda:
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def chosen(on: Tensor, images: Tensor) -> Tensor:
    """The rows of the images that a mask chooses, where the images are; found on the CPU, so that no device is asked."""
    return put(on.nonzero().squeeze(1), images)


def interleaved(image: Tensor) -> np.ndarray:
    """A CHW image as OpenCV takes it, HWC: a view where a pixel's channels are neighbours already, a copy otherwise."""
    pixels = image.permute(1, 2, 0)
    if pixels.stride()[1:] == (len(image), 1):
        return pixels.numpy()
    return cv2.merge([plane.numpy() for plane in image])


def planes(pixels: np.ndarray) -> Tensor:
    """The way back: HWC to a CHW tensor, by OpenCV's split, which is ten times as fast as a strided copy."""
    image = np.empty((pixels.shape[2], *pixels.shape[:2]), pixels.dtype)
    cv2.split(pixels, list(image))
    return torch.from_numpy(image)


def to_bytes(pixels: np.ndarray) -> np.ndarray:
    """Floats in [0, 255] to the nearest byte."""
    return cv2.convertScaleAbs(pixels)
