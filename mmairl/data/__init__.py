"""Data sets, the augmentations in their two forms, and the preprocessor that feeds the network."""

from mmairl.data.arrays import CIFAR10, CIFAR100, STL10
from mmairl.data.birdsnap import Birdsnap
from mmairl.data.blur import GaussianBlur
from mmairl.data.caltech101 import Caltech101
from mmairl.data.color import ColorJitter, RandomGrayscale, Solarize
from mmairl.data.crop import CenterCrop, RandomFlip, RandomResizedCrop, Resize
from mmairl.data.digits import Digits
from mmairl.data.folders import ImageFolder, UnlabelledFolder
from mmairl.data.listed import ListedSubset
from mmairl.data.long_tail import LongTailed
from mmairl.data.named_classes import NamedClasses
from mmairl.data.packed import Packed
from mmairl.data.part import Part
from mmairl.data.places import INaturalist2018, Places205
from mmairl.data.preprocess import ViewPreprocessor
from mmairl.data.sampler import ResumableSampler
from mmairl.data.shapes import Shapes
from mmairl.data.subset import ClassSubset
from mmairl.data.sun397 import SUN397
from mmairl.data.taxonomy import Relabelled
from mmairl.data.torchvision_sets import DTD, FGVCAircraft, Flowers102, Food101, OxfordIIITPet, StanfordCars
from mmairl.data.views import ViewDataset
from mmairl.data.voc import VOC2007

__all__ = [
    'CIFAR10',
    'CIFAR100',
    'DTD',
    'STL10',
    'SUN397',
    'VOC2007',
    'Birdsnap',
    'Caltech101',
    'CenterCrop',
    'ClassSubset',
    'ColorJitter',
    'Digits',
    'FGVCAircraft',
    'Flowers102',
    'Food101',
    'GaussianBlur',
    'INaturalist2018',
    'ImageFolder',
    'ListedSubset',
    'LongTailed',
    'NamedClasses',
    'OxfordIIITPet',
    'Packed',
    'Part',
    'Places205',
    'RandomFlip',
    'RandomGrayscale',
    'RandomResizedCrop',
    'Relabelled',
    'Resize',
    'ResumableSampler',
    'Shapes',
    'Solarize',
    'StanfordCars',
    'UnlabelledFolder',
    'ViewDataset',
    'ViewPreprocessor',
]
