"""The color jitter of BYOL's released code."""

import torch
from torch import Tensor

from mmairl.data.transforms import Augmentation, ColorJitter, Params
from mmairl.registry import TRANSFORMS


@TRANSFORMS.register_module()
class ReleaseColorJitter(ColorJitter):
    """A variant of `ColorJitter` from BYOL's released code, for RGB images.

    Brightness is not multiplied: a number that is uniform in [-brightness, brightness] is added to
    all values. The contrast of each channel is changed relative to the mean of that channel.
    """

    single = Augmentation.single

    def draw(self, count: int, height: int, width: int) -> Params:
        params = super().draw(count, height, width)
        params['amounts'][:, 0] -= 1
        return params

    def change(self, images: Tensor, number: int, amount: Tensor) -> Tensor:
        if number == 0:
            return images + amount
        if number == 1:
            return torch.lerp(images.mean((2, 3), keepdim=True), images, amount)
        return super().change(images, number, amount)
