"""Augmentations of single images in data workers and of batches on a device.

Resize and CenterCrop always change an image in the same way. All other augmentations sample random parameters.
"""

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
# This function of OpenCV rounds floats in [0, 255] to bytes.
to_bytes = cv2.convertScaleAbs


class Augmentation:
    """Base class of augmentations.

    `augment(image)` changes one CHW image in a data worker, and `augment.batch(images)` changes a float BCHW batch on any
    device. Both calls sample the parameters of each image from torch's global CPU generator, so a seed yields the same views on
    every device. In a data worker, `single` changes 8-bit RGB images. Its results differ from the results of `apply` only by
    rounding. Images with other channels or bit depths are converted to floats and changed by `exact`.

    Args:
        p: Probability that an image is changed.

    Attributes:
        clips: Whether the change is defined only for values in [0, 1], for example because it clips the result. If so, training
            on images with values outside this range is an error.
        rgb_alone: Whether the change is defined for RGB images only.
    """

    clips = False
    rgb_alone = False

    def __init__(self, p: float) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        """Sample the parameters of `count` images of this size. Each parameter is a CPU tensor with one row per image.

        The parameter `on` is a mask that selects the images to change.
        """
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        """Change one uint8 CHW image. Subclasses may override this method with a faster implementation."""
        return (255 * self.exact(image, params)).round().byte()

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change a float BCHW batch. Each image has its own parameters."""
        raise NotImplementedError

    def exact(self, image: Tensor, params: Params) -> Tensor:
        """Change one image with any number of channels and any bit depth. The result has float values."""
        return self.apply(to_unit(image)[None], params)[0]

    def only_rgb(self) -> str:
        """Return which operation requires RGB images and how to disable it, or '' if RGB is not required."""
        return f'{type(self).__name__} (leave it out)' if self.rgb_alone and self.p else ''

    def describe(self, params: Params) -> str:
        """Return a text with the parameters of one image, or '' if the image stays unchanged."""
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
        is_photograph = image.dtype is torch.uint8 and len(image) == 3
        if not params.get('on', True):
            # Changed images have float values, so unchanged images in the same batch must have float values as well.
            return image if is_photograph else to_unit(image)
        return self.single(image, params) if is_photograph else self.exact(image, params)

    def batch(self, images: Tensor) -> Tensor:
        return self.apply(images, self.draw(len(images), *images.shape[-2:]))


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(low, high)


def to_device_of(values: Tensor, images: Tensor) -> Tensor:
    """Copy parameters to the device of the images. With pinned memory, the host does not wait for the GPU."""
    if images.is_cuda:
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def change_selected(images: Tensor, on: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change only the images that a mask selects. The mask is on the CPU, so that the host does not wait for the GPU."""
    if not on.any():
        return images
    rows = to_device_of(on.nonzero().squeeze(1), images)
    return images.index_copy(0, rows, change(images[rows]))


def take_changed(on: Tensor, changed: Tensor, images: Tensor) -> Tensor:
    """Return a batch with the changed image where the mask is set, and the original image where it is not."""
    return torch.where(to_device_of(on, images).view(-1, 1, 1, 1), changed, images)


def interleaved(image: Tensor) -> np.ndarray:
    """Convert a CHW image to OpenCV's HWC layout. Nothing is copied if the memory already has this layout."""
    pixels = image.permute(1, 2, 0)
    if pixels.stride()[1:] == (len(image), 1):
        return pixels.numpy()
    return cv2.merge([plane.numpy() for plane in image])


def planes(pixels: np.ndarray) -> Tensor:
    """Convert an HWC image to a CHW tensor by OpenCV's split, which is ten times as fast as a strided copy."""
    height, width, channels = pixels.shape
    image = np.empty((channels, height, width), pixels.dtype)
    cv2.split(pixels, list(image))
    return torch.from_numpy(image)


ATTEMPTS = 10


@TRANSFORMS.register_module()
class RandomResizedCrop(Augmentation):
    """Crop a box of random area and aspect ratio, and resize it to a square with antialiasing.

    A batch is cropped and resized by two matrix products per image, `rows @ image @ columns`. The matrices contain the
    weights of the antialiased bilinear filter inside the image's box. Up to rounding, the result equals that of torchvision's
    `resized_crop`. For small images, the products are faster than grid sampling.

    Args:
        size: Height and width of the result.
        scale: Range of the area of the box, as a fraction of the image's area.
        ratio: Range of the aspect ratio (width / height), which is sampled log-uniformly.
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
        # NumPy is used, because for a single image its calls take a fifth of the time of torch's calls.
        chance = torch.rand(count, 2 * ATTEMPTS + 2, dtype=torch.float64).numpy()
        area = between(*self.scale, chance[:, :ATTEMPTS]) * height * width
        ratio = np.exp(between(*np.log(self.ratio), chance[:, ATTEMPTS:-2]))
        heights = np.rint(np.sqrt(area / ratio))
        widths = np.rint(np.sqrt(area * ratio))
        fits = (heights >= 1) & (heights <= height)
        fits &= (widths >= 1) & (widths <= width)
        # For each image, the first sampled box that fits into the image is used.
        first = np.arange(count), fits.argmax(1)
        h = heights[first]
        w = widths[first]
        top = np.floor(chance[:, -2] * (height - h + 1))
        left = np.floor(chance[:, -1] * (width - w + 1))
        none_fits = ~fits.any(1)
        if none_fits.any():
            # If an image is very long, it can happen that no sampled box fits. The largest centered box with an allowed
            # aspect ratio is used instead.
            largest_height = min(height, round(width / self.ratio[0]))
            largest_width = min(width, round(height * self.ratio[1]))
            h[none_fits] = largest_height
            w[none_fits] = largest_width
            top[none_fits] = (height - largest_height) // 2
            left[none_fits] = (width - largest_width) // 2
        box = dict(top=top, left=left, height=h, width=w)
        return {key: torch.from_numpy(value) for key, value in box.items()}

    def single(self, image: Tensor, params: Params) -> Tensor:
        # The box is converted to channels-last layout, in which torch resizes bytes twice as fast.
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
    """Return the weights of an antialiased bilinear filter that resizes the interval [start, start + length).

    The result has the shape (B, target, source). It has one matrix per image, which maps `source` pixels to `target` pixels.
    """
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
    """Apply a random one of the eight rotations and reflections of a square. The images of a batch must be square.

    Args:
        p: Probability of the change.
    """

    def draw(self, count: int, height: int, width: int) -> Params:
        params = super().draw(count, height, width)
        return {**params, 'turn': torch.randint(8, (count,))}

    def single(self, image: Tensor, params: Params) -> Tensor:
        return turned(image, int(params['turn'][0])).contiguous()

    def exact(self, image: Tensor, params: Params) -> Tensor:
        return self.single(to_unit(image), params)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        for turn in range(1, 8):  # turn 0 leaves an image unchanged
            on = params['on'] & (params['turn'] == turn)
            images = change_selected(images, on, partial(turned, turn=turn))
        return images


def turned(images: Tensor, turn: int) -> Tensor:
    """Apply symmetry number `turn` of a square: mirror the image if `turn` > 3, then rotate it by `turn` % 4 quarter turns."""
    mirrored = images.flip(-1) if turn > 3 else images
    return torch.rot90(mirrored, turn % 4, (-2, -1))


@TRANSFORMS.register_module()
class Resize(v2.Resize):
    """Resize images with antialiasing.

    Args:
        size: Length of the shorter side, or (height, width).
        interpolation: torchvision's name of the filter, such as 'bilinear' or 'bicubic'.
    """

    def __init__(self, size: int | tuple[int, int], interpolation: str = 'bilinear') -> None:
        super().__init__(size, v2.InterpolationMode(interpolation))

    def batch(self, images: Tensor) -> Tensor:
        # A bicubic filter overshoots at edges. Values outside [0, 1] are kept only if the image itself has such values.
        low = images.amin((1, 2, 3), keepdim=True).clamp_(max=0)
        high = images.amax((1, 2, 3), keepdim=True).clamp_(min=1)
        return self(images).clamp_(low, high)


@TRANSFORMS.register_module()
class CenterCrop(v2.CenterCrop):
    """Crop the central square with sides of `size` pixels."""

    def batch(self, images: Tensor) -> Tensor:
        return self(images)


LUMA = (0.2989, 0.587, 0.114)
LUMA_ROW = np.array([LUMA], np.float32)
IDENTITY = np.eye(3, dtype=np.float32)
TINY = 1e-12  # smallest divisor in shift_hue, because the chroma of a gray pixel is 0
OPERATIONS = ('brightness', 'contrast', 'saturation', 'hue')


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """Change brightness, contrast, saturation and hue, in a random order for each image.

    Brightness, contrast and saturation are multiplied by factors. If the strength is s, the factor is uniform in
    [max(0, 1 - s), 1 + s]. The hue is shifted by a uniform fraction of the color circle in [-hue, hue]. Values are not
    rounded between the four changes.

    Brightness and contrast support any number of channels. For images that are not RGB, the contrast of each channel is
    changed relative to the mean of that channel, and saturation and hue must be 0.

    Args:
        p: Probability of the change.
        brightness: Strength of the brightness factor.
        contrast: Strength of the contrast factor.
        saturation: Strength of the saturation factor.
        hue: Largest hue shift, as a fraction of the color circle.
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
        """Change all images at once, although the order of the changes differs between images.

        Each change except the hue shift multiplies the channels by a matrix. At most three matrices come before the hue
        shift, and at most three after it. Six matrices per image, some of them identities, therefore represent every order.
        """
        count, channels = images.shape[:2]
        step = params['order'].argsort(1)  # for each change, its position in the order
        linear, hue = step[:, :3], step[:, 3:]
        # Matrices 0 to 2 are applied before the hue shift, and matrices 3 to 5 after it.
        linear = linear + 2 * (linear > hue)
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
    """Convert float RGB images to gray. All three channels become the luminance."""
    red, green, blue = images.split(1, dim=1)
    gray = (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])
    return gray.expand(-1, 3, -1, -1)


def channel_matrices(factors: Tensor, channels: int) -> Tensor:
    """Return the matrices that change brightness, contrast and saturation, as a tensor of shape (2, B, 3, C, C).

    A change is the sum of two products: matrix [0] times the pixel, and matrix [1] times the mean of all pixels. Contrast
    blends each pixel with the gray value of the mean, and saturation blends it with its own gray value.
    """
    identity = torch.eye(channels)
    gray = torch.tensor(LUMA).expand(3, 3) if channels == 3 else identity
    factor = factors[..., None, None]
    rest = (1 - factors)[..., None, None] * gray
    # Saturation blends with the gray value of the pixel.
    from_pixel = torch.tensor([0, 0, 1]).view(3, 1, 1)
    # Contrast blends with the gray value of the mean.
    from_mean = torch.tensor([0, 1, 0]).view(3, 1, 1)
    return torch.stack([factor * identity + rest * from_pixel, rest * from_mean])


def shift_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue of pixels in a tensor of shape (B, 3, N). Their saturation and value (in HSV) stay the same.

    Let V be the value (the largest channel), C the chroma and h the hue in [0, 6). Then each channel is
    V - C clip(min(k, 4 - k), 0, 1), where k = (h + n) mod 6 and n is 5, 3 and 1 for red, green and blue. `turns` contains n
    plus the shift of h for each channel.
    """
    value, largest = pixels.max(dim=1, keepdim=True)
    chroma = value - pixels.amin(dim=1, keepdim=True)
    # The channels are green, blue, red and green again. The differences of neighbors (green - blue, blue - red, red - green)
    # yield the hue if red, green or blue, respectively, is the largest channel.
    around = torch.cat([pixels[:, 1:], pixels[:, :2]], 1)
    difference = (around[:, :3] - around[:, 1:]).div_(chroma.clamp(min=TINY))
    hue = difference.gather(1, largest).add_(largest, alpha=2)
    k = (hue + turns.unsqueeze(2)).remainder_(6)
    return torch.addcmul(value, torch.minimum(k, 4 - k).clamp_(0, 1), chroma, value=-1)


def change_pixels(pixels: np.ndarray, operation: str, amount: float) -> np.ndarray:
    """Apply one of OPERATIONS to a float32 HWC image with values in [0, 255]."""
    if operation == 'hue':
        hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # for float32 images, the hue is in degrees
        # The shift is positive, because OpenCV accepts a hue above 360 degrees but no hue below 0.
        shifted = cv2.add(hsv, (360 * (amount % 1), 0, 0, 0))
        return cv2.cvtColor(shifted, cv2.COLOR_HSV2RGB)
    change = amount * IDENTITY
    if operation == 'contrast':
        offset = (1 - amount) * cv2.transform(pixels, LUMA_ROW).mean()
        change = np.hstack([change, np.full((3, 1), offset, np.float32)])
    elif operation == 'saturation':
        change = change + (1 - amount) * LUMA_ROW
    changed = cv2.transform(pixels, change)
    # This clips in place, in a quarter of the time that np.clip takes.
    torch.from_numpy(changed).clamp_(0, 255)
    return changed


@TRANSFORMS.register_module()
class ReleaseColorJitter(ColorJitter):
    """A variant of `ColorJitter` from BYOL's released code.

    Brightness is not multiplied: a number that is uniform in [-brightness, brightness] is added to all values. The contrast
    of each channel is changed relative to the mean of that channel. Only RGB images are supported.
    """

    rgb_alone = True

    def only_rgb(self) -> str:
        return Augmentation.only_rgb(self)

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
    """Convert an RGB image to gray. All three channels become the luminance.

    Args:
        p: Probability of the change.
    """

    rgb_alone = True

    def single(self, image: Tensor, params: Params) -> Tensor:
        luminance = cv2.transform(interleaved(image).astype(np.float32), LUMA_ROW)
        return torch.from_numpy(to_bytes(luminance)).repeat(3, 1, 1)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return change_selected(images, params['on'], to_gray)


# How much red, green and blue light is absorbed by hematoxylin, eosin and DAB, which stain microscope slides (Ruifrok and
# Johnston 2001). There is one row per stain.
STAINS = torch.tensor([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


@TRANSFORMS.register_module()
class StainJitter(Augmentation):
    """Multiply the amount of each stain on a microscope slide by a random factor in [1 - strength, 1 + strength].

    Args:
        p: Probability of the change.
        strength: Largest difference between a factor and 1.
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
        # The matrix of an image converts absorption to amounts of stains, multiplies them by the factors and converts back.
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
        # In the 8-bit images that `single` changes, earlier transforms have rounded the values, so a value that was at most
        # 0.5 below the threshold is inverted. Here, values are not rounded, so the threshold is lowered by 0.5.
        bright = images >= (self.threshold - 0.5) / 255
        bright &= to_device_of(params['on'], images).view(-1, 1, 1, 1)
        return torch.where(bright, 1 - images, images)


# A Gaussian kernel is cut off at this many standard deviations. The rest weighs less than 1e-6 and does not change any byte.
MAX_SIGMAS = 5.5


@TRANSFORMS.register_module()
class GaussianBlur(Augmentation):
    """Blur an image with a Gaussian kernel of random standard deviation.

    The kernel is about a tenth as long as the shorter side of the image.

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
    """Return the length of the blur kernel for images of this size. It is odd, and 23 for images of 224 x 224 pixels."""
    return min(images.shape[-2:]) // 20 * 2 + 1


def gaussian(sigma: float, taps: int) -> np.ndarray:
    """Return a normalized Gaussian kernel of length `taps`. Weights that are too small to change a byte are cut off."""
    reach = taps // 2
    offset = np.arange(-reach, reach + 1)
    weights = np.exp(-0.5 * (offset / sigma) ** 2)
    weights = weights / weights.sum()
    return weights[np.abs(offset) <= max(1, MAX_SIGMAS * sigma)].astype(np.float32)


def blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur each image of a batch with its own sigma. The edges of the images are reflected.

    The two convolutions (along rows and columns) are depthwise: each channel of each image is a group with its own kernel.
    """
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
