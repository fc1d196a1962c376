"""Data sets with a class or a depth for every pixel: those of mmseg, and synthetic scenes."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import decode_bytes
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS

IGNORED = 255  # pixels with this label are not scored
SAMPLE = 16  # a fingerprint covers this many images and their targets


class DenseDataset(Dataset):
    """Base class of data sets with a target for every pixel.

    Subclasses set `classes` and define `__len__` and `pair`, which returns an image in uint8,
    (3, H, W), and its target, (H, W).

    Args:
        depth: Whether targets are depths in meters (0 is unknown). Default: they are class indices
            (255 is not scored).
    """

    classes: list[str]

    def __init__(self, depth: bool = False) -> None:
        self.depth = depth

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def fingerprint(self) -> str:
        """Return a digest of the classes, the size, and evenly spaced images and targets."""
        digest = hashlib.sha256(repr((len(self), list(self.classes), self.depth)).encode())
        for index in np.unique(np.linspace(0, len(self) - 1, SAMPLE).astype(int)).tolist():
            for part in self.pair(index):
                digest.update(part.numpy().tobytes())
        return digest.hexdigest()

    def __getitem__(self, index: int) -> dict:
        image, target = self.pair(index)
        target = target.float() if self.depth else target.long()
        known = target[target != IGNORED]
        if not self.depth and len(known) and known.max() >= len(self.classes):
            raise UserError(
                f'{type(self).__name__}: image {index} has a label of {len(self.classes)} or more; '
                'check the files, and set reduce_zero_label if 0 marks unlabeled pixels',
                code='bad-target',
            )
        return dict(inputs=[image], data_samples=dict(target=target))


@DATASETS.register_module()
class MMSegImages(DenseDataset):
    """Images and targets of one of mmseg's data sets.

    Args:
        source: Config of mmseg's data set without a pipeline, such as
            ``dict(type='ADE20KDataset', data_root=...)``.
        depth: Whether targets are depths, stored in millimeters.

    Raises:
        UserError: If mmseg is not installed.
    """

    def __init__(self, source: Mapping[str, Any], depth: bool = False) -> None:
        super().__init__(depth)
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
        self.key = 'gt_depth_map' if depth else 'gt_seg_map'
        self.load = transforms.LoadAnnotations()
        if depth:
            self.load = transforms.LoadDepthAnnotation(depth_rescale_factor=1e-3)

    def __len__(self) -> int:
        return len(self.source)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        info = self.load(self.source.get_data_info(index))
        with open(info['img_path'], 'rb') as file:
            image = decode_bytes(file.read())
        return image, torch.from_numpy(np.ascontiguousarray(info[self.key]))


@DATASETS.register_module()
class Scenes(DenseDataset):
    """Synthetic scenes with up to five regular polygons each, which need no download.

    The classes are the background and the polygons with 3 to 8 corners. The depth of a polygon is
    inversely proportional to its radius. Image i is the same for every `count`.

    Args:
        count: Number of images.
        size: Height and width of an image in pixels. Default: 96.
        seed: Seed of the images.
        depth: Whether targets are depths in meters.

    Example:
        >>> image, mask = Scenes(count=3).pair(0)
        >>> image.shape, mask.shape
        (torch.Size([3, 96, 96]), torch.Size([96, 96]))
    """

    classes = ['background', *(f'{corners} corners' for corners in range(3, 9))]

    def __init__(self, count: int, size: int = 96, seed: int = 0, depth: bool = False) -> None:
        super().__init__(depth)
        self.count = count
        self.size = size
        self.seed = seed

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        random = np.random.default_rng((self.seed, index))
        corners = Image.fromarray(random.integers(0, 256, (3, 3, 3), dtype=np.uint8))
        image = corners.resize((self.size, self.size), Image.Resampling.BILINEAR)
        # A pixel of `mask` is the number of the polygon that covers it, from 1.
        mask = Image.new('L', image.size)
        targets = [8.0 if self.depth else 0]
        for number in range(1, random.integers(2, 6)):
            radius = random.uniform(0.08, 0.16) * self.size
            center = random.uniform(radius, self.size - radius, 2)
            kind = int(random.integers(1, len(self.classes)))
            color = tuple(random.integers(0, 256, 3).tolist())
            for drawn, fill in ((image, color), (mask, number)):
                ImageDraw.Draw(drawn).regular_polygon((*center, radius), kind + 2, 9 * kind, fill)
            targets.append(30.0 / radius if self.depth else kind)
        target = torch.tensor(targets)[torch.from_numpy(np.array(mask)).long()]
        return torch.from_numpy(np.array(image)).permute(2, 0, 1), target
