"""Caltech-101: class folders without a split of their own; every image is drawn into one, class by class."""

import os
from pathlib import Path

import torch

from mmairl.data.folders import image_files
from mmairl.data.official_lists import HeldOutDataset, Listing
from mmairl.errors import UserError
from mmairl.registry import DATASETS

FOLDER = 'caltech101/101_ObjectCategories'
TRAIN, VAL = 25, 5  # images a class; the rest is for the test


@DATASETS.register_module()
class Caltech101(HeldOutDataset):
    """25 training and 5 validation images of each class, drawn by `seed`, and the rest for the test.

    The published sizes of 2 550, 510 and 6 084 count BACKGROUND_Google as the 102nd class, and so do we. torchvision
    leaves it out, hence the list of our own. Which images were drawn for the published numbers is not public.
    """

    metric = 'mean per class'
    layout = f'{FOLDER}/CLASS/NAME.jpg, BACKGROUND_Google among the classes'
    source = "the Caltech 101 page of Caltech's data repository"

    def select(self, root: Path, split: str) -> Listing:
        classes = sorted(entry.name for entry in os.scandir(root / FOLDER) if entry.is_dir() and entry.name[0] != '.')
        generator = torch.Generator().manual_seed(self.seed)
        part = {'train': slice(TRAIN), 'val': slice(TRAIN, TRAIN + VAL), 'train+val': slice(TRAIN + VAL)}
        files, labels = [], []
        for label, name in enumerate(classes):
            images = list(image_files(root, f'{FOLDER}/{name}'))
            if len(images) <= TRAIN + VAL:
                raise UserError(
                    f'class {name} of Caltech101 has {len(images)} images in {root.resolve() / FOLDER} and wants over '
                    f'{TRAIN + VAL}; unpack the archive anew.'
                )
            drawn = torch.randperm(len(images), generator=generator)[part.get(split, slice(TRAIN + VAL, None))]
            files += [images[row] for row in drawn.sort().values.tolist()]
            labels += [label] * len(drawn)
        return Listing(files, labels, classes)
