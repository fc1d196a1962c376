"""The network and its parts."""

from mmairl.models.platform import import_mmpretrain

import_mmpretrain()

from mmairl.models.batchnorm import SplitBN, SyncBN  # noqa: E402
from mmairl.models.classifier import Classifier, Pixels  # noqa: E402
from mmairl.models.heads import ContrastiveHead, RegressionHead  # noqa: E402
from mmairl.models.necks import MLPNeck  # noqa: E402
from mmairl.models.queue import KeyQueue  # noqa: E402
from mmairl.models.resnet import ResNet  # noqa: E402
from mmairl.models.siamese import Siamese  # noqa: E402
from mmairl.models.teacher import Teacher  # noqa: E402

__all__ = [
    'Classifier',
    'ContrastiveHead',
    'KeyQueue',
    'MLPNeck',
    'Pixels',
    'RegressionHead',
    'ResNet',
    'Siamese',
    'SplitBN',
    'SyncBN',
    'Teacher',
]
