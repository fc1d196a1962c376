"""Two data sets that require no download: `Shapes`, whose images this module draws, and scikit-learn's handwritten digits.

An image of `Shapes` contains many copies of one kind of shape. Each copy has its own position, angle, size and color, and the
color of the background varies. Two crops of an image have little in common except the kind of shape, so a network that matches
crops has to learn shapes. Colors, positions and single pixels are independent of the label.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from mmairl.data.datasets import ViewDataset, Views
from mmairl.errors import UserError
from mmairl.hardware import cache
from mmairl.io import replacing
from mmairl.registry import DATASETS

SPLITS = ('train', 'val')
CELLS = 3  # number of cells per side of a randomly shifted lattice; each copy is near the center of a cell
PATCHES = 4  # the background interpolates between PATCHES x PATCHES random colors
RADIUS = (0.11, 0.17)  # range of the radius of a copy, as a fraction of the image's side
# This is the range of the difference in luminance between a copy and the background behind it.
CONTRAST = (0.25, 0.6)
NOISE = 0.03  # standard deviation of the noise that is added to each pixel
LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
# This many images are drawn at once, because more images would not fit into the processor's cache.
CHUNK = 256


@DATASETS.register_module()
class Shapes(ViewDataset):
    """Synthetic images, each with many copies of one kind of shape. The kind is the class of the image.

    Image i is the same for every `count`. The classes alternate: image i has class i modulo the number of classes.

    Args:
        split: 'train' or 'val'.
        count: Number of images.
        size: Height and width in pixels.
        seed: Seed of all images.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
        gray: Whether the three channels are equal.

    Raises:
        UserError: If the split is unknown.

    Example:
        >>> Shapes('val', count=1200)[0]['inputs'][0].shape
        torch.Size([3, 48, 48])
    """

    def __init__(
        self,
        split: str = 'train',
        count: int = 12_000,
        size: int = 48,
        seed: int = 0,
        views: Views | None = None,
        gray: bool = False,
    ) -> None:
        super().__init__(views)
        self.gray = gray
        if split not in SPLITS:
            raise UserError(
                f"Shapes.split: unknown value ('{split}'); set 'train' or 'val'",
                code='unknown-split',
            )
        self.classes = list(KINDS)
        self.labels = torch.arange(count) % len(KINDS)
        self.images = cached_shapes(split, count, size, seed)

    def raw(self, index: int) -> Tensor:
        image = np.array(self.images[index])
        if self.gray:
            luma = np.tensordot(LUMA, image, 1).round().astype(np.uint8)
            image = np.repeat(luma[None], len(image), axis=0)
        return torch.from_numpy(image)


def cached_shapes(split: str, count: int, size: int, seed: int) -> np.ndarray:
    """Return the images from the user's cache. If the cache lacks them or is damaged, draw the images."""
    folder = cache() / 'shapes'
    # The file name contains a digest of this module, so that the images are drawn again if the drawing code changes.
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    path = folder / f'{split}-{count}-{size}-{seed}-{version}.npy'
    with suppress(OSError, ValueError, EOFError):
        return np.load(path, mmap_mode='r')
    images = draw_shapes(split, range(count), size, seed)
    # If the cache cannot be written, this run continues, and the next run draws the images again.
    with suppress(OSError, UserError), replacing(path) as temporary, temporary.open('wb') as file:
        np.save(file, images)
    return images


def draw_shapes(split: str, indices: Sequence[int], size: int, seed: int) -> np.ndarray:
    """Draw the images with these indices. Return a uint8 array of shape (N, 3, size, size)."""
    images = np.empty((len(indices), 3, size, size), np.uint8)
    for start in range(0, len(indices), CHUNK):
        chunk = indices[start : start + CHUNK]
        seeds = [(seed, SPLITS.index(split), index) for index in chunk]
        scenes = [Scene(np.random.default_rng(numbers), size) for numbers in seeds]
        images[start : start + CHUNK] = render(scenes, np.array(chunk) % len(KINDS), size)
    return images


class Scene:
    """The random parameters of one image. Lengths are fractions of the image's side."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        # The lattice has an additional row and column, because the random shift can move copies out of the image.
        side = np.arange(CELLS + 1)
        lattice = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
        copies = len(lattice)
        self.background = random.random((3, PATCHES, PATCHES), np.float32)
        shift = random.random(2) - 0.5
        self.center = (lattice + shift + random.uniform(-0.2, 0.2, (copies, 2))) / CELLS
        self.radius = random.uniform(*RADIUS, copies)
        self.angle = random.uniform(0, 2 * np.pi, copies)
        self.color = random.random((copies, 3), np.float32)
        self.contrast = random.uniform(*CONTRAST, copies) * random.choice([-1, 1], copies)
        self.noise = random.standard_normal((3, size, size), np.float32)


def render(scenes: list[Scene], kinds: np.ndarray, size: int) -> np.ndarray:
    """Return the images of these scenes.

    The first copies of all images are painted at once, then the second copies, and so on. A copy changes only the pixels in
    a patch around its center.
    """
    stacked = {key: np.stack([getattr(scene, key) for scene in scenes]) for key in vars(scenes[0])}
    reach = int(np.ceil(RADIUS[1] * size * 1.15)) + 1
    margin = 2 * reach + size // CELLS  # copies can be partly or completely outside the image
    position = np.linspace(0, PATCHES - 1, size)
    weights = np.maximum(0, 1 - np.abs(position[:, None] - np.arange(PATCHES))).astype(np.float32)
    # The background interpolates between the random colors.
    background = weights @ stacked.pop('background') @ weights.T
    noise = stacked.pop('noise')
    canvas = np.pad(background, [(0, 0), (0, 0), (margin, margin), (margin, margin)], 'edge')
    images = np.arange(len(canvas))[:, None, None, None]
    channels = np.arange(3)[:, None, None]
    for copy in range(stacked['radius'].shape[1]):
        placed = {key: values[:, copy] for key, values in stacked.items()}
        center = placed['center'] * size + margin
        corner = np.floor(center).astype(int) - reach
        # The column indices and the row indices of the pixels in each patch, as an array of shape (N, 2, P).
        pixels = corner[..., None] + np.arange(2 * reach + 1)
        dx, dy = np.moveaxis((pixels + 0.5 - center[..., None]).astype(np.float32), 1, 0)
        cover = coverage(kinds, dx, dy, placed['radius'] * size, placed['angle'])
        columns, rows = np.moveaxis(pixels, 1, 0)
        patch = images, channels, rows[:, None, :, None], columns[:, None, None, :]
        behind = canvas[patch]
        color = contrasting(placed['color'], behind[:, :, reach, reach], placed['contrast'])
        # Pixels at the edge of the shape are only partly covered, so their color is a mixture.
        canvas[patch] = behind + cover[:, None] * (color[:, :, None, None] - behind)
    inside = slice(margin, margin + size)
    noisy = canvas[:, :, inside, inside] + NOISE * noise
    return (noisy.clip(0, 1) * 255).round().astype(np.uint8)


def coverage(
    kinds: np.ndarray, dx: np.ndarray, dy: np.ndarray, radius: np.ndarray, angle: np.ndarray
) -> np.ndarray:
    """Return the fraction of each pixel that the rotated and scaled shape covers, as an array of shape (N, P, P).

    dx and dy are the horizontal and vertical distances of the pixels from the center of the shape.
    """
    values = np.stack([np.cos(angle), np.sin(angle), radius]).astype(np.float32)
    cos, sin, radius = values[..., None, None]
    x = (dx[:, None, :] * cos + dy[:, :, None] * sin) / radius
    y = (dy[:, :, None] * cos - dx[:, None, :] * sin) / radius
    distance = np.empty_like(x)
    for kind, shape in enumerate(KINDS.values()):
        rows = kinds == kind
        distance[rows] = shape(x[rows], y[rows])
    return (0.5 - distance * radius).clip(0, 1)


def contrasting(color: np.ndarray, behind: np.ndarray, contrast: np.ndarray) -> np.ndarray:
    """Change the luminance of each color so that it differs from the luminance of the background by `contrast`.

    `contrast` is added to the luminance of the background. If the sum would be out of range, `contrast` is subtracted.
    """
    ground = behind @ LUMA
    fits = (ground + contrast > 0.02) & (ground + contrast < 0.98)
    luminance = (ground + np.where(fits, contrast, -contrast)).clip(0.02, 0.98)
    return (color + (luminance - color @ LUMA)[:, None]).clip(0, 1).astype(np.float32)


def circle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return np.sqrt(x * x + y * y) - radius


def box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance from the edge of a triangle: the largest of the signed distances from its three sides."""
    turns = [2 * np.pi * (k / 3 + 0.25) for k in range(3)]
    sides = [x * np.float32(np.cos(turn)) + y * np.float32(np.sin(turn)) for turn in turns]
    return np.maximum.reduce(sides) - 0.56


def star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance from the edge of a star with five points.

    Each point of the star consists of two mirror-symmetric halves. The plane is folded onto one half of one point, where
    the edge of the star is a single line.
    """
    sector = 2 * np.pi / 5
    # After folding, the angle is 0 at the notch between two points and half a sector at the tip of a point.
    angle = np.abs(np.mod(np.arctan2(y, x), sector) - sector / 2)
    radius = np.sqrt(x * x + y * y)
    notch = 0.42
    point = 1.08
    side = np.array([point * np.cos(sector / 2) - notch, point * np.sin(sector / 2)])
    normal = np.array([side[1], -side[0]]) / np.hypot(*side)
    across = (radius * np.cos(angle) - notch) * normal[0]
    return (across + radius * np.sin(angle) * normal[1]).astype(np.float32)


def heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the signed distance from the edge of a heart.

    A heart is a square that stands on its corner, with a disc on each of its upper sides.
    """
    u = (x + y) * 0.7071
    v = (y - x) * 0.7071
    lobes = np.minimum(circle(u, v - 0.55, 0.55), circle(u - 0.55, v, 0.55))
    return np.minimum(box(u, v, 0.55, 0.55), lobes)


def arrow_shape(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    head = np.maximum((np.abs(y) + x) * 0.7071 - 0.7071, -x + 0.05)
    return np.minimum(box(x + 0.45, y, 0.55, 0.22), head)


# The kinds of shapes. Each function returns the signed distance from the edge of a shape whose radius is about 1. The distance
# is negative inside the shape.
KINDS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = dict(
    disc=lambda x, y: circle(x, y, 0.9),
    ring=lambda x, y: np.abs(circle(x, y, 0.74)) - 0.22,
    square=lambda x, y: box(x, y, 0.78, 0.78),
    frame=lambda x, y: np.abs(box(x, y, 0.64, 0.64)) - 0.2,
    triangle=triangle,
    plus=lambda x, y: np.minimum(box(x, y, 0.98, 0.28), box(x, y, 0.28, 0.98)),
    star=star,
    crescent=lambda x, y: np.maximum(circle(x, y, 0.98), -circle(x - 0.45, y, 0.76)),
    bar=lambda x, y: box(x, y, 1.0, 0.3),
    ell=lambda x, y: np.minimum(box(x + 0.5, y, 0.28, 0.9), box(x, y + 0.62, 0.78, 0.28)),
    heart=heart,
    arrow=arrow_shape,
)


@DATASETS.register_module()
class Digits(ViewDataset):
    """scikit-learn's 1 797 handwritten digits. The images have 8 x 8 pixels and are enlarged to `size`.

    Args:
        split: 'train', or 'val', which contains a fifth of each class.
        size: Height and width in pixels.
        seed: Seed of the split.
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
    """

    held_out = 0.2

    def __init__(
        self, split: str = 'train', size: int = 32, seed: int = 0, views: Views | None = None
    ) -> None:
        super().__init__(views)
        # These imports are here because importing scikit-learn takes a second.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        numbers = range(len(digits.target))
        train, val = train_test_split(
            numbers, test_size=self.held_out, random_state=seed, stratify=digits.target
        )
        rows = dict(train=train, val=val)[split]
        self.classes = [str(name) for name in digits.target_names]
        self.labels = torch.as_tensor(digits.target[rows], dtype=torch.int64)
        images = torch.as_tensor(digits.images[rows], dtype=torch.float32)[:, None] / 16
        large = interpolate(images, size=(size, size), mode='bilinear', antialias=True)
        self.images = (large * 255).round().to(torch.uint8)

    def raw(self, index: int) -> Tensor:
        return self.images[index].expand(3, -1, -1).clone()
