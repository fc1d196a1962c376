"""The color jitter of BYOL's released code."""

import torch
from torch import Tensor

from mmairl.data.transforms import (
    Augmentation,
    ColorJitter,
    Params,
    shift_hue,
    to_device_of,
    to_gray,
)
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

    def apply(self, images: Tensor, params: Params) -> Tensor:
        amounts, order = (to_device_of(params[key].float(), images) for key in ('amounts', 'order'))
        brightness, contrast, saturation = amounts[:, :3, None, None, None].unbind(1)
        turns = 6 * amounts[:, 3:] + amounts.new_tensor([5.0, 3.0, 1.0])
        rows = torch.arange(len(images), device=images.device)
        for number in order.long().unbind(1):
            results = [
                images + brightness,
                torch.lerp(images.mean((2, 3), keepdim=True), images, contrast),
                torch.lerp(to_gray(images), images, saturation),
                shift_hue(images.flatten(2), turns).view(images.shape),
            ]
            images = torch.stack(results)[number, rows].clamp(0, 1)
        return images
