"""Augmentations of single images in data workers and of batches on a device, and transforms of other libraries.

Resize and CenterCrop always change an image in the same way. All others sample random parameters.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import cv2
import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torch.nn.functional import conv2d, pad
from torchvision.transforms import v2

from mmairl.data.decode import channels_first, to_unit
from mmairl.errors import UserError, explained
from mmairl.registry import TRANSFORMS

Params = dict[str, Tensor]


class Augmentation:
    """Base class of augmentations, with one implementation for data workers and one for devices.

    `augment(image)` changes one CHW image in a data worker, and `augment.batch(images)` changes a
    float BCHW batch on any device. Both sample the parameters of each image from torch's global CPU
    generator, so a seed yields the same views on every device. A data worker changes 8-bit RGB
    images by `single`, and other images as floats by `apply`.

    A subclass defines `apply(images, params)`, which changes all images of a float BCHW batch, each
    with its own parameters. It may define `draw`, which samples parameters, and `single`, which is
    usually faster on one image.

    Args:
        p: Probability that an image is changed.

    Attributes:
        clips: Whether the change is defined only for values in [0, 1]. If so, training on images
            with values outside this range is an error.
    """

    clips = False

    def __init__(self, p: float = 1.0) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        """Sample the parameters of `count` images of this size: CPU tensors, one row per image."""
        return {}

    def single(self, image: Tensor, params: Params) -> Tensor:
        """Change one uint8 CHW image."""
        changed = self.apply(to_unit(image)[None], params)[0]
        return (255 * changed).round().byte()

    def __call__(self, image: Tensor) -> Tensor:
        is_photograph = image.dtype is torch.uint8 and len(image) == 3
        if not is_photograph:
            # Changed images have float values, so unchanged images in the same batch must have
            # float values as well.
            image = to_unit(image)
        if torch.rand(()) >= self.p:
            return image
        params = self.draw(1, *image.shape[-2:])
        if is_photograph:
            return self.single(image, params)
        return self.apply(image[None], params)[0]

    def batch(self, images: Tensor) -> Tensor:
        """Change a float BCHW batch. The host does not wait for the device."""
        on = torch.rand(len(images)) < self.p
        params = self.draw(len(images), *images.shape[-2:])
        if on.all():
            return self.apply(images, params)
        if not on.any():
            return images
        params = {key: value[on] for key, value in params.items()}
        rows = to_device_of(on.nonzero().squeeze(1), images)
        return images.index_copy(0, rows, self.apply(images[rows], params))


def to_device_of(values: Tensor, images: Tensor) -> Tensor:
    """Copy parameters to the device of the images. The host does not wait for the copy."""
    if images.is_cuda:
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def to_gray(images: Tensor) -> Tensor:
    """Convert RGB images to gray. All three channels become the luminance."""
    require_rgb(images)
    return F.rgb_to_grayscale(images, 3)


def require_rgb(images: Tensor) -> None:
    if images.shape[-3] != 3:
        raise UserError(
            'RandomGrayscale, and saturation and hue of ColorJitter: require RGB images, but the '
            f'images have {images.shape[-3]} channels; remove RandomGrayscale from the views, and '
            'set saturation and hue to 0',
            code='views-channels',
        )


def interleaved(image: Tensor) -> np.ndarray:
    """Convert a CHW image to OpenCV's HWC layout. Nothing is copied if it already has this."""
    pixels = image.permute(1, 2, 0)
    if pixels.stride()[1:] == (len(image), 1):
        return pixels.numpy()
    return cv2.merge(image.numpy())


def planes(pixels: np.ndarray) -> Tensor:
    """Round an HWC image to bytes, and convert it to a CHW tensor.

    OpenCV's split takes a tenth of the time of a strided copy.
    """
    pixels = cv2.convertScaleAbs(pixels)
    height, width, channels = pixels.shape
    image = np.empty((channels, height, width), np.uint8)
    cv2.split(pixels, list(image))
    return torch.from_numpy(image)


ATTEMPTS = 10


@TRANSFORMS.register_module()
class RandomResizedCrop(Augmentation):
    """Crop a box of random area and aspect ratio, and resize it to a square with antialiasing.

    The aspect ratio (width / height) is log-uniform between 3/4 and 4/3.

    A batch is cropped and resized by two matrix products per image, `rows @ image @ columns`. The
    matrices contain the weights of the antialiased filter inside the image's box. Up to rounding,
    the result equals that of torchvision's `resized_crop`.

    Args:
        size: Height and width of the result.
        scale: Range of the area of the box, as a fraction of the image's area.
        interpolation: The filter, 'bilinear' or 'bicubic'.
    """

    def __init__(
        self,
        size: int,
        scale: tuple[float, float] = (0.08, 1.0),
        interpolation: str = 'bilinear',
    ) -> None:
        super().__init__()
        self.interpolation = v2.InterpolationMode(interpolation)
        self.kernel = KERNELS[interpolation]
        self.size = size
        self.scale = scale

    def draw(self, count: int, height: int, width: int) -> Params:
        # For a single image, NumPy's calls take a fifth of the time of torch's calls.
        chance = torch.rand(count, 2 * ATTEMPTS + 2, dtype=torch.float64).numpy()
        low, high = self.scale
        area = (low + (high - low) * chance[:, :ATTEMPTS]) * height * width
        low, high = np.log([3 / 4, 4 / 3])
        ratio = np.exp(low + (high - low) * chance[:, ATTEMPTS:-2])
        heights = np.rint(np.sqrt(area / ratio)).clip(1)
        widths = np.rint(np.sqrt(area * ratio)).clip(1)
        # The first sampled box that fits into the image is used. For long images, it can happen
        # that none fits. The first box is then cut.
        fits = (heights <= height) & (widths <= width)
        first = np.arange(count), fits.argmax(1)
        h = heights[first].clip(max=height)
        w = widths[first].clip(max=width)
        top = np.floor(chance[:, -2] * (height - h + 1))
        left = np.floor(chance[:, -1] * (width - w + 1))
        box = dict(top=top, left=left, height=h, width=w)
        return {key: torch.from_numpy(value) for key, value in box.items()}

    def __call__(self, image: Tensor) -> Tensor:
        params = self.draw(1, *image.shape[-2:])
        box = map(int, params.values())
        return F.resized_crop(image, *box, [self.size] * 2, self.interpolation, antialias=True)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        box = [to_device_of(value.to(images.dtype), images) for value in params.values()]
        top, left, h, w = (value[:, None, None] for value in box)
        rows = filter_weights(self.kernel, top, h, images.shape[2], self.size)
        columns = filter_weights(self.kernel, left, w, images.shape[3], self.size)
        # One large product is faster than a product for each channel.
        narrow = torch.bmm(images.flatten(1, 2), columns.mT)
        return rows[:, None] @ narrow.unflatten(1, images.shape[1:3])


def linear(distance: Tensor) -> Tensor:
    return (1 - distance).clamp_(min=0)


def cubic(distance: Tensor) -> Tensor:
    """Return the values of Keys's cubic kernel with a = -0.5, as torch and Pillow use it."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((2.5 - 0.5 * distance) * distance - 4) * distance + 2
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0))


KERNELS = dict(bilinear=linear, bicubic=cubic)


def filter_weights(
    kernel: Callable[[Tensor], Tensor], start: Tensor, length: Tensor, source: int, target: int
) -> Tensor:
    """Return the weights of an antialiased filter that resizes [start, start + length).

    The result has the shape (B, target, source): one matrix per image, which maps `source` pixels
    to `target` pixels.
    """
    step = length / target
    number = torch.arange(target, device=start.device)[:, None]
    center = start + (number + 0.5) * step
    pixel = torch.arange(source, device=start.device) + 0.5
    distance = (pixel - center).abs() / step.clamp(min=1)
    weights = kernel(distance)
    weights *= (pixel > start) & (pixel < start + length)
    return weights / weights.sum(-1, keepdim=True)


@TRANSFORMS.register_module()
class RandomFlip(Augmentation):
    """Mirror the image left to right.

    Args:
        p: Probability of the change.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__(p)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return images.flip(-1)

    single = apply


@TRANSFORMS.register_module()
class RandomTurn(Augmentation):
    """Apply a random one of the eight rotations and reflections of a square.

    The images of a batch must be square.

    Args:
        p: Probability of the change.
    """

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(turn=torch.randint(8, (count,)))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        turned = []
        for image, turn in zip(images, params['turn'].tolist()):
            mirrored = image.flip(-1) if turn > 3 else image
            turned.append(mirrored.rot90(turn, (-2, -1)))
        return torch.stack(turned)


@TRANSFORMS.register_module()
class Resize(v2.Resize):
    """Resize images with antialiasing.

    Args:
        size: Length of the shorter side, or (height, width).
        interpolation: torchvision's name of the filter, such as 'bilinear' or 'bicubic'.
    """

    def __init__(
        self,
        size: int | tuple[int, int],
        interpolation: str = 'bilinear',
    ) -> None:
        super().__init__(size, v2.InterpolationMode(interpolation))

    batch = v2.Resize.__call__


@TRANSFORMS.register_module()
class CenterCrop(v2.CenterCrop):
    """Crop the central square with sides of `size` pixels."""

    batch = v2.CenterCrop.__call__


LUMA_ROW = np.array([[0.2989, 0.587, 0.114]], np.float32)
TINY = 1e-12  # smallest divisor in shift_hue, because the chroma of a gray pixel is 0


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """Change brightness, contrast, saturation and hue, in a random order for each image.

    Brightness, contrast and saturation are multiplied by factors. If the strength is s, the factor
    is uniform in [max(0, 1 - s), 1 + s]. The hue is shifted by a uniform fraction of the color
    circle in [-hue, hue]. Values are not rounded between the four changes.

    For images that are not RGB, the contrast of each channel is changed relative to the mean of
    that channel, and saturation and hue must be 0.

    Args:
        p: Probability of the change.
        brightness: Strength of the brightness factor.
        contrast: Strength of the contrast factor.
        saturation: Strength of the saturation factor.
        hue: Largest hue shift, as a fraction of the color circle.
    """

    clips = True

    def __init__(
        self,
        p: float,
        brightness: float,
        contrast: float,
        saturation: float,
        hue: float,
    ) -> None:
        super().__init__(p)
        self.strengths = (brightness, contrast, saturation, hue)

    def draw(self, count: int, height: int, width: int) -> Params:
        *strengths, hue = self.strengths
        ranges = [(max(0.0, 1 - value), 1 + value) for value in strengths]
        amounts = [torch.empty(count).uniform_(*limits) for limits in [*ranges, (-hue, hue)]]
        order = torch.rand(count, 4).argsort(1)
        return dict(amounts=torch.stack(amounts, 1), order=order)

    def single(self, image: Tensor, params: Params) -> Tensor:
        pixels = interleaved(image).astype(np.float32)
        amounts = params['amounts'][0].tolist()
        for number in params['order'][0].tolist():
            pixels = change_pixels(pixels, number, amounts[number])
        return planes(pixels)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change the images in groups that have the same change at the same step of their order."""
        amounts = to_device_of(params['amounts'], images)
        # In each column, the images are sorted by the change that they have at this step.
        groups = to_device_of(params['order'].argsort(0), images)
        changed = images.clone()
        for step, numbers in enumerate(params['order'].T):
            counts = numbers.bincount(minlength=4).tolist()
            for number, rows in enumerate(groups[:, step].split(counts)):
                if self.strengths[number]:
                    amount = amounts[rows, number].view(-1, 1, 1, 1)
                    result = self.change(changed[rows], number, amount)
                    changed.index_copy_(0, rows, result.clamp_(0, 1))
        return changed

    def change(self, images: Tensor, number: int, amount: Tensor) -> Tensor:
        """Change brightness (0), contrast (1), saturation (2) or hue (3) of a float BCHW batch."""
        if number == 0:
            return images * amount
        if number == 3:
            return shift_hue(images, amount)
        gray = to_gray(images) if number == 2 or images.shape[1] == 3 else images
        if number == 1:
            gray = gray.mean((2, 3), keepdim=True)
        return torch.lerp(gray, images, amount)


def shift_hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of RGB images by a fraction of the color circle. Keep saturation and value.

    Let V be the value (the largest channel), C the chroma and h the hue in [0, 6). Then each
    channel is V - C clip(min(k, 4 - k), 0, 1), where k = (h + n) mod 6 and n is 5, 3 and 1 for red,
    green and blue.
    """
    require_rgb(images)
    value, largest = images.max(dim=1, keepdim=True)
    chroma = value - images.amin(dim=1, keepdim=True)
    # The channels are green, blue, red and green again. The differences of neighbors yield the hue
    # if red, green or blue, respectively, is the largest channel.
    around = torch.cat([images[:, 1:], images[:, :2]], 1)
    difference = (around[:, :3] - around[:, 1:]).div_(chroma.clamp(min=TINY))
    hue = difference.gather(1, largest).add_(largest, alpha=2)
    k = torch.cat([hue + 5, hue + 3, hue + 1], 1)
    k.add_(6 * shift).remainder_(6)
    part = torch.minimum(k, 4 - k).clamp_(0, 1)
    return torch.addcmul(value, part, chroma, value=-1)


def change_pixels(pixels: np.ndarray, number: int, amount: float) -> np.ndarray:
    """Change brightness (0), contrast (1), saturation (2) or hue (3) of a float32 HWC image.

    The values are in [0, 255].
    """
    if number == 3:
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # for float32 images, the hue is in degrees
        # OpenCV accepts a hue above 360 degrees but no hue below 0, so the shift is positive.
        shifted = cv2.add(hsv, (360 * (amount % 1), 0, 0, 0))
        return cv2.cvtColor(shifted, cv2.COLOR_HSV2RGB)
    change = amount * np.eye(3, dtype=np.float32)
    if number == 1:
        offset = (1 - amount) * cv2.transform(pixels, LUMA_ROW).mean()
        change = np.hstack([change, np.full((3, 1), offset, np.float32)])
    elif number == 2:
        change = change + (1 - amount) * LUMA_ROW
    changed = cv2.transform(pixels, change)
    # This clips in place, in a quarter of the time that np.clip takes.
    torch.from_numpy(changed).clamp_(0, 255)
    return changed


@TRANSFORMS.register_module()
class RandomGrayscale(Augmentation):
    """Convert an RGB image to gray. All three channels become the luminance.

    Args:
        p: Probability of the change.
    """

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return to_gray(images)

    single = apply


@TRANSFORMS.register_module()
class Solarize(Augmentation):
    """Invert every value at or above a threshold.

    Args:
        p: Probability of the change.
        threshold: The threshold, on the scale from 0 to 255.
    """

    clips = True

    def __init__(self, p: float, threshold: int = 128) -> None:
        super().__init__(p)
        self.threshold = threshold

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.solarize(image, self.threshold)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        # In 8-bit images, earlier transforms have rounded the values, so a value that was at most
        # 0.5 below the threshold is inverted. Here, values are not rounded.
        return F.solarize(images, (self.threshold - 0.5) / 255)


# A Gaussian kernel is cut off at this many standard deviations. The rest does not change any byte.
MAX_SIGMAS = 5.5


@TRANSFORMS.register_module()
class GaussianBlur(Augmentation):
    """Blur an image with a Gaussian kernel of random standard deviation, and reflect its edges.

    The kernel is about a tenth as long as the shorter side of the image: 23 pixels for 224.

    Args:
        p: Probability of the change.
        sigma: Range of the standard deviation in pixels.
    """

    def __init__(self, p: float, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        super().__init__(p)
        self.sigma = sigma

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(sigma=torch.empty(count).uniform_(*self.sigma))

    def single(self, image: Tensor, params: Params) -> Tensor:
        sigma = params['sigma'].item()
        reach = min(*image.shape[1:]) // 20
        reach = min(reach, max(1, int(MAX_SIGMAS * sigma)))
        kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
        kernel = (kernel / kernel.sum()).astype(np.float32)
        pixels = interleaved(image)
        # OpenCV's default border is a reflection.
        return planes(cv2.sepFilter2D(pixels, cv2.CV_32F, kernel, kernel))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Blur by two depthwise convolutions: each channel of each image has its own kernel."""
        sigma = to_device_of(params['sigma'].to(images.dtype), images)[:, None]
        reach = min(images.shape[2:]) // 20
        offset = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
        kernels = (-0.5 * (offset / sigma) ** 2).softmax(1)
        kernels = kernels.repeat_interleave(images.shape[1], 0)
        blurred = pad(images, [reach] * 4, mode='reflect')
        blurred = blurred.flatten(0, 1)[None]
        for shape in [(1, len(offset)), (len(offset), 1)]:
            blurred = conv2d(blurred, kernels.view(-1, 1, *shape), groups=len(kernels))
        return blurred.view(images.shape)


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
            changed = channels_first(pixels)
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
