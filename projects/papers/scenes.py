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
from PIL import Image

from mmairl.data import shapes
from mmairl.data.shapes import KINDS
from mmairl.hardware import cache
from mmairl.io import explained_disk_errors, write_json
from projects.papers import drawn_scenes as drawn
from projects.papers.drawn_scenes import scene

SIZE = 96
# Number of scenes in each split. Trials are chosen on one half of the held-out scenes and reported on the other.
COUNTS = dict(train=400, test=300, half_0=150, half_1=150)


@FUNCTIONS.register_module()
def drawn_scenes() -> Path:
    """Draw the scenes in the user's cache if they are missing, and return the folder that contains `data/scenes`."""
    version = hashlib.sha256(
        b''.join(Path(file).read_bytes() for file in (__file__, drawn.__file__, shapes.__file__))
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
    """Draw the given number of scenes of each split."""
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
            image, kinds, covered, _ = scene(np.random.default_rng((number, index)), size)
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


def box_of(covered: np.ndarray) -> list[int]:
    """Return a box in COCO's format: left, top, width and height."""
    rows, columns = np.flatnonzero(covered.any(axis=1)), np.flatnonzero(covered.any(axis=0))
    return [int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1]
