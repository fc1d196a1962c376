"""A data set that requires no download, because this module draws its images.

An image of `Shapes` contains many copies of one kind of shape. Each copy has its own position,
angle, size and color, and the color of the background varies. Two crops of an image have little in
common except the kind of shape, so a network that matches crops has to learn shapes. Colors,
positions and single pixels are independent of the label.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor

from mmairl.data.datasets import ViewDataset
from mmairl.hardware import cache
from mmairl.io import replacing
from mmairl.registry import DATASETS

Random = np.random.Generator
Points = np.ndarray
SPLITS = ('train', 'val')
CELLS = 3  # cells per side of a randomly shifted lattice; each copy is near the center of a cell
PATCHES = 4  # the background interpolates between PATCHES x PATCHES random colors
RADIUS = (0.11, 0.17)  # range of the radius of a copy, as a fraction of the image's side
CONTRAST = (0.25, 0.6)  # range of the difference in luminance between a copy and its background
NOISE = 0.03  # standard deviation of the noise that is added to each pixel
LUMA = (0.2989, 0.587, 0.114)
FINE = 4  # shapes are drawn at this many times the size, and then shrunk to smooth their edges


def arc(
    radius: float,
    start: float = 0.0,
    end: float = 2 * np.pi,
    center: complex = 0,
) -> Points:
    """Return 33 points on a circle, in the direction from `start` to `end`."""
    return center + radius * np.exp(1j * np.linspace(start, end, 33))


def corners(points: str) -> Points:
    """Return the given points x+iy of an outline, which are in hundredths of the radius."""
    return np.array(points.split(), complex) / 100


# A heart is a square that stands on its corner, with a half disc on each of its upper sides.
LOBE = arc(0.55, -np.pi / 2, np.pi / 2, 0.55)
# The outline of each kind of shape: the points x + iy of a polygon with a radius of about 1. An
# outline with a hole continues along the inner edge in the opposite direction.
KINDS: dict[str, Points] = dict(
    disc=arc(0.9),
    ring=np.array([*arc(0.96), *arc(0.52)[::-1]]),
    square=corners('-78-78j 78-78j 78+78j -78+78j -78-78j'),
    frame=corners('-84-84j 84-84j 84+84j -84+84j -84-84j -44-44j -44+44j 44+44j 44-44j -44-44j'),
    triangle=1.12 * np.exp(2j * np.pi * np.arange(3) / 3),
    plus=corners(
        '28-98j 28-28j 98-28j 98+28j 28+28j 28+98j -28+98j -28+28j -98+28j -98-28j -28-28j -28-98j'
    ),
    star=np.tile([1.08, 0.42], 5) * np.exp(1j * np.pi * np.arange(10) / 5),
    crescent=np.array([*arc(0.98, 0.885, 5.398), *arc(0.76, 4.645, 1.638, 0.45)]),
    bar=corners('-100-30j 100-30j 100+30j -100+30j -100-30j'),
    ell=corners('-78-90j -78+90j -22+90j -22-34j 78-34j 78-90j'),
    heart=np.array([-0.55 - 0.55j, *LOBE, *1j * LOBE[::-1].conj()]) * np.exp(1j * np.pi / 4),
    arrow=corners('-100-22j 5-22j 5-95j 100 5+95j 5+22j -100+22j'),
)


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
    image: Image.Image,
    kinds: Sequence[int],
    centers: Points,
    radii: np.ndarray,
    random: Random,
) -> list[list[float]]:
    """Draw shapes in random colors at random angles. Return their outlines: x, y, x, y, ...

    Centers (x + iy) and radii are in pixels of the image. The luminance of a shape is that of the
    background behind its center plus a contrast or, if the sum would be out of range, minus it.
    """
    count = len(centers)
    turns = radii * np.exp(2j * np.pi * random.random(count))
    pixels = centers.view(float).clip(0, image.width - 1).astype(int)
    ground = np.asarray(image)[pixels[1::2], pixels[::2]] @ LUMA / 255
    contrast = random.uniform(*CONTRAST, count) * random.choice([-1, 1], count)
    goal = ground + contrast
    goal = np.where(np.abs(goal - 0.5) < 0.48, goal, ground - contrast)
    colors = random.random((count, 3))
    colors += (goal - colors @ LUMA)[:, None]
    fills = np.rint(255 * colors.clip(0, 1)).astype(int).tolist()
    shapes = list(KINDS.values())
    outlines = []
    for kind, turn, center, fill in zip(kinds, turns, centers, fills):
        points = shapes[kind] * turn + center
        outlines.append(points.view(float).tolist())
        ImageDraw.Draw(image).polygon(outlines[-1], fill=tuple(fill))
    return outlines


def draw_image(random: Random, kind: int, size: int) -> np.ndarray:
    """Draw an image with copies of one kind of shape on a shifted lattice."""
    image = background(random, size)
    # The shift can move copies out of the image, so the lattice has one more row and column.
    steps = np.arange(CELLS + 1)
    lattice = np.add.outer(steps, 1j * steps).ravel()
    shift = random.random(2) - 0.5
    shift = shift + random.uniform(-0.2, 0.2, (len(lattice), 2))
    centers = (lattice + shift @ [1, 1j]) / CELLS * image.width
    radii = random.uniform(*RADIUS, len(lattice)) * image.width
    draw_shapes(image, [kind] * len(lattice), centers, radii, random)
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
        gray: Whether the three channels are equal.
        options: `views`, as in `ViewDataset`.

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
        gray: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.gray = gray
        self.classes = list(KINDS)
        self.labels = torch.arange(count) % len(KINDS)
        # The file name contains a digest of this module, so that a change of it draws the images
        # again.
        version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
        path = cache() / 'shapes' / f'{split}-{count}-{size}-{seed}-{version}.npy'
        if not path.exists():
            images = []
            for index in range(count):
                random = np.random.default_rng((seed, SPLITS.index(split), index))
                image = draw_image(random, index % len(KINDS), size)
                images.append(image.transpose(2, 0, 1))
            with replacing(path) as temporary, temporary.open('wb') as file:
                np.save(file, np.stack(images))
        self.images = np.load(path, mmap_mode='r')

    def raw(self, index: int) -> Tensor:
        image = self.images[index].copy()
        if self.gray:
            image[:] = np.tensordot(LUMA, image, 1).round()
        return torch.from_numpy(image)
