"""Synthetic scenes: images with several shapes of the kinds in shapes.py, and the pixels and the depth of each shape."""

from typing import NamedTuple

import numpy as np
from PIL import Image

from mmairl.data.shapes import CONTRAST, KINDS, NOISE, PATCHES, contrasting, coverage

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
        covered: For each shape and each pixel, whether the shape covers the pixel. The array has the shape (K, H, W).
        depths: The depth of each shape in meters. The array has the shape (K,).
    """

    image: Image.Image
    kinds: np.ndarray
    covered: np.ndarray
    depths: np.ndarray


def scene(random: np.random.Generator, size: int) -> DrawnScene:
    corners = Image.fromarray(random.integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8))
    pixels = np.asarray(corners.resize((size, size), Image.Resampling.BILINEAR), np.float32) / 255
    centers, radii = _places(random, size)
    kinds = random.integers(len(KINDS), size=len(radii))
    angles = random.uniform(0, 2 * np.pi, len(radii))
    offsets = (np.arange(size) + 0.5 - centers[..., None]).astype(np.float32)
    cover = coverage(kinds, offsets[:, 0], offsets[:, 1], radii, angles)
    contrast = random.uniform(*CONTRAST, len(radii)) * random.choice([-1, 1], len(radii))
    behind = pixels[centers[:, 1].astype(int), centers[:, 0].astype(int)]
    colors = contrasting(random.random((len(radii), 3), np.float32), behind, contrast)
    for share, color in zip(cover[..., None], colors):
        pixels = pixels + share * (color - pixels)
    pixels = pixels + NOISE * random.standard_normal(pixels.shape, np.float32)
    image = Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8))
    return DrawnScene(image, kinds, cover >= 0.5, (NEAR / radii).astype(np.float32))


def _places(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sample centers and radii of shapes that are inside the image and do not touch. Skip a shape after 20 failed tries."""
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
