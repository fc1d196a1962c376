"""Compute the features of any images with any checkpoint, in one line of Python."""

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config, ConfigDict
from PIL import Image, ImageOps
from torch import Tensor

from mmairl.checkpoints.architecture import tensors_of
from mmairl.checkpoints.load import warn
from mmairl.checkpoints.read import Backbone, Input, read_backbone
from mmairl.checkpoints.released import stored_channels
from mmairl.config import load_config
from mmairl.data.datasets import UnlabelledFolder, ViewDataset, Views
from mmairl.data.decode import as_rgb, channels_first, read_file
from mmairl.data.preprocess import view_of
from mmairl.data.shards import SUFFIXES, Shards
from mmairl.errors import UserError, explained
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import Extraction, extract
from mmairl.evaluation.protocol import default_device
from mmairl.evaluation.sets import prepared_config

SingleImage = str | Path | Image.Image | np.ndarray | Tensor
Images = SingleImage | Sequence[SingleImage]


def embed(
    checkpoint: str | Path,
    images: Images,
    *,
    part: str = 'student',
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    config: str | Path | None = None,
    batch: int = 64,
    workers: int = 0,
    device: str | None = None,
) -> tuple[np.ndarray, list[str]]:
    """Return the pooled features of images, one row per image, and the images' names.

    Args:
        checkpoint: A checkpoint in any format that `mmairl evaluate` reads.
        images: A folder, an archive of `mmairl pack`, an image, or a list of images and folders. An
            image is a path, a Pillow image, an array H x W or H x W x C, or a tensor C x H x W.
        part: 'student' or 'teacher'.
        size: Side of the central crop in pixels. Default: as the checkpoint states, or 224.
        mean: Mean of each channel, with pixel values from 0 to 1. Default: as the config or the
            checkpoint states. If there is none, ImageNet's mean is used, with a warning.
        std: Standard deviation of each channel. Default: chosen in the same way as the mean.
        config: A config that defines the network, if it is neither a ResNet nor a ViT.
        batch: Images per batch.
        workers: Number of processes that load images.
        device: Device of the network. Default: the GPU, if there is one.

    Returns:
        The features (images, C) and the names of all readable images. Unreadable images cause a
        warning.

    Raises:
        UserError: If the network is unknown, or an image has an unknown format.

    Example:
        >>> features, names = mmairl.embed('runs/a/epoch_100.pth', 'images/')  # doctest: +SKIP
        >>> features.shape  # doctest: +SKIP
        (5000, 512)
    """
    cfg, backbone, steps = embedding_network(
        checkpoint, part, config, mean=mean, std=std, size=size
    )
    dataset = dataset_of(images, [view_of(steps)], steps.channels)
    how = Extraction(steps.mean, steps.std, batch, device or default_device(), workers)
    found = extract(load_backbone(cfg, backbone), dataset, how)
    if lost := found.unreadable:
        text = f'unreadable images: {len(lost)}, such as {dataset.name(lost[0])}'
        warnings.warn(text, stacklevel=3)
    rows = [row for row in range(len(dataset)) if row not in set(lost)]
    return found.x.numpy(), [dataset.name(row) for row in rows]


def embedding_network(
    checkpoint: str | Path,
    part: str = 'student',
    config: str | Path | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
) -> tuple[Config, Backbone, ConfigDict]:
    """Return the network of a checkpoint, and how images must be prepared for it.

    Returns:
        A config that defines the network, the weights, and the result of `preprocessing_of`.
    """
    cfg = load_config(config) if config else None
    backbone = read_backbone(checkpoint, part, network=cfg and tensors_of(cfg.model.backbone))
    if cfg is None:
        cfg = Config(dict(model=dict(backbone=backbone.network)))
        if not backbone.input.origin and not (mean and std):
            warn(
                f"{checkpoint}: the file does not state the mean and std of its images; ImageNet's "
                f'mean {Input.mean} and std {Input.std} are used; set other values by mean= and std='
            )
    steps = prepared_config(cfg, backbone).preprocessing
    if size:
        steps.update(size=size, resize=size * 8 // 7)
    steps.update(mean=mean or steps.mean, std=std or steps.std)
    if steps.channels is None:
        steps.channels = stored_channels(cfg.model.backbone.get('in_channels', 3))
    return cfg, backbone, steps


def dataset_of(images: Images, views: Views, channels: int | None = None) -> ViewDataset:
    """Return a data set of the images that `embed` accepts."""
    if isinstance(images, (str, Path)):
        if Path(images).is_dir():
            return UnlabelledFolder(images, views=views, channels=channels)
        if str(images).endswith(SUFFIXES):
            return Shards(images, views=views, channels=channels)
        if not Path(images).exists():
            raise UserError(f'{images}: no such file or folder; correct the path', 'no-images')
    single = isinstance(images, (str, Path, Image.Image)) or getattr(images, 'ndim', 4) < 4
    listed = []
    for image in [images] if single else images:
        if isinstance(image, (str, Path)) and Path(image).is_dir():
            folder = UnlabelledFolder(image, channels=channels)
            listed += map(folder.name, range(len(folder)))
        else:
            listed.append(image)
    return ListedImages(listed, views, channels)


class ListedImages(ViewDataset):
    """A data set of listed images. Each is a path, a Pillow image, an array or a tensor."""

    def __init__(
        self, images: Sequence[SingleImage], views: Views, channels: int | None = None
    ) -> None:
        super().__init__(views, channels)
        if not images:
            raise UserError('embed: the list of images is empty; add images', code='no-images')
        self.images = images
        self.labels = torch.full((len(images),), -1)

    def name(self, index: int) -> str:
        image = self.images[index]
        return str(image) if isinstance(image, str | Path) else f'image {index}'

    def encoded(self, index: int) -> bytes:
        path = Path(self.images[index])
        return read_file(path, path.parent)

    def raw(self, index: int) -> Tensor:
        image = self.images[index]
        if isinstance(image, str | Path):
            return super().raw(index)
        if isinstance(image, Tensor):
            image = image.detach().cpu()
            image = (image.movedim(0, -1) if image.ndim == 3 else image).numpy()
        if self.as_stored:
            return self.checked_format(channels_first(np.asarray(image)), index)
        remedy = 'give a path, a Pillow image, or uint8 from 0 to 255 as H x W x 3'
        with explained(f'image {index} has an unknown format', remedy, code='unknown-image'):
            if not isinstance(image, Image.Image):
                image = Image.fromarray(image[..., 0] if image.shape[2:] == (1,) else image)
            return channels_first(np.array(as_rgb(ImageOps.exif_transpose(image))))
