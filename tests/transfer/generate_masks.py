"""Small segmentation and depth sets in the real layouts, drawn by the generator of the detection sets."""

from pathlib import Path

import numpy as np
from PIL import Image

from projects.benchmark.drawn_sets import KINDS, scene

CITYSCAPES = {'bus': 15, 'car': 13, 'train': 16, 'bottle': 5, 'person': 11, 'boat': 8}  # any six of its 19 training ids
VOC = {'bus': 6, 'car': 7, 'train': 19, 'bottle': 5, 'person': 15, 'boat': 4}


def drawn(generator: np.random.Generator, size: tuple[int, int], ids: dict[str, int]) -> tuple[Image.Image, np.ndarray]:
    """An image and its label map, 0 where nothing is drawn."""
    image, things = scene(generator, size)
    mask = Image.new('I', size, 0)
    for thing in things:
        canvas = Image.new('RGB', size)
        thing.draw(canvas)
        mask.paste(ids[thing.name], mask=Image.fromarray(np.asarray(canvas).any(axis=2)))
    return image, np.asarray(mask).astype(np.uint8)


def write_cityscapes(root: Path, images: dict[str, int], size: tuple[int, int] = (128, 64), seed: int = 0) -> Path:
    """leftImg8bit and gtFine with one city a split; `images` counts them by split."""
    generator = np.random.default_rng(seed)
    for split, count in images.items():
        for index in range(count):
            image, mask = drawn(generator, size, CITYSCAPES)
            mask[:4] = 255  # as the car's bonnet: not counted
            name = f'town_{index:06d}_000019'
            for kind, suffix, pixels in (
                ('leftImg8bit', '_leftImg8bit.png', image),
                ('gtFine', '_gtFine_labelTrainIds.png', Image.fromarray(mask)),
            ):
                path = root / kind / split / 'town' / f'{name}{suffix}'
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels.save(path)
    return root


def write_voc2012(root: Path, images: dict[str, int], size: tuple[int, int] = (96, 80), seed: int = 0) -> Path:
    """VOC2012 with SegmentationClass for 'train' and 'val' and SegmentationClassAug for 'aug'."""
    generator, number = np.random.default_rng(seed), 0
    for folder in ('JPEGImages', 'SegmentationClass', 'SegmentationClassAug', 'ImageSets/Segmentation'):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for split, count in images.items():
        names = [f'2012_{number + index:06d}' for index in range(count)]
        number += count
        for name in names:
            image, mask = drawn(generator, size, VOC)
            image.save(root / 'JPEGImages' / f'{name}.jpg')
            Image.fromarray(mask).save(root / f'SegmentationClass{"Aug" if split == "aug" else ""}' / f'{name}.png')
        (root / 'ImageSets/Segmentation' / f'{split}.txt').write_text('\n'.join(names) + '\n')
    return root


def write_nyu(root: Path, images: dict[str, int], size: tuple[int, int] = (640, 480), seed: int = 0) -> Path:
    """images and annotations with depth in millimetres; each kind of thing stands at its own distance before a wall."""
    generator = np.random.default_rng(seed)
    near = {name: index + 1 for index, name in enumerate(KINDS)}
    for split, count in images.items():
        for index in range(count):
            image, metres = drawn(generator, size, near)
            depth = np.where(metres > 0, 1000 * metres.astype(int), 8000).astype(np.uint16)
            depth[:8] = 0  # where the sensor saw nothing
            for kind, suffix, pixels in (('images', 'jpg', image), ('annotations', 'png', Image.fromarray(depth))):
                path = root / kind / split / f'kitchen_{index:05d}.{suffix}'
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels.save(path)
    return root
