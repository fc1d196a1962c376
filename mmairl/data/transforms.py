"""All augmentations, each one class: its parameters are drawn once and applied in either of two forms."""

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


class Augmentation:
    """A random change of images, as `augment(uint8 CHW)` in a data worker or `augment.batch(float BCHW)` on any device.

    Both draw from torch's global CPU generator, one parameter per image, so a seed repeats a run bit for bit on any
    device, and the two forms have one distribution by construction: `single` is `apply` rounded to bytes.

    By default each image is changed with probability `p`; a worker returns the others as they are.

    `single` is for RGB of 8 bits. A worker changes images of other channels or depths as floats, by `apply`. A class with
    `clips` keeps values in [0, 1]; a run refuses it for images with other values. One that is `rgb_alone` is for RGB.
    """

    clips = rgb_alone = False

    def __init__(self, p: float) -> None:
        self.p = p

    def draw(self, count: int, height: int, width: int) -> Params:
        """Parameters for `count` images of this size, as CPU tensors whose first axis is the image; `on` marks the changed."""
        return dict(on=torch.rand(count) < self.p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        """Change one uint8 CHW image by the parameters of one image; a child may do so faster."""
        return (255 * self.exact(image, params)).round().byte()

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """Change a float BCHW batch in [0, 1], each image by its own parameters."""
        raise NotImplementedError

    def exact(self, image: Tensor, params: Params) -> Tensor:
        """Change one image of any channels or depth."""
        return self.apply(to_unit(image)[None], params)[0]

    def only_rgb(self) -> str:
        """Name what it changes that only RGB has, and how a config leaves that out; empty where there is nothing such."""
        return f'{type(self).__name__} (leave it out)' if self.rgb_alone and self.p else ''

    def tell(self, params: Params) -> str:
        """The parameters of one image in words; empty where the image stays as it is."""
        if not params.get('on', True):
            return ''
        lists = {key: value.flatten().tolist() for key, value in params.items() if key != 'on'}
        numbers = (f' {key} {" ".join(f"{number:.4g}" for number in values)}' for key, values in lists.items())
        return type(self).__name__ + ','.join(numbers)

    def __call__(self, image: Tensor) -> Tensor:
        params = self.draw(1, *image.shape[-2:])
        if not params.get('on', True):
            return image
        photograph = image.dtype is torch.uint8 and len(image) == 3
        return self.single(image, params) if photograph else self.exact(image, params)

    def batch(self, images: Tensor) -> Tensor:
        return self.apply(images, self.draw(len(images), *images.shape[-2:]))


def uniform(low: float, high: float, *shape: int) -> Tensor:
    return torch.empty(shape).uniform_(low, high)


def put(values: Tensor, images: Tensor) -> Tensor:
    """Parameters on the device of the images, copied from pinned memory so that the host does not wait for a GPU."""
    if images.is_cuda:
        values = values.pin_memory()
    return values.to(images.device, non_blocking=True)


def chosen(on: Tensor, images: Tensor) -> Tensor:
    """The indices that a mask selects, on the device of the images; computed on the CPU, so that a GPU is not waited for."""
    return put(on.nonzero().squeeze(1), images)


def interleaved(image: Tensor) -> np.ndarray:
    """A CHW image in OpenCV's layout, HWC: a view if it lies in memory like that already, else a copy."""
    pixels = image.permute(1, 2, 0)
    if pixels.stride()[1:] == (len(image), 1):
        return pixels.numpy()
    return cv2.merge([plane.numpy() for plane in image])


def planes(pixels: np.ndarray) -> Tensor:
    """An HWC image as a CHW tensor, by OpenCV's split, which is ten times as fast as a strided copy."""
    image = np.empty((pixels.shape[2], *pixels.shape[:2]), pixels.dtype)
    cv2.split(pixels, list(image))
    return torch.from_numpy(image)


to_bytes = cv2.convertScaleAbs  # of floats in [0, 255]: the nearest byte
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
            # A very long image: the largest box of an allowed aspect ratio, in the middle.
            centre = min(height, round(width / self.ratio[0])), min(width, round(height * self.ratio[1]))
            h[~any_fits], w[~any_fits] = centre
            top[~any_fits], left[~any_fits] = (height - centre[0]) // 2, (width - centre[1]) // 2
        return {key: torch.from_numpy(value) for key, value in dict(top=top, left=left, height=h, width=w).items()}

    def single(self, image: Tensor, params: Params) -> Tensor:
        # torch resizes bytes twice as fast in channels-last layout.
        return self.resized(torch.from_numpy(interleaved(cut(image, params))).permute(2, 0, 1))

    def exact(self, image: Tensor, params: Params) -> Tensor:
        return self.resized(to_unit(cut(image, params)))

    def resized(self, box: Tensor) -> Tensor:
        return interpolate(box[None], (self.size, self.size), mode='bilinear', antialias=True)[0]

    def apply(self, images: Tensor, params: Params) -> Tensor:
        count, channels, height, width = images.shape
        params = {key: put(value.to(images.dtype), images) for key, value in params.items()}
        rows = filter_weights(params['top'], params['height'], height, self.size)
        columns = filter_weights(params['left'], params['width'], width, self.size)
        narrow = torch.bmm(images.reshape(count, channels * height, width), columns.transpose(1, 2))
        return torch.matmul(rows[:, None], narrow.view(count, channels, height, self.size))


def cut(image: Tensor, params: Params) -> Tensor:
    top, left, height, width = (int(params[key].item()) for key in ('top', 'left', 'height', 'width'))
    return image[:, top : top + height, left : left + width]


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
        super().__init__(p)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return F.horizontal_flip(image)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        return torch.where(put(params['on'], images).view(-1, 1, 1, 1), images.flip(-1), images)


@TRANSFORMS.register_module()
class RandomTurn(Augmentation):
    """One of the eight turns by quarters and mirrors, each as likely, with probability p; of a batch of squares."""

    def draw(self, count: int, height: int, width: int) -> Params:
        return {**super().draw(count, height, width), 'turn': torch.randint(8, (count,))}

    def single(self, image: Tensor, params: Params) -> Tensor:
        return turned(image, int(params['turn'][0])).contiguous()

    def apply(self, images: Tensor, params: Params) -> Tensor:
        for turn in range(1, 8):  # 0 leaves an image as it is
            rows = chosen(params['on'] & (params['turn'] == turn), images)
            images = images.index_copy(0, rows, turned(images[rows], turn))
        return images


def turned(images: Tensor, turn: int) -> Tensor:
    """By so many quarters, and from the fourth on mirrored first."""
    return torch.rot90(images.flip(-1) if turn > 3 else images, turn % 4, (-2, -1))


@TRANSFORMS.register_module()
class Resize(v2.Resize):
    """Bring the shorter side to `size`, or the two sides to a height and a width, antialiased."""

    def __init__(self, size: int | tuple[int, int], interpolation: str = 'bilinear') -> None:
        super().__init__(size, v2.InterpolationMode(interpolation))

    def batch(self, images: Tensor) -> Tensor:
        return self(images).clamp_(0, 1)  # bicubic overshoots


@TRANSFORMS.register_module()
class CenterCrop(v2.CenterCrop):
    """Cut the `size` square in the middle."""

    def batch(self, images: Tensor) -> Tensor:
        return self(images)


LUMA = (0.2989, 0.587, 0.114)
LUMA_ROW = np.array([LUMA], np.float32)
IDENTITY = np.eye(3, dtype=np.float32)


@TRANSFORMS.register_module()
class ColorJitter(Augmentation):
    """With probability p, change brightness, contrast, saturation and hue, in an order drawn per image.

    A factor of strength s is uniform in [max(0, 1 - s), 1 + s], the hue shift in [-hue, hue] of the circle. Nothing is
    rounded between the four, in either form.

    Brightness and contrast change an image of any channels, each of which has a contrast to its own mean where they are not
    RGB. Saturation and hue must be 0 there.
    """

    clips = True

    def __init__(self, p: float, brightness: float, contrast: float, saturation: float, hue: float) -> None:
        super().__init__(p)
        self.hue = hue
        self.strengths = (brightness, contrast, saturation)

    def draw(self, count: int, height: int, width: int) -> Params:
        factors = [uniform(max(0.0, 1 - strength), 1 + strength, count) for strength in self.strengths]
        return dict(
            on=torch.rand(count) < self.p,
            amounts=torch.stack([*factors, uniform(-self.hue, self.hue, count)], dim=1),
            order=torch.rand(count, 4).argsort(1),
        )

    def only_rgb(self) -> str:
        coloured = [name for name, most in zip(NAMES[2:], (self.strengths[2], self.hue)) if most and self.p]
        return f'{" and ".join(coloured)} of ColorJitter (set to 0)' if coloured else ''

    def tell(self, params: Params) -> str:
        if not params['on']:
            return ''
        amounts = [f'{name} {amount:.2f}' for name, amount in zip(NAMES, params['amounts'][0].tolist())]
        return 'ColorJitter ' + ', '.join(amounts[operation] for operation in params['order'][0].tolist())

    def single(self, image: Tensor, params: Params) -> Tensor:
        pixels, amounts = interleaved(image).astype(np.float32), params['amounts'][0].tolist()
        for operation in params['order'][0].tolist():
            pixels = SINGLE[operation](pixels, amounts[operation])
        return planes(to_bytes(pixels))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        """All images at once, in 40 kernels on a GPU, whatever their orders are.

        Every change but the hue's is a matrix over the channels: at most three before the hue turns, and three after it.
        """
        channels = images.shape[1]
        moment = params['order'].argsort(1)  # when each change comes
        moment, of_hue = moment[:, :3], moment[:, 3:]
        moment = moment + 2 * (moment > of_hue)
        changes, rows = torch.eye(channels).repeat(2, len(images), 6, 1, 1), torch.arange(len(images)).unsqueeze(1)
        changes[1] = 0
        changes[:, rows, moment] = matrices(params['amounts'][:, :3], channels)
        of_pixels, of_means = put(changes.to(images.dtype), images)
        turns = 6 * params['amounts'][:, 3:] + torch.tensor([5.0, 3.0, 1.0])
        pixels, turns = images.flatten(2), put(turns.to(images.dtype), images)
        for number in range(6):
            if number == 3 and self.hue:
                pixels = shift_hue(pixels, turns)
            if (moment == number).any():
                shift = of_means[:, number] @ pixels.mean(2, keepdim=True)
                pixels = torch.baddbmm(shift, of_pixels[:, number], pixels).clamp_(0, 1)
        return torch.where(put(params['on'], images).view(-1, 1, 1, 1), pixels.view(images.shape), images)


def grey(images: Tensor) -> Tensor:
    red, green, blue = images.split(1, dim=1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def matrices(factors: Tensor, channels: int) -> Tensor:
    """By which brightness, contrast and saturation multiply an image's channels, and by which its mean: (2, B, 3, C, C).

    Contrast and saturation keep a factor of the image, and take the rest from the mean or from the pixel, in grey.
    """
    whole = torch.eye(channels)
    levels = torch.tensor(LUMA).expand(3, 3) if channels == 3 else whole
    kept, rest = (share[..., None, None] for share in (factors, 1 - factors))
    from_pixel, from_mean = torch.tensor([[0, 0, 1], [0, 1, 0]]).view(2, 3, 1, 1)
    return torch.stack([kept * whole + rest * levels * from_pixel, rest * levels * from_mean])


def shift_hue(pixels: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of (B, 3, N) pixels at fixed saturation and value.

    With V the largest channel, C the chroma and h in [0, 6) the hue, a channel is V - C clip(min(k, 4 - k), 0, 1),
    k = (h + n) mod 6, n = 5, 3, 1 for red, green, blue: no table of sectors. `turns` is n with what is added to h.
    """
    value, largest = pixels.max(dim=1, keepdim=True)
    chroma = value - pixels.amin(dim=1, keepdim=True)
    around = torch.cat([pixels[:, 1:], pixels[:, :2]], 1)  # green, blue, red, green
    apart = (around[:, :3] - around[:, 1:]).div_(chroma.clamp(min=TINY))
    k = (apart.gather(1, largest).add_(largest, alpha=2) + turns.unsqueeze(2)).remainder_(6)
    return torch.addcmul(value, torch.minimum(k, 4 - k).clamp_(0, 1), chroma, value=-1)


TINY = 1e-12  # the chroma of a grey pixel, whose hue is of no effect
NAMES = ('brightness', 'contrast', 'saturation', 'hue')

# The same four on one image: float32 HWC in [0, 255].


def brighten_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    return clipped(cv2.transform(pixels, factor * IDENTITY))


def contrast_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    offset = (1 - factor) * cv2.transform(pixels, LUMA_ROW).mean()
    return clipped(cv2.transform(pixels, np.hstack([factor * IDENTITY, np.full((3, 1), offset, np.float32)])))


def saturate_pixels(pixels: np.ndarray, factor: float) -> np.ndarray:
    return clipped(cv2.transform(pixels, factor * IDENTITY + (1 - factor) * LUMA_ROW))


def shift_pixels_hue(pixels: np.ndarray, shift: float) -> np.ndarray:
    hsv = cv2.cvtColor(pixels, cv2.COLOR_RGB2HSV)  # hue in degrees, value as it came
    # OpenCV accepts a hue above 360 degrees, but not one below 0.
    return cv2.cvtColor(cv2.add(hsv, (360 * (shift % 1), 0, 0, 0)), cv2.COLOR_HSV2RGB)


def clipped(pixels: np.ndarray) -> np.ndarray:
    torch.from_numpy(pixels).clamp_(0, 255)  # in place, in a quarter of the time of np.clip
    return pixels


SINGLE = (brighten_pixels, contrast_pixels, saturate_pixels, shift_pixels_hue)


@TRANSFORMS.register_module()
class RandomGrayscale(Augmentation):
    """Replace all three channels by the luminance, with probability p."""

    rgb_alone = True

    def single(self, image: Tensor, params: Params) -> Tensor:
        luminance = to_bytes(cv2.transform(interleaved(image).astype(np.float32), LUMA_ROW))
        return torch.from_numpy(luminance).repeat(3, 1, 1)

    def apply(self, images: Tensor, params: Params) -> Tensor:
        rows = chosen(params['on'], images)
        return images.index_copy(0, rows, grey(images[rows]).expand(-1, 3, -1, -1))


# The light that haematoxylin, eosin and DAB each take from red, green and blue (Ruifrok and Johnston 2001).
STAINS = torch.tensor([[0.65, 0.70, 0.29], [0.07, 0.99, 0.11], [0.27, 0.57, 0.78]])


@TRANSFORMS.register_module()
class StainJitter(Augmentation):
    """With probability p, multiply the amount of each stain by a factor in [1 - strength, 1 + strength]."""

    clips = rgb_alone = True

    def __init__(self, p: float, strength: float) -> None:
        super().__init__(p)
        self.strength = strength

    def draw(self, count: int, height: int, width: int) -> Params:
        factors = uniform(1 - self.strength, 1 + self.strength, count, 3)
        return {**super().draw(count, height, width), 'factors': factors}

    def apply(self, images: Tensor, params: Params) -> Tensor:
        rows = chosen(params['on'], images)
        light = -images[rows].clamp_min(1 / 255).log()
        # of each image one matrix: into amounts of stain, times the factors, and back
        change = torch.linalg.inv(STAINS) @ (params['factors'][params['on'], :, None] * STAINS)
        changed = torch.einsum('bchw,bcd->bdhw', light, put(change, images))
        return images.index_copy(0, rows, (-changed).exp().clamp(0, 1))


@TRANSFORMS.register_module()
class Solarize(Augmentation):
    """Invert every value at or above the threshold (of 255), with probability p."""

    clips = True

    def __init__(self, p: float, threshold: int = 128) -> None:
        super().__init__(p)
        self.threshold = threshold
        values = np.arange(256, dtype=np.uint8)
        self.table = np.where(values >= threshold, 255 - values, values)

    def single(self, image: Tensor, params: Params) -> Tensor:
        return planes(cv2.LUT(interleaved(image), self.table))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        # Half a byte lower: the worker form rounds such a value up to the threshold.
        bright = images >= (self.threshold - 0.5) / 255
        return torch.where(bright & put(params['on'], images).view(-1, 1, 1, 1), 1 - images, images)


REACH = 5.5  # sigmas; the rest of a kernel weighs less than 1e-6 and changes no byte


@TRANSFORMS.register_module()
class GaussianBlur(Augmentation):
    """With probability p, blur by a Gaussian of a width drawn per image; the kernel is a tenth of the image."""

    def __init__(self, p: float, sigma: tuple[float, float] = (0.1, 2.0)) -> None:
        super().__init__(p)
        self.sigma = tuple(sigma)

    def draw(self, count: int, height: int, width: int) -> Params:
        return dict(on=torch.rand(count) < self.p, sigma=uniform(*self.sigma, count))

    def single(self, image: Tensor, params: Params) -> Tensor:
        kernel = gaussian(params['sigma'].item(), taps_for(image))
        blurred = cv2.sepFilter2D(interleaved(image), cv2.CV_32F, kernel, kernel, borderType=cv2.BORDER_REFLECT_101)
        return planes(to_bytes(blurred))

    def apply(self, images: Tensor, params: Params) -> Tensor:
        rows = chosen(params['on'], images)
        if not len(rows):
            return images
        sigma = put(params['sigma'][params['on']].to(images.dtype), images)
        return images.index_copy(0, rows, blur(images[rows], sigma, taps_for(images)))


def taps_for(images: Tensor) -> int:
    """The odd kernel length for images of this size: 23 at 224."""
    return min(images.shape[-2:]) // 20 * 2 + 1


def gaussian(sigma: float, taps: int) -> np.ndarray:
    """The normalised kernel of this many taps, without the ends that change nothing."""
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
    padded = pad(images, [reach] * 4, mode='reflect')
    padded = padded.view(1, count * channels, height + 2 * reach, width + 2 * reach)
    for shape in [(1, taps), (taps, 1)]:
        padded = conv2d(padded, kernels.view(-1, 1, *shape), groups=count * channels)
    return padded.view(images.shape)
