"""Synthetic data sets in their published layouts, and transfer configs with few pixels and steps, for tests on a CPU."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from harness import toy
from harness.drawn_sets import KINDS, scene
from mmengine.config import Config
from PIL import Image

from mmairl.config import load_config
from mmairl.registry import MODELS
from mmairl.transfer.execute import dicts, start_from

SIZES = dict(cityscapes=(64, 32), voc2012=(48, 48), nyuv2=(80, 60))


def drawn(generator: np.random.Generator, size: tuple[int, int], ids: list[int]) -> tuple[Image.Image, np.ndarray]:
    """Return an image, and a map with the label of each pixel.

    `ids` are the labels of the kinds of objects in `KINDS`. The background has the label 0.
    """
    image, _ = scene(generator, size)
    mask = np.zeros(size[::-1], np.uint8)
    for number, (_, colour) in zip(ids, KINDS.values()):
        mask[(np.asarray(image) == colour).all(axis=2)] = number
    return image, mask


def write_masks(root: Path) -> None:
    """Write three data sets: Cityscapes with one city, VOC2012 with its three lists, and NYU with objects in front of a
    wall and depth in millimeters.
    """
    generator = np.random.default_rng(0)
    files: dict[str, Image.Image] = {}
    for split, number in (('train/town', 0), ('train/town', 1), ('val/town', 0)):
        image, mask = drawn(generator, (128, 64), [15, 13, 16, 5, 11, 8])
        mask[:4] = 255  # Pixels to ignore, such as the hood of the car
        name = f'{split}/town_{number:06d}_000019'
        files[f'cityscapes/leftImg8bit/{name}_leftImg8bit.png'] = image
        files[f'cityscapes/gtFine/{name}_gtFine_labelTrainIds.png'] = Image.fromarray(mask)
    for split, folder in (('train', ''), ('aug', 'Aug'), ('val', '')):
        image, mask = drawn(generator, (96, 80), [6, 7, 19, 5, 15, 4])
        files[f'voc2012/JPEGImages/{split}.jpg'] = image
        files[f'voc2012/SegmentationClass{folder}/{split}.png'] = Image.fromarray(mask)
        (root / 'voc2012/ImageSets/Segmentation').mkdir(parents=True, exist_ok=True)
        (root / f'voc2012/ImageSets/Segmentation/{split}.txt').write_text(f'{split}\n')
    for split in ('train/kitchen_00000', 'train/kitchen_00001', 'test/kitchen_00000'):
        image, metres = drawn(generator, (320, 240), [1, 2, 3, 4, 5, 6])
        depth = np.where(metres > 0, 1000 * metres.astype(int), 8000).astype(np.uint16)
        depth[:8] = 0  # A depth of 0 means not measured
        files[f'nyuv2/images/{split}.jpg'], files[f'nyuv2/annotations/{split}.png'] = image, Image.fromarray(depth)
    for name, image in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        image.save(root / name)


def write_pretrained(path: Path, depth: int) -> Path:
    """Write a pre-training checkpoint of an untrained ResNet with this depth. Return its path."""
    options = {'model.backbone.depth': depth, 'model.projector.in_channels': 512 if depth == 18 else 2048}
    model = MODELS.build(toy.config('mocov2plus_r50_200e.py', str(path.parent), width=64, **options).model)
    student = {key: value for key, value in model.state_dict().items() if key.startswith('backbone.')}
    torch.save(dict(meta={}, state_dict=student), path)
    return path


def overlap(first: Sequence[float], second: Sequence[float], offset: int = 1) -> float:
    """Return the IoU of two boxes. With an offset of 1, corners are pixels that belong to the box."""
    wide = max(0, min(first[2], second[2]) - max(first[0], second[0]) + offset)
    high = max(0, min(first[3], second[3]) - max(first[1], second[1]) + offset)
    areas = [(box[2] - box[0] + offset) * (box[3] - box[1] + offset) for box in (first, second)]
    return wide * high / (sum(areas) - wide * high)


def small(name: str, data: Path, checkpoint: Path, work_dir: Path, steps: int = 2) -> Config:
    """Return the config `name` of configs/transfer with fewer pixels, regions and channels. Its run saves no checkpoint."""
    cfg = start_from(load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py')), str(checkpoint))
    task = name.split('_')[0].replace('0712', '').replace('07', '')
    size = SIZES.get(task, (160, 96))
    changes = dict(
        Resize=dict(scale=size),
        RandomChoiceResize=dict(scales=[(160, 64), (160, 96)]),
        RandomResize=dict(scale=(2 * size[0], 2 * size[1])),
        RandomCrop=dict(crop_size=size[::-1]),
        Pad=dict(size=size[::-1]),
        CocoMetric=dict(ann_file=str(data / 'coco/annotations/instances_val2017.json')),
    )
    changes['mmairl.NYUAugmentation'] = dict(crop=(64, 48))
    for node in dicts(cfg._cfg_dict):
        node.update(changes.get(node.get('type'), {}))
        if 'data_root' in node:
            node['data_root'] = f'{data / task}/'
    if task in SIZES:
        depth = task == 'nyuv2'
        cfg.model.data_preprocessor.size = (48, 64) if depth else size[::-1]
        cfg.model.decode_head.channels = (32, 16, 8, 8) if depth else 16
        # The learning rate of the NYU config is for 256 images per batch, and here a batch has 2 images.
        cfg.optim_wrapper.optimizer.lr *= 2 / 256 if depth else 1
        if cfg.model.get('auxiliary_head'):
            cfg.model.auxiliary_head.channels = 8
        cfg.train_dataloader.batch_size = 2
    else:
        for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
            proposals.update(nms_pre=40, max_per_img=10)
        cfg.model.train_cfg.rcnn.sampler.num = 12
        cfg.model.test_cfg.rcnn.score_thr = 0.0
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_cfg.update(max_iters=steps, val_interval=steps)
    cfg.custom_hooks[0].batches = 1
    cfg.default_hooks.checkpoint = None
    cfg.work_dir, cfg.randomness = str(work_dir), dict(seed=5)
    return cfg
