"""Augmentations. Each draws random parameters and applies them to one image in a data worker or to a batch on a device."""

from collections.abc import Callable
from functools import partial

import cv2
import numpy as np
import torch
import torchvision.transforms.v2.functional as F
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, pad
from torchvision.transforms import v2

from mmairl.data.decode import to_unit
from mmairl.registry import TRANSFORMS

Params = dict[str, Tensor]
# OpenCV's conversion of floats in [0, 255] to the nearest byte.
to_bytes = cv2.convertScaleAbs


class Augmentation:
    """Base class of augmentations.

    `augment(image)` changes one CHW image in a data worker, and `augment.batch(images)` changes a float BCHW batch on any
    device. Both draw the parameters of each image from torch's global CPU generator, so a seed gives the same views on any
    device. In a worker, `single` changes 8-bit RGB images and equals `apply` rounded to bytes. Images with other channels or
    depths are changed as floats by `apply`.

    Args:
        p: Probability that an image is changed.

    Attributes:
        clips: Whether the result is clipped to [0, 1]. If so, a run with other image values is an error.
        rgb_alone: Whether the change is defined for RGB images only.
    """

    clips = False
    rgb_alone = False

    def __init__(self, p: float) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        """Draw parameters for `count` images of this size: CPU tensors with one row per image.

        The mask `on` selects the images to change.
        """
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        """Change one uint8 CHW image. Subclasses may override this with a faster form."""
        return (255 * self.exact(image, params)).round().byte()

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change a float BCHW batch in [0, 1], each image with its own parameters."""
        raise NotImplementedError

    def exact(self, image: Tensor, params: Params) -> Tensor:
        """Change one image with any number of channels and any depth."""
        return self.apply(to_unit(image)[None], params)[0]

    def only_rgb(self) -> str:
        """Return the change that is defined for RGB only and how to disable it; '' if there is none."""
        return f'{type(self).__name__} (leave it out)' if self.rgb_alone and self.p else ''

    def describe(self, params: Params) -> str:
        """Describe the parameters of one image; '' if the image is unchanged."""
        if not params.get('on', True):
            return ''
        parts = []
        for key, value in params.items():
            if key != 'on':
                numbers = ' '.join(f'{number:.4g}' for number in value.flatten().tolist())
                parts.append(f' {key} {numbers}')
        return type(self).__name__ + ','.join(parts)

    def __call__(self, image: Tensor) -> Tensor:
        params = self.draw(1, *image.shape[-2:])
        if not params.get('on', True):
            return image
        is_photograph = image.dtype is torch.uint8 and len(image) == 3
        return self.single(image, params) if is_photograph else self.exact(image, params)

    def batch(self, images: Tensor) -> Tensor:
        return self.apply(images, self.draw(len(images), *images.shape[-2:]))


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(low, high)


def to_device_of(values: Tensor, images: Tensor) -> Tensor:
    """Copy parameters to the device of the images. Pinned memory spares the host from waiting for a GPU."""
    if images.is_cuda:
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def change_selected(images: Tensor, on: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change only the images that a CPU mask selects, without waiting for a GPU."""
    if not on.any():
        return images
    rows = to_device_of(on.nonzero().squeeze(1), images)
    return images.index_copy(0, rows, change(images[rows]))


def take_changed(on: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    """Return the changed image where a CPU mask is set, and the original elsewhere."""
    return torch.where(to_device_of(on, images).view(-1, 1, 1, 1), changed, images)


def interleaved(image: Tensor) -> np.ndarray:
    """Return a CHW image in OpenCV's HWC layout, without a copy if its memory already has that layout."""
    pixels = image.permute(1, 2, 0)
    if pixels.stride()[1:] == (len(image), 1):
        return pixels.numpy()
    return cv2.merge([plane.numpy() for plane in image])


def planes(pixels: np.ndarray) -> Tensor:
    """Convert an HWC image to a CHW tensor. OpenCV's split is ten times as fast as a strided copy."""
    height, width, channels = pixels.shape
    image = np.empty((channels, height, width), pixels.dtype)
    cv2.split(pixels, list(image))
    return torch.from_numpy(image)


ATTEMPTS = 10


@TRANSFORMS.register_module()
class RandomResizedCrop(Augmentation):
    """Crop a box of random area and aspect ratio, and resize it to a square with antialiasing.

    The batched form is one matrix product per axis, `rows @ image @ columns`. The matrices hold the weights of the
    antialiased bilinear filter inside each image's box. This is exact, and faster than grid sampling on small images.

    Args:
        size: Height and width of the result.
        scale: Range of the area, as a fraction of the image.
        ratio: Range of width / height, which is drawn log-uniformly.
    """

    def __init__(
        self,
        size: int,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self.size = size
        self.scale = tuple(scale)
        self.ratio = tuple(ratio)

    def draw(self, count: int, height: int, width: int) -> Params:
        # In NumPy, because for one image its calls take a fifth of the time of torch's.
        chance = torch.rand(count, 2 * ATTEMPTS + 2, dtype=torch.float64).numpy()
        area = between(*self.scale, chance[:, :ATTEMPTS]) * height * width
        ratio = np.exp(between(*np.log(self.ratio), chance[:, ATTEMPTS:-2]))
        heights = np.rint(np.sqrt(area / ratio))
        widths = np.rint(np.sqrt(area * ratio))
        fits = (heights >= 1) & (heights <= height)
        fits &= (widths >= 1) & (widths <= width)
        first = np.arange(count), fits.argmax(1)  # the first attempt that fits
        h = heights[first]
        w = widths[first]
        top = np.floor(chance[:, -2] * (height - h + 1))
        left = np.floor(chance[:, -1] * (width - w + 1))
        none_fits = ~fits.any(1)
        if none_fits.any():
            # For very long images, use the largest centered box with an allowed aspect ratio.
            largest_height = min(height, round(width / self.ratio[0]))
            largest_width = min(width, round(height * self.ratio[1]))
            h[none_fits] = largest_height
            w[none_fits] = largest_width
            top[none_fits] = (height - largest_height) // 2
            left[none_fits] = (width - largest_width) // 2
        box = dict(top=top, left=left, height=h, width=w)
        return {key: torch.from_numpy(value) for key, value in box.items()}

    def single(self, image: Tensor, params: Params) -> Tensor:
        # torch resizes bytes twice as fast in channels-last layout.
        box = torch.from_numpy(interleaved(crop_box(image, params)))
        return self.resized(box.permute(2, 0, 1))

    def exact(self, image: Tensor, params: Params) -> Tensor:
        return self.resized(to_unit(crop_box(image, params)))

    def resized(self, box: Tensor) -> Tensor:
        return interpolate(box[None], (self.size, self.size), mode='bilinear', antialias=True)[0]

    def apply(self, images: Tensor, params: Params) -> Tensor:
        count, channels, height, width = images.shape
        params = {
            key: to_device_of(value.to(images.dtype), images) for key, value in params.items()
        }
        rows = filter_weights(params['top'], params['height'], height, self.size)
        columns = filter_weights(params['left'], params['width'], width, self.size)
        narrow = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2))
        return torch.matmul(rows[:, None], narrow.view(count, channels, height, self.size))


def crop_box(image: Tensor, params: Params) -> Tensor:
    return F.crop(image, *(int(params[key]) for key in ('top', 'left', 'height', 'width')))


def between(low: float, high: float, chance: np.ndarray) -> np.ndarray:
    return low + (high - low) * chance


def filter_weights(start: Tensor, length: Tensor, source: int, target: int) -> Tensor:
    """Return the (B, target, source) weights that resize the interval [start, start + length), antialiased and bilinear."""
    start = start[:, None, None]
    length = length[:, None, None]
    step = length / target
    center = start + (torch.arange(target, device=start.device)[:, None] + 0.5) * step
    pixel = torch.arange(source, device=start.device) + 0.5
    weights = (1 - (pixel - center).abs() / step.clamp(min=1)).clamp_(min=0)
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

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.horizontal_flip(image)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return take_changed(params['on'], images.flip(-1), images)


@TRANSFORMS.register_module()
class RandomTurn(Augmentation):
    """Apply one of the eight rotations and reflections of a square, drawn uniformly. Batches must contain square images.

    Args:
        p: Probability of the change.
    """

    def draw(self, count: int, height: int, width: int) -> Params:
        params = super().draw(count, height, width)
        return {**params, 'turn': torch.randint(8, (count,))}

    def single(self, image: Tensor, params: Params) -> Tensor:
        return turned(image, int(params['turn'][0])).contiguous()

    def apply(self, images: Tensor, params: Params) -> Tensor:
        for turn in range(1, 8):  # 0 leaves an image unchanged
            on = params['on'] & (params['turn'] == turn)
            images = change_selected(images, on, partial(turned, turn=turn))
        return images


def turned(images: Tensor, turn: int) -> Tensor:
    """Apply one of eight symmetries: `turn` % 4 quarter turns, after mirroring if `turn` is above 3."""
    mirrored = images.flip(-1) if turn > 3 else images
    return torch.rot90(mirrored, turn % 4, (-2, -1))


@TRANSFORMS.register_module()
class Resize(v2.Resize):
    """Resize with antialiasing.

    Args:
        size: Length of the shorter side, or height and width.
        interpolation: torchvision's name of the filter.
    """

    def __init__(self, size: int | tuple[int, int], interpolation: str = 'bilinear') -> None:
        super().__init__(size, v2.InterpolationMode(interpolation))

    def batch(self, images: Tensor) -> Tensor:
        return self(images).clamp_(0, 1)  # bicubic overshoots


@TRANSFORMS.register_module()
class CenterCrop(v2.CenterCrop):
    """Crop the central square of `size` pixels."""

    def batch(self, images: Tensor) -> Tensor:
        return self(images)


LUMA = (0.2989, 0.587, 0.114)
LUMA_ROW = np.array([LUMA], np.float32)
IDENTITY = np.eye(3, dtype=np.float32)
TINY = 1e-12  # below the chroma of any pixel that is not gray
OPERATIONS = ('brightness', 'contrast', 'saturation', 'hue')


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """Change brightness, contrast, saturation and hue, in a random order per image.

    With strength s, a factor is uniform in [max(0, 1 - s), 1 + s]. The hue shift, in turns of the color circle, is uniform
    in [-hue, hue]. Values are not rounded between the four changes.

    Brightness and contrast apply to any number of channels. For images that are not RGB, the contrast of each channel is
    relative to the channel's own mean, and saturation and hue must be 0.

    Args:
        p: Probability of the change.
        brightness: Strength of the brightness factor.
        contrast: Strength of the contrast factor.
        saturation: Strength of the saturation factor.
        hue: Largest hue shift, in turns of the color circle.
    """

    clips = True

    def __init__(
        self, p: float, brightness: float, contrast: float, saturation: float, hue: float
    ) -> None:
        super().__init__(p)
        self.hue = hue
        self.strengths = (brightness, contrast, saturation)

    def draw(self, count: int, height: int, width: int) -> Params:
        factors = [
            uniform(max(0.0, 1 - strength), 1 + strength, count) for strength in self.strengths
        ]
        return dict(
            on=torch.rand(count) < self.p,
            amounts=torch.stack([*factors, uniform(-self.hue, self.hue, count)], dim=1),
            order=torch.rand(count, 4).argsort(1),
        )

    def only_rgb(self) -> str:
        strengths = dict(saturation=self.strengths[2], hue=self.hue)
        names = [name for name, strength in strengths.items() if strength]
        return f'{" and ".join(names)} of ColorJitter (set to 0)' if names and self.p else ''

    def describe(self, params: Params) -> str:
        if not params['on']:
            return ''
        amounts = params['amounts'][0].tolist()
        order = params['order'][0].tolist()
        return 'ColorJitter ' + ', '.join(
            f'{OPERATIONS[number]} {amounts[number]:.2f}' for number in order
        )

    def single(self, image: Tensor, params: Params) -> Tensor:
        pixels = interleaved(image).astype(np.float32)
        amounts = params['amounts'][0].tolist()
        for number in params['order'][0].tolist():
            pixels = change_pixels(pixels, OPERATIONS[number], amounts[number])
        return planes(to_bytes(pixels))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change all images at once, in 40 kernels on a GPU, whatever their orders.

        Each change except the hue shift is a matrix over the channels. At most three of them come before the hue shift
        and at most three after it, so six matrices per image, some of them identities, cover every order.
        """
        count, channels = images.shape[:2]
        step = params['order'].argsort(1)  # of each change
        linear, hue = step[:, :3], step[:, 3:]
        linear = linear + 2 * (linear > hue)  # 0 to 2 before the hue shift, 3 to 5 after it
        changes = torch.eye(channels).repeat(2, count, 6, 1, 1)
        changes[1] = 0
        rows = torch.arange(count).unsqueeze(1)
        changes[:, rows, linear] = channel_matrices(params['amounts'][:, :3], channels)
        pixel_matrices, mean_matrices = to_device_of(changes.to(images.dtype), images)
        turns = 6 * params['amounts'][:, 3:] + torch.tensor([5.0, 3.0, 1.0])
        turns = to_device_of(turns.to(images.dtype), images)
        pixels = images.flatten(2)
        for number in range(6):
            if number == 3 and self.hue:
                pixels = shift_hue(pixels, turns)
            if (linear == number).any():
                shift = mean_matrices[:, number] @ pixels.mean(2, keepdim=True)
                pixels = torch.baddbmm(shift, pixel_matrices[:, number], pixels).clamp_(0, 1)
        return take_changed(params['on'], pixels.view(images.shape), images)


def to_gray(images: Tensor) -> Tensor:
    """Replace all three channels of float RGB images by the luminance."""
    red, green, blue = images.split(1, dim=1)
    gray = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return gray.expand(-1, 3, -1, -1)


def channel_matrices(factors: Tensor, channels: int) -> Tensor:
    """Return the matrices of brightness, contrast and saturation, (2, B, 3, C, C), for the pixels and for their mean.

    Contrast blends the image with the gray of its mean, and saturation with the gray of each pixel.
    """
    identity = torch.eye(channels)
    gray = torch.tensor(LUMA).expand(3, 3) if channels == 3 else identity
    factor = factors[..., None, None]
    rest = (1 - factors)[..., None, None] * gray
    from_pixel = torch.tensor([0, 0, 1]).view(3, 1, 1)  # saturation
    from_mean = torch.tensor([0, 1, 0]).view(3, 1, 1)  # contrast
    return torch.stack([factor * identity + rest * from_pixel, rest * from_mean])


def shift_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Change the hue of (B, 3, N) pixels at fixed saturation and value.

    With value V (the largest channel), chroma C and hue h in [0, 6), a channel is V - C clip(min(k, 4 - k), 0, 1), where
    k = (h + n) mod 6 and n = 5, 3, 1 for red, green and blue. `turns` is n plus the change of h.
    """
    value, largest = pixels.max(dim=1, keepdim=True)
    chroma = value - pixels.amin(dim=1, keepdim=True)
    around = torch.cat([pixels[:, 1:], pixels[:, :2]], 1)  # green, blue, red, green
    difference = (around[:, :3] - around[:, 1:]).div_(chroma.clamp(min=TINY))
    hue = difference.gather(1, largest).add_(largest, alpha=2)
    k = (hue + turns.unsqueeze(2)).remainder_(6)
    return torch.addcmul(value, torch.minimum(k, 4 - k).clamp_(0, 1), chroma, value=-1)


def change_pixels(pixels: np.ndarray, operation: str, amount: float) -> np.ndarray:
    """Apply one of OPERATIONS to a float32 HWC image in [0, 255]."""
    if operation == 'hue':
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # of float32, with the hue in degrees
        # OpenCV accepts a hue above 360 degrees, but not one below 0.
        shifted = cv2.add(hsv, (360 * (amount % 1), 0, 0, 0))
        return cv2.cvtColor(shifted, cv2.COLOR_HSV2RGB)
    change = amount * IDENTITY
    if operation == 'contrast':
        offset = (1 - amount) * cv2.transform(pixels, LUMA_ROW).mean()
        change = np.hstack([change, np.full((3, 1), offset, np.float32)])
    elif operation == 'saturation':
        change = change + (1 - amount) * LUMA_ROW
    changed = cv2.transform(pixels, change)
    torch.from_numpy(changed).clamp_(0, 255)  # in place, in a quarter of the time of np.clip
    return changed


@TRANSFORMS.register_module()
class ReleaseColorJitter(ColorJitter):
    """`ColorJitter` as in BYOL's released code, where a brightness uniform in [-brightness, brightness] is added.

    The contrast of each channel is relative to the channel's own mean.
    """

    def draw(self, count: int, height: int, width: int) -> Params:
        params = super().draw(count, height, width)
        params['amounts'][:, 0] -= 1
        return params

    def single(self, image: Tensor, params: Params) -> Tensor:
        return Augmentation.single(self, image, params)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        amounts, order = (to_device_of(params[key].float(), images) for key in ('amounts', 'order'))
        brightness, contrast, saturation = amounts[:, :3, None, None, None].unbind(1)
        turns = 6 * amounts[:, 3:] + amounts.new_tensor([5.0, 3.0, 1.0])
        changed = images
        for number in order.long().unbind(1):
            results = [
                changed + brightness,
                torch.lerp(changed.mean((2, 3), keepdim=True), changed, contrast),
                torch.lerp(to_gray(changed), changed, saturation),
                shift_hue(changed.flatten(2), turns).view(images.shape),
            ]
            rows = torch.arange(len(images), device=images.device)
            changed = torch.stack(results)[number, rows].clamp(0, 1)
        return take_changed(params['on'], changed, images)


@TRANSFORMS.register_module()
class RandomGrayscale(Augmentation):
    """Replace all three channels by the luminance.

    Args:
        p: Probability of the change.
    """

    rgb_alone = True

    def single(self, image: Tensor, params: Params) -> Tensor:
        luminance = cv2.transform(interleaved(image).astype(np.float32), LUMA_ROW)
        return torch.from_numpy(to_bytes(luminance)).repeat(3, 1, 1)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return change_selected(images, params['on'], to_gray)


# Absorption of red, green and blue light by hematoxylin, eosin and DAB (Ruifrok and Johnston 2001).
STAINS = torch.tensor([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


@TRANSFORMS.register_module()
class StainJitter(Augmentation):
    """Multiply the amount of each stain on a microscope slide by a random factor in [1 - strength, 1 + strength].

    Args:
        p: Probability of the change.
        strength: Largest distance of a factor from 1.
    """

    clips = True
    rgb_alone = True

    def __init__(self, p: float, strength: float) -> None:
        super().__init__(p)
        self.strength = strength

    def draw(self, count: int, height: int, width: int) -> Params:
        factors = uniform(1 - self.strength, 1 + self.strength, count, 3)
        params = super().draw(count, height, width)
        return {**params, 'factors': factors}

    def apply(self, images: Tensor, params: Params) -> Tensor:
        # One matrix per image converts absorption to stain amounts, multiplies them, and converts back.
        factors = params['factors'][params['on'], :, None]
        matrices = to_device_of(torch.linalg.inv(STAINS) @ (factors * STAINS), images)

        def stain(selected: Tensor) -> Tensor:
            absorbed = -selected.clamp_min(1 / 255).log()
            changed = torch.einsum('bchw,bcd->bdhw', absorbed, matrices)
            return (-changed).exp().clamp(0, 1)

        return change_selected(images, params['on'], stain)


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
        # A worker rounds values up to half a byte below the threshold to the threshold itself.
        bright = images >= (self.threshold - 0.5) / 255
        bright &= to_device_of(params['on'], images).view(-1, 1, 1, 1)
        return torch.where(bright, 1 - images, images)


MAX_SIGMAS = 5.5  # the rest of a kernel weighs less than 1e-6 and changes no byte


@TRANSFORMS.register_module()
class GaussianBlur(Augmentation):
    """Blur with a Gaussian whose standard deviation is drawn per image. The kernel is a tenth of the image long.

    Args:
        p: Probability of the change.
        sigma: Range of the standard deviation in pixels.
    """

    def __init__(self, p: float, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        super().__init__(p)
        self.sigma = tuple(sigma)

    def draw(self, count: int, height: int, width: int) -> Params:
        params = super().draw(count, height, width)
        return {**params, 'sigma': uniform(*self.sigma, count)}

    def single(self, image: Tensor, params: Params) -> Tensor:
        kernel = gaussian(params['sigma'].item(), taps_for(image))
        pixels = interleaved(image)
        blurred = cv2.sepFilter2D(
            pixels, cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101
        )
        return planes(to_bytes(blurred))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        sigma = to_device_of(params['sigma'][params['on']].to(images.dtype), images)
        return change_selected(images, params['on'], partial(blur, sigma=sigma))


def taps_for(images: Tensor) -> int:
    """Return the odd kernel length for images of this size: 23 at 224."""
    return min(images.shape[-2:]) // 20 * 2 + 1


def gaussian(sigma: float, taps: int) -> np.ndarray:
    """Return the normalized kernel, without ends that are too small to change a byte."""
    reach = taps // 2
    offset = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offset / sigma) ** 2)
    weights = weights / weights.sum()
    return weights[np.abs(offset) <= max(1, MAX_SIGMAS * sigma)].astype(np.float32)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image by its own sigma: two depthwise convolutions over (image, channel), with reflected edges."""
    count, channels, height, width = images.shape
    taps = taps_for(images)
    reach = taps // 2
    offset = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    kernels = (-0.5 * (offset / sigma[:, None]) ** 2).softmax(1).repeat_interleave(channels, 0)
    padded = pad(images, [reach] * 4, mode='reflect')
    padded = padded.view(1, count * channels, height + 2 * reach, width + 2 * reach)
    for shape in [(1, taps), (taps, 1)]:
        padded = conv2d(padded, kernels.view(-1, 1, *shape), groups=count * channels)
    return padded.view(images.shape)
