"""Draw synthetic domains of images in which a known cue decides the class, so the possible benefit of pre-training is known.

An image shows either a texture or, as in the data set `Shapes`, several copies of one shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmairl.data.shapes import KINDS, Scene, render

SIDE = 32  # width and height of an image in pixels


@dataclass(frozen=True)
class Domain:
    """A set of synthetic images: the cue that decides the class, and the numbers of images and labels."""

    name: str
    by: str  # the cue: outline, texture or colour
    classes: int = 6
    images: int = 2400
    labels: int = 40  # labeled images of each class; half of them are test images
    zoom: float = 1.0  # size of the copies of a shape, relative to `Shapes`
    noise: float = 0.0  # standard deviation of the noise on pixels
    wrong: float = 0.0  # fraction of wrong labels
    released: bool = False  # whether weights that were trained on outlines are compared as well


DOMAINS = (
    Domain('textures', 'texture'),
    Domain('colours', 'colour'),
    Domain('textures, a fifth of the labels wrong', 'texture', wrong=0.2),
    Domain('textures in noise', 'texture', noise=0.1),
    Domain('textures, two classes', 'texture', classes=2, labels=100),
    Domain('textures, eight classes', 'texture', classes=8),
    Domain('textures, 400 images', 'texture', images=400),
    Domain('colours in noise', 'colour', noise=0.1),
    Domain('colours of tiny copies', 'colour', zoom=0.5),
    Domain('outlines', 'outline'),
    Domain('outlines, with weights from outlines', 'outline', released=True),
    Domain('textures, with weights from outlines', 'texture', released=True),
    Domain('colours, with weights from outlines', 'colour', released=True),
)


def draw(domain: Domain, labels: Sequence[int], seed: int) -> np.ndarray:
    """Return an image for each label, shape (N, 32, 32, 3), uint8."""
    random = np.random.default_rng(seed)
    labels = np.asarray(labels)
    if domain.by == 'texture':
        images = np.stack([texture(random, label) for label in labels])
    else:
        images = copies(random, labels, domain)
    images = images + domain.noise * random.standard_normal(images.shape)
    return (255 * images.clip(0, 1)).round().astype(np.uint8)


def texture(random: np.random.Generator, label: int) -> np.ndarray:
    """Return an image of waves. The class determines their length and whether they run in one direction or in two.

    Angle, position and colors are random.
    """
    length = 3.0 * 1.7 ** (label // 2)
    angle, places = random.uniform(0, np.pi), random.uniform(0, 2 * np.pi, 2)
    y, x = np.mgrid[:SIDE, :SIDE] * 2 * np.pi / length
    along = np.sin(x * np.cos(angle) + y * np.sin(angle) + places[0])
    across = np.sin(y * np.cos(angle) - x * np.sin(angle) + places[1])
    waves = along if label % 2 else along * across
    return random.uniform(0.2, 0.8, 3) + random.uniform(0.2, 0.4) * waves[..., None]


def copies(random: np.random.Generator, labels: np.ndarray, domain: Domain) -> np.ndarray:
    """Return images that show copies of one shape. The class is the kind of shape, or its color on a gray background."""
    scenes = [Scene(random, SIDE) for _ in labels]
    kinds = labels % len(KINDS)
    for scene, label in zip(scenes, labels):
        scene.radius = scene.radius * domain.zoom
        if domain.by == 'colour':
            hue = 2 * np.pi * (label + random.uniform(-0.3, 0.3)) / domain.classes
            scene.background[:] = scene.background.mean(0)
            scene.color[:] = 0.5 + 0.5 * np.cos(hue - 2 * np.pi * np.arange(3) / 3)
    if domain.by == 'colour':
        kinds = random.integers(0, len(KINDS), len(labels))
    return render(scenes, kinds, SIDE).transpose(0, 2, 3, 1) / 255


def write_images(folder: Path, images: np.ndarray) -> list[str]:
    """Write each image into the folder, and return the names."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f'{number:05}.png' for number in range(len(images))]
    for name, image in zip(names, images):
        Image.fromarray(image).save(folder / name, compress_level=0)
    return names
