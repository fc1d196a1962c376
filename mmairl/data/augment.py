"""What every random augmentation shares: one drawing of parameters, two ways of applying them."""

import torch
from torch import Tensor

Params = dict[str, Tensor]


class Augmentation:
    """A random change of images, as `augment(uint8 CHW)` in a data worker or `augment.batch(float BCHW)` on any device.

    Both draw from torch's global CPU generator, one parameter per image, so a seed repeats a run bit for bit on any
    device, and the two forms have one distribution by construction.
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


def per_image(values: Tensor, images: Tensor) -> Tensor:
    """One value per image, shaped to broadcast over its channels and pixels, where the images are."""
    return values.to(images.device, images.dtype).view(-1, 1, 1, 1)
