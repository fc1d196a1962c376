"""Draw small detection data sets of rectangles and discs on noise, in the file formats of VOC and COCO."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

# Classes that VOC and COCO share, each with the form and color in which it is drawn.
KINDS = {
    'bus': ('rectangle', (220, 40, 40)),
    'car': ('rectangle', (40, 200, 60)),
    'train': ('rectangle', (60, 80, 230)),
    'bottle': ('disc', (230, 210, 40)),
    'person': ('disc', (210, 60, 210)),
    'boat': ('disc', (40, 210, 210)),
}
# The ids of COCO's 80 categories are from 1 to 90; COCO does not use these ten.
UNUSED_IDS = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
# VOC counts pixels from 1, not from 0.
OBJECT = (
    '<object><name>{}</name><pose>Unspecified</pose><truncated>0</truncated><difficult>{}</difficult>'
    '<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>'
)
ANNOTATION = (
    '<annotation><filename>{}.jpg</filename><segmented>0</segmented>'
    '<size><width>{}</width><height>{}</height><depth>3</depth></size>{}</annotation>'
)


@dataclass
class Thing:
    """A drawn object. `box` contains the coordinates of its outermost pixels: left, top, right, bottom."""

    name: str
    box: tuple[int, int, int, int]

    def draw(self, image: Image.Image) -> None:
        form, colour = KINDS[self.name]
        pen = ImageDraw.Draw(image)
        {'rectangle': pen.rectangle, 'disc': pen.ellipse}[form](self.box, fill=colour)

    def outline(self) -> np.ndarray:
        """Return the polygon around the object's pixels as rows of x and y."""
        left = self.box[0]
        top = self.box[1]
        right = self.box[2] + 1
        bottom = self.box[3] + 1
        if KINDS[self.name][0] == 'rectangle':
            return np.array(
                [(left, top), (right, top), (right, bottom), (left, bottom)], dtype=float
            )
        angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        centre = np.array([left + right, top + bottom]) / 2
        radii = np.array([right - left, bottom - top]) / 2
        return centre + radii * np.stack([np.cos(angles), np.sin(angles)], axis=1)


def scene(
    generator: np.random.Generator, size: tuple[int, int], most: int = 3
) -> tuple[Image.Image, list[Thing]]:
    """Draw one image of `size` (width, height) with one to `most` objects. Later objects may cover parts of earlier ones."""
    image = Image.fromarray(generator.integers(70, 150, (size[1], size[0], 3), dtype=np.uint8))
    things = []
    for _ in range(generator.integers(1, most + 1)):
        name = str(generator.choice(list(KINDS)))
        wide, high = generator.integers(min(size) // 4, min(size) * 2 // 3, 2)
        if KINDS[name][0] == 'disc':
            high = wide
        left = generator.integers(0, size[0] - wide)
        top = generator.integers(0, size[1] - high)
        things.append(Thing(name, (int(left), int(top), int(left + wide - 1), int(top + high - 1))))
    for thing in things:
        thing.draw(image)
    return image, things


def write_voc(
    root: Path, images: dict[str, dict[str, int]], size: tuple[int, int] = (96, 80), seed: int = 0
) -> Path:
    """Write a VOCdevkit. `images` is the number of images by year and split: `{'VOC2007': {'trainval': 8, 'test': 4}}`.

    The first object of every fifth image is marked 'difficult'.
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
                objects = ''.join(
                    OBJECT.format(
                        thing.name,
                        int(index % 5 == 4 and thing is things[0]),
                        *(at + 1 for at in thing.box),
                    )
                    for thing in things
                )
                (root / year / 'Annotations' / f'{name}.xml').write_text(
                    ANNOTATION.format(name, *size, objects)
                )
            (root / year / 'ImageSets' / 'Main' / f'{split}.txt').write_text(
                '\n'.join(names) + '\n'
            )
    return root


def write_coco(
    root: Path, images: dict[str, int], size: tuple[int, int] = (96, 80), seed: int = 0
) -> Path:
    """Write a COCO folder. `images` is the number of images by split: `{'train2017': 8, 'val2017': 4}`. Masks are polygons."""
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    ids = [number for number in range(1, 91) if number not in UNUSED_IDS]
    generator = np.random.default_rng(seed)
    (root / 'annotations').mkdir(parents=True, exist_ok=True)
    for split, count in images.items():
        (root / split).mkdir(exist_ok=True)
        content = dict(
            images=[], annotations=[], categories=[dict(id=i, name=n) for i, n in zip(ids, names)]
        )
        for number in range(1, count + 1):
            image, things = scene(generator, size)
            file_name = f'{number:012d}.jpg'
            image.save(root / split / file_name, quality=95)
            content['images'].append(
                dict(id=number, file_name=file_name, width=size[0], height=size[1])
            )
            for thing in things:
                entry = dict(
                    id=len(content['annotations']) + 1,
                    image_id=number,
                    iscrowd=0,
                    **_coco_shape(thing),
                )
                content['annotations'].append(
                    {**entry, 'category_id': ids[names.index(thing.name)]}
                )
        (root / 'annotations' / f'instances_{split}.json').write_text(json.dumps(content))
    return root


def _coco_shape(thing: Thing) -> dict:
    left, top, right, bottom = thing.box
    polygon = thing.outline()
    x, y = polygon.T
    area = float(abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2)
    return dict(
        bbox=[left, top, right - left + 1, bottom - top + 1],
        area=area,
        segmentation=[polygon.ravel().tolist()],
    )
