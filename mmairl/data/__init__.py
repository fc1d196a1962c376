"""Data sets, the augmentations in their two forms, and the preprocessor that feeds the network."""

from mmairl.data.blur import GaussianBlur
from mmairl.data.color import ColorJitter, RandomGrayscale, Solarize
from mmairl.data.crop import CenterCrop, RandomFlip, RandomResizedCrop, Resize
from mmairl.data.digits import Digits
from mmairl.data.folders import ImageFolder, UnlabelledFolder
from mmairl.data.preprocess import ViewPreprocessor
from mmairl.data.shapes import Shapes
from mmairl.data.subset import ClassSubset
from mmairl.data.taxonomy import Relabelled
from mmairl.data.views import ViewDataset

__all__ = [
    'CenterCrop',
    'ClassSubset',
    'ColorJitter',
    'Digits',
    'GaussianBlur',
    'ImageFolder',
    'RandomFlip',
    'RandomGrayscale',
    'RandomResizedCrop',
    'Relabelled',
    'Resize',
    'Shapes',
    'Solarize',
    'UnlabelledFolder',
    'ViewDataset',
    'ViewPreprocessor',
]
