"""An adapter that lets views contain transforms of torchvision or albumentations, and functions."""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmairl.data.transforms import interleaved
from mmairl.errors import UserError, explained
from mmairl.registry import TRANSFORMS

# The transforms that a user passed as Python objects, by the names that configs use for them.
OBJECTS: dict[str, Callable[..., Any]] = {}


def as_configs(steps: Sequence[dict | Callable[..., Any]]) -> list[dict]:
    """Return one config for each step. Python objects are stored in OBJECTS."""
    configs = []
    for step in steps:
        if not isinstance(step, dict):
            kind = getattr(step, '__qualname__', '')
            name = f'{step.__module__}.{kind}' if kind else repr(step)
            while OBJECTS.setdefault(name, step) is not step:
                name += "'"
            step = dict(type='ForeignTransform', transform=name)
        configs.append(step)
    return configs


@TRANSFORMS.register_module()
class ForeignTransform:
    """Applies a transform of torchvision v2 or albumentations, or a function, to single images.

    Runs with the same seed are identical if the transform draws its random numbers from torch,
    NumPy, Python's `random` or albumentations. A function receives and returns a C x H x W tensor
    of bytes or floats.

    Args:
        transform: The transform, or the name 'module.name' of a class, an instance or a function.
        settings: Keyword arguments for the class or the function.

    Raises:
        UserError: If the transform cannot be imported, or does not return one image with as many
            channels as its input.

    Example:
        >>> step = ForeignTransform('torchvision.transforms.v2.RandomRotation', degrees=30)
        >>> step(torch.zeros(3, 8, 8)).shape
        torch.Size([3, 8, 8])
    """

    def __init__(self, transform: str | Callable[..., Any], **settings: Any) -> None:
        self.name = str(transform)
        transform = OBJECTS.get(self.name, transform)
        if isinstance(transform, str):
            remedy = "set 'module.name' of an installed package, or pass the object from Python"
            with explained(f'{transform}: cannot be imported', remedy, code='no-transform'):
                transform = resolve_name(transform)
        if isinstance(transform, type):
            transform = transform(**settings)
        elif settings:
            transform = partial(transform, **settings)
        self.transform = transform
        self.is_albumentations = type(transform).__module__.startswith('albumentations')

    def __call__(self, image: Tensor) -> Tensor:
        if self.is_albumentations:
            # A transform of albumentations has its own random generators.
            seed = int(torch.randint(2**62, ()))
            self.transform.set_random_state(np.random.default_rng(seed), random.Random(seed))
            pixels = self.transform(image=interleaved(image.cpu()))['image']
            changed = torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())
        else:
            changed = self.transform(image)
        if not isinstance(changed, Tensor) or changed.shape[:-2] != image.shape[:-2]:
            raise UserError(
                f'{self.name}: must return one image with {len(image)} channels as a tensor, but '
                f"returned '{type(changed).__name__}'; correct the transform",
                code='not-one-image',
            )
        return changed

    def batch(self, images: Tensor) -> Tensor:
        return torch.stack([self(image).to(images.device) for image in images])
