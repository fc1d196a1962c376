"""Two data sets that need no download: Shapes, drawn by this file, and scikit-learn's handwritten digits.

An image of Shapes shows many copies of ONE kind of shape, each with its own place, angle, size and colour, on a background
of changing colour. The kind is the only thing that two crops of an image share, so a network that must tell which crops
belong together has to learn shape; colour, position and single pixels say nothing about the label.
"""

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mmairl.data.datasets import ViewDataset, Views
from mmairl.errors import UserError
from mmairl.hardware import cache
from mmairl.io import replacing
from mmairl.registry import DATASETS

SPLITS = ('train', 'val')
CELLS = (
    3  # copies stand near the middles of a CELLS x CELLS lattice that is itself shifted at random
)
PATCHES = 4  # the background interpolates this many random colours per side
RADIUS = (0.11, 0.17)  # of the image's side
CONTRAST = (0.25, 0.6)  # luminance of a copy against the background behind it, darker or brighter
NOISE = 0.03
LUMA = np.array([0.2989, 0.587, 0.114], np.float32)
CHUNK = 256  # images drawn at once; keeps the working set in the processor's cache


@DATASETS.register_module()
class Shapes(ViewDataset):
    """`count` images of `size` pixels; image i depends on (seed, split, i) only, and its kind is i modulo their number.

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
    ) -> None:
        super().__init__(views)
        if split not in SPLITS:
            raise UserError(f"Shapes has no split '{split}'; use 'train' or 'val'.")
        self.classes = list(KINDS)
        self.labels = torch.arange(count) % len(KINDS)
        self.images = cached(split, count, size, seed)

    def raw(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self.images[index]))


def cached(split: str, count: int, size: int, seed: int) -> np.ndarray:
    """The images from the user's cache, drawn and put there when missing or broken."""
    folder = cache() / 'shapes'
    version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]  # of the drawing code
    path = folder / f'{split}-{count}-{size}-{seed}-{version}.npy'
    with suppress(OSError, ValueError, EOFError):
        images = np.load(path, mmap_mode='r')
        if images.shape == (count, 3, size, size) and images.dtype == np.uint8:
            return images
    images = draw(split, range(count), size, seed)
    # A disk that cannot be written only costs the next run its drawing.
    with suppress(OSError, UserError), replacing(path) as beside, beside.open('wb') as file:
        np.save(file, images)
    return images


def draw(split: str, indices: Sequence[int], size: int, seed: int) -> np.ndarray:
    """The images with these indices, (N, 3, size, size) uint8."""
    images = np.empty((len(indices), 3, size, size), np.uint8)
    for start in range(0, len(indices), CHUNK):
        some = indices[start : start + CHUNK]
        scenes = [Scene(np.random.default_rng((seed, SPLITS.index(split), i)), size) for i in some]
        images[start : start + CHUNK] = render(scenes, np.array(some) % len(KINDS), size)
    return images


class Scene:
    """All that is random in one image, drawn from its own generator; lengths are fractions of the image's side."""

    def __init__(self, random: np.random.Generator, size: int) -> None:
        copies = (
            CELLS + 1
        ) ** 2  # one row and column more than fit: the shift moves them partly out
        lattice = np.stack(np.meshgrid(np.arange(CELLS + 1), np.arange(CELLS + 1)), -1).reshape(
            copies, 2
        )
        self.background = random.random((3, PATCHES, PATCHES), np.float32)
        self.centre = (
            lattice + random.random(2) - 0.5 + random.uniform(-0.2, 0.2, (copies, 2))
        ) / CELLS
        self.radius = random.uniform(*RADIUS, copies)
        self.angle = random.uniform(0, 2 * np.pi, copies)
        self.colour = random.random((copies, 3), np.float32)
        self.contrast = random.uniform(*CONTRAST, copies) * random.choice([-1, 1], copies)
        self.noise = random.standard_normal((3, size, size), np.float32)


def render(scenes: list[Scene], kinds: np.ndarray, size: int) -> np.ndarray:
    """Paint the copies one after the other, the n-th copies of all images at once, each in a patch around its centre."""
    stacked = {key: np.stack([getattr(scene, key) for scene in scenes]) for key in vars(scenes[0])}
    reach = int(np.ceil(RADIUS[1] * size * 1.15)) + 1
    margin = 2 * reach + size // CELLS  # copies may lie partly or wholly outside the image
    at = np.linspace(0, PATCHES - 1, size)
    weights = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(PATCHES))).astype(np.float32)
    background = (
        weights @ stacked['background'] @ weights.T
    )  # the random colours, smoothly interpolated
    canvas = np.pad(background, [(0, 0), (0, 0), (margin, margin), (margin, margin)], 'edge')
    for copy in range(stacked['radius'].shape[1]):
        placed = {
            key: stacked[key][:, copy]
            for key in ('centre', 'radius', 'angle', 'colour', 'contrast')
        }
        paint(canvas, kinds, placed, size, reach, margin)
    images = canvas[:, :, margin : margin + size, margin : margin + size] + NOISE * stacked['noise']
    return (images.clip(0, 1) * 255).round().astype(np.uint8)


def paint(
    canvas: np.ndarray,
    kinds: np.ndarray,
    placed: dict[str, np.ndarray],
    size: int,
    reach: int,
    margin: int,
) -> None:
    """Blend one copy into each image of the canvas, in place; its edge is one pixel soft."""
    centre = placed['centre'] * size + margin
    corner = np.floor(centre).astype(int) - reach
    offsets = np.arange(2 * reach + 1)
    image = np.arange(len(canvas))[:, None, None]
    columns, rows = (corner[:, axis, None] + offsets for axis in (0, 1))
    dx, dy = (
        (at + 0.5 - centre[:, axis, None]).astype(np.float32)
        for axis, at in ((0, columns), (1, rows))
    )
    cover = coverage(kinds, dx, dy, placed['radius'] * size, placed['angle'])

    where = (
        image[..., None],
        np.arange(3)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    )
    behind = canvas[where]
    colour = contrasting(placed['colour'], behind[:, :, reach, reach], placed['contrast'])
    canvas[where] = behind + cover[:, None] * (colour[:, :, None, None] - behind)


def coverage(
    kinds: np.ndarray, dx: np.ndarray, dy: np.ndarray, radius: np.ndarray, angle: np.ndarray
) -> np.ndarray:
    """(N, P, P) share of each pixel that the turned and scaled shape covers; dx, dy are pixels from its centre."""
    cos, sin, radius = (
        value.astype(np.float32)[:, None, None] for value in (np.cos(angle), np.sin(angle), radius)
    )
    x = (dx[:, None, :] * cos + dy[:, :, None] * sin) / radius
    y = (dy[:, :, None] * cos - dx[:, None, :] * sin) / radius
    distance = np.empty_like(x)
    for kind, shape in enumerate(KINDS.values()):
        these = kinds == kind
        distance[these] = shape(x[these], y[these])
    return (0.5 - distance * radius).clip(0, 1)


def contrasting(colour: np.ndarray, behind: np.ndarray, contrast: np.ndarray) -> np.ndarray:
    """The colours moved to a luminance that differs from what is behind by `contrast`, or by its opposite if that fits."""
    ground = behind @ LUMA
    fits = (ground + contrast > 0.02) & (ground + contrast < 0.98)
    wanted = (ground + np.where(fits, contrast, -contrast)).clip(0.02, 0.98)
    return (colour + (wanted - colour @ LUMA)[:, None]).clip(0, 1).astype(np.float32)


def circle(x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    return np.sqrt(x * x + y * y) - radius


def box(x: np.ndarray, y: np.ndarray, half_width: float, half_height: float) -> np.ndarray:
    return np.maximum(np.abs(x) - half_width, np.abs(y) - half_height)


def triangle(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The farthest of its three sides."""
    turns = [2 * np.pi * (k / 3 + 0.25) for k in range(3)]
    return (
        np.maximum.reduce([x * np.float32(np.cos(t)) + y * np.float32(np.sin(t)) for t in turns])
        - 0.56
    )


def star(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Five points: fold the plane into half a point and measure to its one side."""
    sector = 2 * np.pi / 5
    angle = np.abs(
        np.mod(np.arctan2(y, x), sector) - sector / 2
    )  # 0 in a notch, half a sector at a point
    radius = np.sqrt(x * x + y * y)
    notch, point = 0.42, 1.08
    side = np.array([point * np.cos(sector / 2) - notch, point * np.sin(sector / 2)])
    normal = np.array([side[1], -side[0]]) / np.hypot(*side)
    return (
        (radius * np.cos(angle) - notch) * normal[0] + radius * np.sin(angle) * normal[1]
    ).astype(np.float32)


def heart(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A square on its corner and a disc on each of its upper sides."""
    u, v = (x + y) * 0.7071, (y - x) * 0.7071
    lobes = np.minimum(circle(u, v - 0.55, 0.55), circle(u - 0.55, v, 0.55))
    return np.minimum(box(u, v, 0.55, 0.55), lobes)


def arrow(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    head = np.maximum((np.abs(y) + x) * 0.7071 - 0.7071, -x + 0.05)
    return np.minimum(box(x + 0.45, y, 0.55, 0.22), head)


# Each kind as a signed distance in its own unit frame: negative inside, about one unit wide.
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
    arrow=arrow,
)


@DATASETS.register_module()
class Digits(ViewDataset):
    """1 797 digits of 8 x 8 pixels, enlarged to `size`; the seed decides which fifth is 'val', class by class."""

    held_out = 0.2

    def __init__(
        self, split: str = 'train', size: int = 32, seed: int = 0, views: Views | None = None
    ) -> None:
        super().__init__(views)
        # scikit-learn takes a second to import, which users of other data need not pay.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        parts = train_test_split(
            range(len(digits.target)),
            test_size=self.held_out,
            random_state=seed,
            stratify=digits.target,
        )
        rows = dict(zip(('train', 'val'), parts))[split]
        self.classes = [str(name) for name in digits.target_names]
        self.labels = torch.as_tensor(digits.target[rows], dtype=torch.int64)
        images = torch.as_tensor(digits.images[rows], dtype=torch.float32)[:, None] / 16
        large = torch.nn.functional.interpolate(
            images, size=(size, size), mode='bilinear', antialias=True
        )
        self.images = (large * 255).round().to(torch.uint8)

    def raw(self, index: int) -> Tensor:
        return self.images[index].expand(3, -1, -1).clone()
