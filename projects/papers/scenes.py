"""Draw scenes for detection and segmentation: several kinds of `Shapes`, in the file formats of mmdet and mmseg.

A folder has `SPLIT/` with images, `annotations/SPLIT.json` with boxes in COCO's format, and `masks/SPLIT/` with a PNG for each
image, in which 0 is the background and n the n-th kind of shape. Scene i of a split depends only on i and on the index of the
split in `COUNTS`.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock
from mmengine.registry import FUNCTIONS
from PIL import Image, ImageDraw

from mmairl.data import shapes
from mmairl.data.shapes import FINE, KINDS, Random, background, draw_shapes, noisy
from mmairl.hardware import cache
from mmairl.io import explained_disk_errors, write_json

SIZE = 96
# Number of scenes in each split. Trials are chosen on one half of the held-out scenes and reported on the other.
COUNTS = dict(train=400, test=300, half_0=150, half_1=150)
COPIES = (2, 5)  # range of the number of shapes in a scene
RADIUS = (7, 15)  # range of a shape's radius in pixels
REACH = 1.2  # the points of a shape are at most this many radii from its center


@FUNCTIONS.register_module()
def drawn_scenes() -> Path:
    """Draw the scenes in the user's cache if they are missing, and return the folder that contains `data/scenes`."""
    code = Path(__file__).read_bytes() + Path(shapes.__file__).read_bytes()
    root = cache() / f'scenes-{hashlib.sha256(code).hexdigest()[:8]}'
    with explained_disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / '.lock'):
            if not (root / 'complete.json').is_file():
                write(root / 'data/scenes', COUNTS)
                write_json(root / 'complete.json', COUNTS)
    return root


def write(folder: Path, counts: Mapping[str, int], size: int = SIZE) -> Path:
    """Draw the given number of scenes of each split."""
    categories = [dict(id=number, name=name) for number, name in enumerate(KINDS, 1)]
    for number, (split, count) in enumerate(counts.items()):
        masks = folder / 'masks' / split
        for path in (folder / split, folder / 'annotations', masks):
            path.mkdir(parents=True, exist_ok=True)
        images = []
        annotations = []
        for index in range(count):
            image, kinds, covered = scene(np.random.default_rng((number, index)), size)
            name = f'{index:04d}.png'
            image.save(folder / split / name)
            mask = (covered * (kinds[:, None, None] + 1)).max(axis=0)
            Image.fromarray(mask.astype(np.uint8)).save(masks / name)
            images.append(dict(id=index, file_name=name, width=size, height=size))
            for kind, where in zip(kinds.tolist(), covered):
                entry = dict(id=len(annotations) + 1, image_id=index, category_id=kind + 1)
                shape = dict(bbox=box_of(where), area=int(where.sum()), iscrowd=0)
                annotations.append(entry | shape)
        content = dict(images=images, annotations=annotations, categories=categories)
        write_json(folder / 'annotations' / f'{split}.json', content)
    return folder


def box_of(covered: np.ndarray) -> list[int]:
    """Return a box in COCO's format: left, top, width and height."""
    rows = np.flatnonzero(covered.any(axis=1))
    columns = np.flatnonzero(covered.any(axis=0))
    left, right = columns[[0, -1]].tolist()
    top, bottom = rows[[0, -1]].tolist()
    return [left, top, right - left + 1, bottom - top + 1]


def scene(random: Random, size: int) -> tuple[Image.Image, np.ndarray, np.ndarray]:
    """Draw K shapes that do not touch.

    Returns:
        The image; the kind of each shape, as an index into KINDS; and whether a shape covers a pixel, (K, H, W).
    """
    image = background(random, size)
    centers, radii = _places(random, size)
    kinds = random.integers(len(KINDS), size=len(radii))
    outlines = draw_shapes(image, kinds, FINE * centers @ [1, 1j], FINE * radii, random)
    covered = np.stack([_covered(points, image.size) for points in outlines])
    return Image.fromarray(noisy(image, random)), kinds, covered


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
