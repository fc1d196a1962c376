"""Data sets with a class or a depth for every pixel: those of mmseg, and synthetic scenes that require no download."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.data.decode import decode_bytes
from mmairl.data.reading import read_file
from mmairl.data.scenes import FAR, scene
from mmairl.data.shapes import KINDS
from mmairl.errors import UserError, explained
from mmairl.registry import DATASETS

IGNORED = 255  # pixels with this label are not scored
Target = Literal['classes', 'depth']


class DenseDataset(Dataset):
    """Base class of data sets with a target for every pixel. Subclasses set `classes` and define `__len__` and `pair`.

    Args:
        target: 'classes' for class indices (255 marks pixels that are not scored), or 'depth' for the depth in meters
            (0 marks pixels of unknown depth).
    """

    label_kind = 'dense'
    classes: list[str]

    def __init__(self, target: Target = 'classes') -> None:
        if target not in ('classes', 'depth'):
            raise UserError(
                f"{type(self).__name__}.target: unknown value ('{target}'); set 'classes' or 'depth'",
                code='unknown-target',
            )
        self.target = target

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        """Return one image, a uint8 tensor of shape (3, H, W), and its target of shape (H, W)."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        return f'image {index}'

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, target = self.pair(index)
        if image.shape[1:] != target.shape:
            raise UserError(
                f'{self.name(index)}: the image has the size {tuple(image.shape[1:])}, but its target has the size '
                f"'{tuple(target.shape)}'; check the files",
                code='target-size',
            )
        if self.target == 'classes':
            wrong = target[(target >= len(self.classes)) & (target != IGNORED)]
            if len(wrong):
                raise UserError(
                    f"{self.name(index)}: label out of range ('{int(wrong[0])}'); the data set has {len(self.classes)} "
                    'classes; check the masks, and set reduce_zero_label if 0 marks unlabeled pixels',
                    code='label-out-of-range',
                )
        return image, target


@DATASETS.register_module()
class MMSegImages(DenseDataset):
    """Images and targets of one of mmseg's data sets.

    Args:
        source: Config of mmseg's data set without a pipeline, such as ``dict(type='ADE20KDataset', data_root=...)``.
        target: 'classes' or 'depth'.
        depth_scale: Meters per unit of the depth files.
        count: Expected number of images. If it is set, a study can estimate its compute time before the data are on disk.
            Default: do not check the number.

    Raises:
        UserError: If mmseg is not installed, or if the number of images is not `count`.
    """

    def __init__(
        self,
        source: Mapping[str, Any],
        target: Target = 'classes',
        depth_scale: float = 1e-3,
        count: int | None = None,
    ) -> None:
        super().__init__(target)
        from mmairl.transfer.mmcv_ops import use_torchvision_ops

        use_torchvision_ops()
        fault = 'MMSegImages: mmseg cannot be imported'
        # On import, mmseg raises an AssertionError if it does not support the installed version of mmcv.
        kinds = (ImportError, AssertionError)
        with explained(fault, 'run requirements/install.sh full', kinds, code='missing-mmseg'):
            from mmseg.datasets import transforms
            from mmseg.registry import DATASETS as PLATFORM
        self.source = PLATFORM.build(dict(source, _scope_='mmseg', pipeline=[]))
        if count is not None and len(self.source) != count:
            raise UserError(
                f'{source["type"]}: expected {count} images, found {len(self.source)}; complete the data set, or correct count',
                code='image-count',
            )
        self.classes = list(self.source.metainfo['classes'])
        if target == 'depth':
            self.load = transforms.LoadDepthAnnotation(depth_rescale_factor=depth_scale)
        else:
            self.load = transforms.LoadAnnotations()

    def __len__(self) -> int:
        return len(self.source)

    def path(self, index: int) -> str:
        return self.source.get_data_info(index)['img_path']

    def target_path(self, index: int) -> str:
        info = self.source.get_data_info(index)
        return info['depth_map_path' if self.target == 'depth' else 'seg_map_path']

    def name(self, index: int) -> str:
        return self.path(index)

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        info = self.load(self.source.get_data_info(index))
        path = Path(info['img_path'])
        image = decode_bytes(read_file(path, path.parent))
        target = info['gt_depth_map' if self.target == 'depth' else 'gt_seg_map']
        return image, torch.from_numpy(np.ascontiguousarray(target))


@DATASETS.register_module()
class Scenes(DenseDataset):
    """Synthetic scenes with up to 5 geometric shapes each. The classes are the background and the 12 kinds of shapes.

    The depth of a shape is inversely proportional to its radius. Image i is the same for every `count`.

    Args:
        count: Number of images.
        size: Height and width of an image in pixels, at least 36. Default: 96.
        seed: Seed of the images.
        target: 'classes' (0 is the background) or 'depth'.

    Example:
        >>> image, mask = Scenes(count=3)[0]
        >>> image.shape, mask.shape
        (torch.Size([3, 96, 96]), torch.Size([96, 96]))
    """

    classes = ['background', *KINDS]

    def __init__(
        self, count: int, size: int = 96, seed: int = 0, target: Target = 'classes'
    ) -> None:
        super().__init__(target)
        self.count = count
        self.size = size
        self.seed = seed
        # A stored result is reused only for the same data. A digest of the data includes this image, so that the digest
        # changes with the drawing code.
        self.sample, _ = self.pair(0)

    def __len__(self) -> int:
        return self.count

    def pair(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = scene(np.random.default_rng((self.seed, index)), self.size)
        image = torch.from_numpy(np.array(drawn.image)).permute(2, 0, 1)
        if self.target == 'classes':
            target = (drawn.covered * (drawn.kinds[:, None, None] + 1)).max(axis=0)
        else:
            target = np.where(drawn.covered, drawn.depths[:, None, None], FAR).min(axis=0)
        return image, torch.from_numpy(target)
