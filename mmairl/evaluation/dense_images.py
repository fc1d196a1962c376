"""Data sets with a class or a depth for every pixel: those of mmseg, and drawn scenes."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import decode_bytes
from mmairl.data.shapes import FINE, KINDS, LUMA, RADIUS, background, draw_shapes, noisy
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS

IGNORED = 255  # pixels with this label are not scored
COPIES = 5  # number of shapes in a scene
SAMPLE = 16  # a fingerprint covers this many images and their targets


class DenseImages(Dataset):
    """Base class of data sets with a target for every pixel. Subclasses define `pair`."""

    classes: Sequence[str]

    @abstractmethod
    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image in uint8, (3, H, W), and its target, (H, W)."""

    def fingerprint(self) -> str:
        """Return a digest of the classes, the size, and evenly spaced images and targets."""
        digest = hashlib.sha256(repr((len(self), self.classes)).encode())
        for index in np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(int)).tolist():
            for part in self.pair(index):
                digest.update(part.numpy().tobytes())
        return digest.hexdigest()

    def __getitem__(self, index: int) -> dict:
        image, target = self.pair(index)
        return dict(inputs=[image], data_samples=dict(target=target))


@DATASETS.register_module()
class MMSegImages(DenseImages):
    """Images and targets of one of mmseg's data sets.

    Args:
        source: Config of mmseg's data set without a pipeline, such as
            ``dict(type='ADE20KDataset', data_root=...)``.
        depth: Whether targets are depths, stored in millimeters and returned in meters (0 is
            unknown). Default: they are class indices (255 is not scored).

    Raises:
        UserError: If mmseg is not installed.
    """

    def __init__(self, source: Mapping[str, Any], depth: bool = False) -> None:
        fault = 'MMSegImages: mmseg cannot be imported'
        # mmseg raises an AssertionError if it does not support the installed version of mmcv.
        kinds = (ImportError, AssertionError)
        with explained(fault, 'run requirements/install.sh full', kinds, code='missing-mmseg'):
            from mmairl.transfer.mmcv_ops import use_torchvision_ops

            use_torchvision_ops()
            from mmseg.datasets import transforms
            from mmseg.registry import DATASETS as PLATFORM
        self.source = PLATFORM.build(dict(source, _scope_='mmseg', pipeline=[]))
        self.classes = list(self.source.metainfo['classes'])
        self.depth = depth
        self.load = transforms.LoadAnnotations()
        if depth:
            self.load = transforms.LoadDepthAnnotation(depth_rescale_factor=1e-3)

    def __len__(self) -> int:
        return len(self.source)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        info = self.load(self.source.get_data_info(index))
        with open(info['img_path'], 'rb') as file:
            image = decode_bytes(file.read())
        target = info['gt_depth_map' if self.depth else 'gt_seg_map']
        target = torch.tensor(target, dtype=torch.float32 if self.depth else torch.int64)
        wrong = (target >= len(self.classes)) & (target != IGNORED)
        if not self.depth and wrong.any():
            raise UserError(
                f'MMSegImages: {info["img_path"]} has a label of {len(self.classes)} or more; '
                'check the files, and set reduce_zero_label if 0 marks unlabeled pixels',
                code='bad-target',
            )
        return image, target


@DATASETS.register_module()
class Scenes(DenseImages):
    """Drawn gray images with several kinds of shapes, which need no download.

    The classes are the background and the kinds of `Shapes`. Shapes may overlap. Image i is the same
    for every `count`.

    Args:
        count: Number of images.
        size: Height and width in pixels.
        seed: Seed of all images.

    Example:
        >>> image, target = Scenes(count=3).pair(0)
        >>> image.shape, target.shape
        (torch.Size([3, 48, 48]), torch.Size([48, 48]))
    """

    classes = ('background', *KINDS)

    def __init__(self, count: int, size: int = 48, seed: int = 0) -> None:
        self.count = count
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        return draw_scene(self.seed, index, self.size)


@cache
def draw_scene(seed: int, index: int, size: int) -> tuple[Tensor, Tensor]:
    """Draw a scene, and return the image and the class of each pixel."""
    random = np.random.default_rng((seed, index))
    image = background(random, size)
    kinds = random.integers(len(KINDS), size=COPIES).tolist()
    centers = random.uniform(0.1, 0.9, (COPIES, 2)) @ [1, 1j] * image.width
    radii = random.uniform(*RADIUS, COPIES) * image.width
    mask = Image.new('L', image.size)
    for kind, outline in zip(kinds, draw_shapes(image, kinds, centers, radii, random)):
        ImageDraw.Draw(mask).polygon(outline, fill=kind + 1)
    gray = torch.tensor(noisy(image, random) @ LUMA).round().byte()
    return gray.expand(3, -1, -1), torch.tensor(np.asarray(mask)[::FINE, ::FINE]).long()
