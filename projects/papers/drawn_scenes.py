"""Synthetic scenes with several shapes, and the pixels and the depth of each shape."""

from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from mmairl.data.shapes import FINE, KINDS, Random, background, draw_shapes, noisy

COPIES = (2, 5)
RADIUS = (7, 15)  # range of a shape's radius in pixels
REACH = 1.2  # the points of a shape are at most this many radii from its center
NEAR = 30.0  # depth in meters of a shape with a radius of one pixel
FAR = 8.0  # depth in meters of the background


class DrawnScene(NamedTuple):
    """An image with K shapes that do not touch.

    Attributes:
        image: The image as 8-bit RGB.
        kinds: The kind of each shape, as an index into KINDS. The array has the shape (K,).
        covered: Whether a shape covers a pixel. The array has the shape (K, H, W).
        depths: The depth of each shape in meters. The array has the shape (K,).
    """

    image: Image.Image
    kinds: np.ndarray
    covered: np.ndarray
    depths: np.ndarray


def scene(random: Random, size: int) -> DrawnScene:
    image = background(random, size)
    centers, radii = _places(random, size)
    kinds = random.integers(len(KINDS), size=len(radii))
    outlines = draw_shapes(image, kinds, FINE * centers @ [1, 1j], FINE * radii, random)
    covered = np.stack([_covered(points, image.size) for points in outlines])
    picture = Image.fromarray(noisy(image, random))
    return DrawnScene(picture, kinds, covered, (NEAR / radii).astype(np.float32))


def _covered(points: list[float], size: tuple[int, int]) -> np.ndarray:
    mask = Image.new('L', size)
    ImageDraw.Draw(mask).polygon(points, fill=255)
    return np.asarray(mask.reduce(FINE)) >= 128


def _places(random: Random, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample centers and radii of shapes inside the image that do not touch.

    A shape is skipped after 20 failed tries.
    """
    centers = []
    radii = []
    for _ in range(random.integers(COPIES[0], COPIES[1] + 1)):
        for _ in range(20):
            radius = random.uniform(*RADIUS)
            center = random.uniform(REACH * radius, size - REACH * radius, 2)
            distances = [np.hypot(*(center - other)) for other in centers]
            if all(gap > REACH * (radius + other) for gap, other in zip(distances, radii)):
                centers.append(center)
                radii.append(radius)
                break
    return np.array(centers), np.array(radii)
