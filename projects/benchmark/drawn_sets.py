"""Small detection sets in the real formats: drawn rectangles and discs on noise, as a VOC tree or as COCO's json."""

import json
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# Names that VOC and COCO share, each with its own form and colour.
KINDS = {
    'bus': ('rectangle', (220, 40, 40)),
    'car': ('rectangle', (40, 200, 60)),
    'train': ('rectangle', (60, 80, 230)),
    'bottle': ('disc', (230, 210, 40)),
    'person': ('disc', (210, 60, 210)),
    'boat': ('disc', (40, 210, 210)),
}
# COCO's 80 categories have ids up to 90; these numbers are not used.
UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}


@dataclass
class Thing:
    """A drawn object; `box` is its first and last pixel: left, top, right, bottom."""

    name: str
    box: tuple[int, int, int, int]

    def draw(self, image: Image.Image) -> None:
        form, colour = KINDS[self.name]
        pen = ImageDraw.Draw(image)
        {'rectangle': pen.rectangle, 'disc': pen.ellipse}[form](self.box, fill=colour)

    def outline(self) -> np.ndarray:
        """Its polygon, rows of x and y, around its pixels."""
        left, top, right, bottom = self.box[0], self.box[1], self.box[2] + 1, self.box[3] + 1
        if KINDS[self.name][0] == 'rectangle':
            return np.array([(left, top), (right, top), (right, bottom), (left, bottom)], dtype=float)
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        centre, radii = np.array([left + right, top + bottom]) / 2, np.array([right - left, bottom - top]) / 2
        return centre + radii * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def scene(generator: np.random.Generator, size: tuple[int, int], most: int = 3) -> tuple[Image.Image, list[Thing]]:
    """One image of `size` (width, height) with one to `most` things; later ones may cover a part of earlier ones."""
    noise = generator.integers(70, 150, (size[1], size[0], 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    things = [_thing(generator, size) for _ in range(generator.integers(1, most + 1))]
    for thing in things:
        thing.draw(image)
    return image, things


def _thing(generator: np.random.Generator, size: tuple[int, int]) -> Thing:
    name = str(generator.choice(list(KINDS)))
    form = KINDS[name][0]
    short = min(size)
    wide, high = generator.integers(short // 4, short * 2 // 3, 2)
    if form == 'disc':
        high = wide
    left, top = generator.integers(0, size[0] - wide), generator.integers(0, size[1] - high)
    return Thing(name, (int(left), int(top), int(left + wide - 1), int(top + high - 1)))


def write_voc(root: Path, images: dict[str, dict[str, int]], size: tuple[int, int] = (96, 80), seed: int = 0) -> Path:
    """A VOCdevkit: `images` counts them by year and split, as in `{'VOC2007': {'trainval': 8, 'test': 4}}`.

    Every fifth image's first thing is 'difficult'.
    """
    generator = np.random.default_rng(seed)
    for year, splits in images.items():
        for folder in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
            (root / year / folder).mkdir(parents=True, exist_ok=True)
        number = 0
        for split, count in splits.items():
            names = [f'{number + index + 1:06d}' for index in range(count)]
            number += count
            for index, name in enumerate(names):
                image, things = scene(generator, size)
                image.save(root / year / 'JPEGImages' / f'{name}.jpg', quality=95)
                tree = _voc_xml(f'{name}.jpg', year, size, things, difficult=index % 5 == 4)
                tree.write(root / year / 'Annotations' / f'{name}.xml')
            (root / year / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(names) + '\n')
    return root


def _voc_xml(file_name: str, year: str, size: tuple[int, int], things: list[Thing], difficult: bool) -> ET.ElementTree:
    root = ET.Element('annotation')
    _texts(root, folder=year, filename=file_name, segmented=0)
    _texts(ET.SubElement(root, 'size'), width=size[0], height=size[1], depth=3)
    for index, thing in enumerate(things):
        node = ET.SubElement(root, 'object')
        _texts(node, name=thing.name, pose='Unspecified', truncated=0, difficult=int(difficult and index == 0))
        corners = zip(('xmin', 'ymin', 'xmax', 'ymax'), thing.box)
        _texts(ET.SubElement(node, 'bndbox'), **{corner: at + 1 for corner, at in corners})  # VOC counts from 1
    return ET.ElementTree(root)


def _texts(node: ET.Element, **texts: object) -> None:
    for name, text in texts.items():
        ET.SubElement(node, name).text = str(text)


def write_coco(root: Path, images: dict[str, int], size: tuple[int, int] = (96, 80), seed: int = 0) -> Path:
    """A COCO folder: `images` counts them by split, as in `{'train2017': 8, 'val2017': 4}`; masks are polygons."""
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    ids = [number for number in range(1, 91) if number not in UNUSED_IDS]
    generator = np.random.default_rng(seed)
    (root / 'annotations').mkdir(parents=True, exist_ok=True)
    for split, count in images.items():
        (root / split).mkdir(exist_ok=True)
        content = dict(images=[], annotations=[], categories=[dict(id=i, name=n) for i, n in zip(ids, names)])
        for number in range(1, count + 1):
            image, things = scene(generator, size)
            file_name = f'{number:012d}.jpg'
            image.save(root / split / file_name, quality=95)
            content['images'].append(dict(id=number, file_name=file_name, width=size[0], height=size[1]))
            for thing in things:
                entry = _coco_entry(thing, len(content['annotations']) + 1, number, ids[names.index(thing.name)])
                content['annotations'].append(entry)
        (root / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
    return root


def _coco_entry(thing: Thing, number: int, image: int, category: int) -> dict:
    left, top, right, bottom = thing.box
    polygon = thing.outline()
    x, y = polygon.T
    return dict(
        id=number,
        image_id=image,
        category_id=category,
        bbox=[left, top, right - left + 1, bottom - top + 1],
        area=float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2),
        segmentation=[polygon.reshape(-1).tolist()],
        iscrowd=0,
    )
