"""Drawn scenes for detection and segmentation: kinds of `Shapes` beside each other, as mmdet and mmseg read their files.

A folder has `SPLIT/` with images, `annotations/SPLIT.json` with boxes in COCO's format, and `masks/SPLIT/` with a PNG for each
image, in which 0 is the background and n the n-th kind. Scene i of a split depends on (split, i) alone.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock
from mmengine.registry import FUNCTIONS
from PIL import Image

from mmairl.data import shapes
from mmairl.data.shapes import KINDS, NOISE, PATCHES, contrasting, coverage
from mmairl.hardware import cache
from mmairl.io import explained_disk_errors, write_json

SIZE = 96
COUNTS = dict(train=400, test=300, half_0=150, half_1=150)  # the halves choose among trials
COPIES = (2, 5)
RADIUS = (7, 15)  # pixels
REACH = 1.2  # radii from the centre of a shape to its farthest point
Scene = tuple[Image.Image, np.ndarray, np.ndarray]


@FUNCTIONS.register_module()
def drawn_scenes() -> Path:
    """The folder of the user's cache that has `data/scenes`, drawn where it is missing or was not finished."""
    version = hashlib.sha256(
        b''.join(Path(file).read_bytes() for file in (__file__, shapes.__file__))
    ).hexdigest()[:8]
    root = cache() / f'scenes-{version}'
    with explained_disk_errors(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / '.lock'):
            if not (root / 'complete.json').is_file():
                write(root / 'data/scenes', COUNTS)
                write_json(root / 'complete.json', COUNTS)
    return root


def write(folder: Path, counts: Mapping[str, int], size: int = SIZE) -> Path:
    """Draw so many scenes of each split."""
    for number, (split, count) in enumerate(counts.items()):
        masks = folder / 'masks' / split
        for path in (folder / split, folder / 'annotations', masks):
            path.mkdir(parents=True, exist_ok=True)
        content = dict(
            images=[],
            annotations=[],
            categories=[dict(id=i, name=n) for i, n in enumerate(KINDS, 1)],
        )
        for index in range(count):
            image, kinds, covered = scene(np.random.default_rng((number, index)), size)
            name = f'{index:04d}.png'
            image.save(folder / split / name)
            Image.fromarray(
                (covered * (kinds[:, None, None] + 1)).max(axis=0).astype(np.uint8)
            ).save(masks / name)
            content['images'].append(dict(id=index, file_name=name, width=size, height=size))
            for kind, where in zip(kinds.tolist(), covered):
                entry = dict(
                    id=len(content['annotations']) + 1,
                    image_id=index,
                    category_id=kind + 1,
                    iscrowd=0,
                )
                content['annotations'].append(
                    dict(entry, bbox=box_of(where), area=int(where.sum()))
                )
        write_json(folder / 'annotations' / f'{split}.json', content)
    return folder


def scene(random: np.random.Generator, size: int = SIZE) -> Scene:
    """An image, the kinds of its shapes, and (K, H, W) which pixels each covers; no two shapes touch."""
    corners = Image.fromarray(random.integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8))
    pixels = np.asarray(corners.resize((size, size), Image.Resampling.BILINEAR), np.float32) / 255
    centres, radii = _places(random, size)
    kinds, angles = (
        random.integers(len(KINDS), size=len(radii)),
        random.uniform(0, 2 * np.pi, len(radii)),
    )
    offsets = (np.arange(size) + 0.5 - centres[..., None]).astype(np.float32)
    cover = coverage(kinds, offsets[:, 0], offsets[:, 1], radii, angles)
    contrast = random.uniform(*shapes.CONTRAST, len(radii)) * random.choice([-1, 1], len(radii))
    behind = pixels[centres[:, 1].astype(int), centres[:, 0].astype(int)]
    colours = contrasting(random.random((len(radii), 3), np.float32), behind, contrast)
    for share, colour in zip(cover[..., None], colours):
        pixels = pixels + share * (colour - pixels)
    pixels = pixels + NOISE * random.standard_normal(pixels.shape, np.float32)
    return Image.fromarray((pixels.clip(0, 1) * 255).round().astype(np.uint8)), kinds, cover >= 0.5


def _places(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres and radii of shapes that lie inside the image and apart; one for which there is no room is left out."""
    centres, radii = [], []
    for _ in range(random.integers(COPIES[0], COPIES[1] + 1)):
        for _ in range(20):
            radius = random.uniform(*RADIUS)
            centre = random.uniform(REACH * radius, size - REACH * radius, 2)
            if all(
                np.hypot(*(centre - other)) > REACH * (radius + r)
                for other, r in zip(centres, radii)
            ):
                centres.append(centre)
                radii.append(radius)
                break
    return np.array(centres), np.array(radii)


def box_of(covered: np.ndarray) -> list[int]:
    """COCO's left, top, width and height."""
    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    return [int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1]
