"""Two data sets that require no download: `Shapes`, which this module draws, and handwritten digits.

An image of `Shapes` contains many copies of one kind of shape. Each copy has its own position,
angle, size and color, and the color of the background varies. Two crops of an image have little in
common except the kind of shape, so a network that matches crops has to learn shapes. Colors,
positions and single pixels are independent of the label.
"""

import hashlib
from contextlib import suppress
from operator import mul
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn.functional import interpolate

from mmairl.data.datasets import ViewDataset, Views
from mmairl.data.splits import split_by_class
from mmairl.errors import UserError
from mmairl.hardware import cache
from mmairl.io import replacing
from mmairl.registry import DATASETS

SPLITS = ('train', 'val')
CELLS = 3  # cells per side of a randomly shifted lattice; each copy is near the center of a cell
PATCHES = 4  # the background interpolates between PATCHES x PATCHES random colors
RADIUS = (0.11, 0.17)  # range of the radius of a copy, as a fraction of the image's side
CONTRAST = (0.25, 0.6)  # range of the difference in luminance between a copy and its background
NOISE = 0.03  # standard deviation of the noise that is added to each pixel
LUMA = (0.2989, 0.587, 0.114)
Random = np.random.Generator
FINE = 4  # shapes are drawn at this many times the size, and then shrunk to smooth their edges


def arc(radius: float, start: float = 0.0, end: float = 2 * np.pi, x: float = 0.0) -> np.ndarray:
    """Return 33 points on a circle around (x, 0), in the direction from `start` to `end`."""
    angle = np.linspace(start, end, 33)
    return np.stack([x + radius * np.cos(angle), radius * np.sin(angle)], 1)


def box(half_width: float, half_height: float) -> np.ndarray:
    corners = [[-1, -1], [1, -1], [1, 1], [-1, 1], [-1, -1]]
    return np.array(corners) * [half_width, half_height]


def star() -> np.ndarray:
    angle = np.pi * np.arange(10) / 5
    radius = np.tile([1.08, 0.42], 5)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)


def heart() -> np.ndarray:
    """Return a square that stands on its corner, with a half disc on each of its upper sides."""
    lobe = arc(0.55, -np.pi / 2, np.pi / 2, 0.55)
    outline = np.concatenate([[[-0.55, -0.55]], lobe, lobe[::-1, ::-1]])
    return outline @ np.array([[1, 1], [-1, 1]]) * 0.7071


def plus(arm: float = 0.98, half: float = 0.28) -> np.ndarray:
    side = np.array([[half, -arm], [half, -half], [arm, -half]])
    turn = np.array([[0, 1], [-1, 0]])
    return np.concatenate([side @ np.linalg.matrix_power(turn, k) for k in range(4)])


# The outline of each kind of shape, as points of a polygon with a radius of about 1. An outline with
# a hole continues along the inner edge in the opposite direction.
KINDS: dict[str, np.ndarray] = dict(
    disc=arc(0.9),
    ring=np.concatenate([arc(0.96), arc(0.52)[::-1]]),
    square=box(0.78, 0.78),
    frame=np.concatenate([box(0.84, 0.84), box(0.44, 0.44)[::-1]]),
    triangle=np.array([[1.12, 0], [-0.56, 0.97], [-0.56, -0.97]]),
    plus=plus(),
    star=star(),
    crescent=np.concatenate([arc(0.98, 0.885, 5.398), arc(0.76, 4.645, 1.638, 0.45)]),
    bar=box(1.0, 0.3),
    ell=np.array(
        [[-0.78, -0.9], [-0.78, 0.9], [-0.22, 0.9], [-0.22, -0.34], [0.78, -0.34], [0.78, -0.9]]
    ),
    heart=heart(),
    arrow=np.array(
        [[-1, -0.22], [0.05, -0.22], [0.05, -0.95], [1, 0], [0.05, 0.95], [0.05, 0.22], [-1, 0.22]]
    ),
)


def outlines(
    kinds: np.ndarray, centers: np.ndarray, radii: np.ndarray, angles: np.ndarray
) -> list[list[float]]:
    """Return the points of scaled and rotated shapes, for Pillow: x, y, x, y, ..."""
    cos, sin = radii * np.cos(angles), radii * np.sin(angles)
    turns = np.stack([np.stack([cos, sin], 1), np.stack([-sin, cos], 1)], 1)
    shapes = list(KINDS.values())
    return [
        (shapes[kind] @ turn + center).ravel().tolist()
        for kind, turn, center in zip(kinds.tolist(), turns, centers)
    ]


def contrasting(color: list[float], behind: tuple[int, ...], contrast: float) -> tuple[int, ...]:
    """Change the luminance of a color so that it differs from the background's by `contrast`.

    `contrast` is added to the luminance of the background or, if the sum would be out of range,
    subtracted from it. The color is in [0, 1], and the result and the background are bytes.
    """
    ground = sum(map(mul, behind, LUMA)) / 255
    goal = ground + contrast if 0.02 < ground + contrast < 0.98 else ground - contrast
    change = min(max(goal, 0.02), 0.98) - sum(map(mul, color, LUMA))
    return tuple(round(255 * min(max(value + change, 0.0), 1.0)) for value in color)


def noisy(image: Image.Image, random: Random) -> np.ndarray:
    """Return the pixels of an image, shrunk by FINE, with noise."""
    pixels = np.asarray(image.reduce(FINE), np.float32) / 255
    pixels = pixels + NOISE * random.standard_normal(pixels.shape, np.float32)
    return (pixels.clip(0, 1) * 255).round().astype(np.uint8)


def background(random: Random, size: int) -> Image.Image:
    """Return a smooth random image of `size` x FINE pixels per side."""
    corners = random.integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8)
    side = FINE * size
    return Image.fromarray(corners).resize((side, side), Image.Resampling.BILINEAR)


def draw_shapes(
    image: Image.Image, kinds: np.ndarray, centers: np.ndarray, radii: np.ndarray, random: Random
) -> list[list[float]]:
    """Draw shapes in random colors at random angles. Return their outlines.

    Centers and radii are in pixels of the image.
    """
    count = len(kinds)
    drawn = outlines(kinds, centers, radii, random.uniform(0, 2 * np.pi, count))
    contrasts = random.uniform(*CONTRAST, count) * random.choice([-1, 1], count)
    colors = random.random((count, 3)).tolist()
    places = centers.clip(0, image.width - 1).astype(int).tolist()
    pen = ImageDraw.Draw(image)
    for points, place, color, contrast in zip(drawn, places, colors, contrasts.tolist()):
        pen.polygon(points, fill=contrasting(color, image.getpixel(tuple(place)), contrast))
    return drawn


def draw_image(random: Random, kind: int, size: int) -> np.ndarray:
    """Draw an image with copies of one kind of shape on a shifted lattice."""
    image = background(random, size)
    # The shift can move copies out of the image, so the lattice has one more row and column.
    lattice = np.stack(np.meshgrid(np.arange(CELLS + 1), np.arange(CELLS + 1)), -1).reshape(-1, 2)
    shift = random.random(2) - 0.5 + random.uniform(-0.2, 0.2, lattice.shape)
    centers = (lattice + shift) / CELLS * image.width
    radii = random.uniform(*RADIUS, len(lattice)) * image.width
    draw_shapes(image, np.full(len(lattice), kind), centers, radii, random)
    return noisy(image, random)


@DATASETS.register_module()
class Shapes(ViewDataset):
    """Synthetic images, each with many copies of one kind of shape, which is the image's class.

    Image i is the same for every `count`. The classes alternate.

    Args:
        split: 'train' or 'val'.
        count: Number of images.
        size: Height and width in pixels.
        seed: Seed of all images.
        views: One list of transforms for each view.
        gray: Whether the three channels are equal.

    Raises:
        UserError: If the split is unknown.

    Example:
        >>> Shapes('val', count=24)[0]['inputs'][0].shape
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
    """Return the images from the user's cache, or draw them."""
    # The file name contains a digest of this module, so that a change of it draws the images again.
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
    path = cache() / 'shapes' / f'{split}-{count}-{size}-{seed}-{version}.npy'
    with suppress(OSError, ValueError, EOFError):
        return np.load(path, mmap_mode='r')
    images = np.empty((count, 3, size, size), np.uint8)
    for index in range(count):
        random = np.random.default_rng((seed, SPLITS.index(split), index))
        images[index] = draw_image(random, index % len(KINDS), size).transpose(2, 0, 1)
    # If the cache cannot be written, the next run draws the images again.
    with suppress(OSError, UserError), replacing(path) as temporary, temporary.open('wb') as file:
        np.save(file, images)
    return images


@DATASETS.register_module()
class Digits(ViewDataset):
    """scikit-learn's 1 797 handwritten digits of 8 x 8 pixels, enlarged to `size`.

    Args:
        split: 'train', or 'val', which contains a fifth of the images.
        size: Height and width in pixels.
        seed: Seed of the split.
        views: One list of transforms for each view.
    """

    def __init__(
        self, split: str = 'train', size: int = 32, seed: int = 0, views: Views | None = None
    ) -> None:
        super().__init__(views)
        # Importing scikit-learn takes a second.
        from sklearn.datasets import load_digits

        digits = load_digits()
        labels = torch.as_tensor(digits.target, dtype=torch.int64)
        rows = split_by_class(labels, seed)[SPLITS.index(split)]
        self.classes = [str(name) for name in digits.target_names]
        self.labels = labels[rows]
        images = torch.as_tensor(digits.images, dtype=torch.float32)[rows, None] / 16
        large = interpolate(images, size=(size, size), mode='bilinear', antialias=True)
        self.images = (large * 255).round().byte()

    def raw(self, index: int) -> Tensor:
        return self.images[index].expand(3, -1, -1).clone()
