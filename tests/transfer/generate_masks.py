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


def _save(root: Path, files: dict[str, Image.Image | np.ndarray]) -> None:
    for name, pixels in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels).save(root / name)


def write_cityscapes(root: Path, images: dict[str, int], size: tuple[int, int] = (128, 64), seed: int = 0) -> Path:
    """leftImg8bit and gtFine with one city a split; `images` counts them by split."""
    generator = np.random.default_rng(seed)
    for split, count in images.items():
        for index in range(count):
            image, mask = drawn(generator, size, CITYSCAPES)
            mask[:4] = 255  # as the car's bonnet: not counted
            name = f'{split}/town/town_{index:06d}_000019'
            truth = f'gtFine/{name}_gtFine_labelTrainIds.png'
            _save(root, {f'leftImg8bit/{name}_leftImg8bit.png': image, truth: mask})
    return root


def write_voc2012(root: Path, images: dict[str, int], size: tuple[int, int] = (96, 80), seed: int = 0) -> Path:
    """VOC2012 with SegmentationClass for 'train' and 'val' and SegmentationClassAug for 'aug'."""
    generator, lists = np.random.default_rng(seed), root / 'ImageSets/Segmentation'
    lists.mkdir(parents=True, exist_ok=True)
    for split, count in images.items():
        names = [f'2012_{split}{index}' for index in range(count)]
        for name in names:
            image, mask = drawn(generator, size, VOC)
            masks = f'SegmentationClass{"Aug" if split == "aug" else ""}'
            _save(root, {f'JPEGImages/{name}.jpg': image, f'{masks}/{name}.png': mask})
        (lists / f'{split}.txt').write_text('\n'.join(names) + '\n')
    return root


def write_nyu(root: Path, images: dict[str, int], size: tuple[int, int] = (640, 480), seed: int = 0) -> Path:
    """images and annotations with depth in millimetres; each kind of thing is at its own distance, before a wall."""
    generator = np.random.default_rng(seed)
    near = {name: index + 1 for index, name in enumerate(KINDS)}
    for split, count in images.items():
        for index in range(count):
            image, metres = drawn(generator, size, near)
            depth = np.where(metres > 0, 1000 * metres.astype(int), 8000).astype(np.uint16)
            depth[:8] = 0  # where the sensor saw nothing
            name = f'{split}/kitchen_{index:05d}'
            _save(root, {f'images/{name}.jpg': image, f'annotations/{name}.png': depth})
    return root
