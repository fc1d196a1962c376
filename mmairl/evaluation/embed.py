"""Compute the features of any images with any checkpoint, in one line of Python."""

import warnings
from collections.abc import Iterable, Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from PIL import Image, ImageOps
from torch import Tensor

from mmairl.checkpoints.read import Backbone, read_backbone, warn_of_assumed_statistics
from mmairl.config import load_config
from mmairl.data.datasets import UnlabelledFolder, ViewDataset, Views
from mmairl.data.decode import as_rgb
from mmairl.data.raw_values import channels_first
from mmairl.data.reading import read_file
from mmairl.data.shards import SUFFIXES, Shards
from mmairl.data.subsets import ConcatImages
from mmairl.engine.run import register
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone, tensors_of_config
from mmairl.evaluation.feature_store import write_header
from mmairl.evaluation.features import Extraction
from mmairl.evaluation.protocol import default_device
from mmairl.io import output, replacing

# If the last axis of an array has one of these sizes, it may be channels or columns, so the array is ambiguous.
PLANES = set(range(5, 17))
SingleImage = str | Path | Image.Image | np.ndarray | Tensor
Images = SingleImage | Sequence[SingleImage]


def embed(
    checkpoint: str | Path,
    images: Images,
    *,
    part: str = 'student',
    prefix: str | None = None,
    size: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    config: str | Path | None = None,
    batch: int = 64,
    workers: int = 0,
    device: str | None = None,
    patches: bool = False,
    out: str | Path | None = None,
) -> tuple[np.ndarray, list[str]] | tuple[np.ndarray, list[str], np.ndarray]:
    """Return the pooled features of images, one row per image, and the images' names.

    Args:
        checkpoint: A checkpoint of a ResNet or ViT, in any format that `tools/evaluate.py` reads.
        images: A folder, an archive written by `tools/pack.py`, a file, an image in memory, or a list. A list contains either
            folders and archives, or files and images in memory. An image in memory is a Pillow image, an array H x W or
            H x W x C, or a tensor C x H x W. Arrays and tensors must be uint8, boolean or, if they have no axis C, uint16. If
            the network was trained on images that were not converted to 8-bit RGB, all types are accepted.
        part: 'student' or 'teacher'.
        prefix: Prefix of the backbone's keys. Default: detect it.
        size: Side of the central crop in pixels. Default: the crop size of the training if the checkpoint or a file next to
            it (`config.json`, `preprocessor_config.json`) states one, otherwise 224.
        mean: Mean of each channel, with pixel values from 0 to 1. Default: the mean in `config`, or without a config, the
            mean that the checkpoint or a file next to it states. If there is none, ImageNet's mean is used, with a warning.
        std: Standard deviation of each channel. Default: chosen in the same way as the mean.
        config: A config that defines the network. It is required if the network is neither a ResNet nor a ViT. It is also
            required if the number of attention heads of a ViT is guessed wrongly. A warning states the guess.
        batch: Images per batch.
        workers: Number of processes that load images.
        device: Device of the network. Default: the GPU, if there is one.
        patches: Whether to return the features of each cell instead of pooled features. A cell is a position of a ResNet's
            feature map or a patch of a ViT.
        out: The .npy file to write the features of the cells to. Required with `patches`, and otherwise ignored.

    Returns:
        The features (images, C) and the names of all readable images. Unreadable images cause a warning. With `patches`,
        there are three values. The first is the features (images, cells, C), memory-mapped from `out`, with NaN for
        unreadable images. The second is the names of all images. The third is the centers of the cells (cells, 2), as y and
        x from 0 to 1 relative to the crop.

    Raises:
        UserError: If the network is unknown, an image has an unknown format, or a number is out of range.

    Example:
        >>> features, names = mmairl.embed('runs/a/epoch_100.pth', 'images/')  # doctest: +SKIP
        >>> features.shape  # doctest: +SKIP
        (5000, 512)
        >>> cells, names, centers = mmairl.embed('vit.pth', 'images/', patches=True, out='cells.npy')  # doctest: +SKIP
        >>> cells.shape, centers[0]  # doctest: +SKIP
        ((5000, 196, 384), array([0.036, 0.036]))
    """
    require_integer('batch', batch, 1)
    require_integer('workers', workers, 0)
    if size is not None:
        require_integer('size', size, 1)
    require_device(device or 'cpu')
    cfg, backbone, normal, views, channels = embedding_network(
        checkpoint, part, config, prefix, mean=mean, std=std, size=size
    )
    dataset = dataset_of(images, views, channels)
    device = device or default_device()
    how = Extraction(**normal, batch_size=batch, device=device, workers=workers)
    names = [dataset.name(index) for index in range(len(dataset))]
    if patches:
        x, places, readable = write_patches(out, cfg, backbone, dataset, how)
    else:
        batches = how.batches(load_backbone(cfg, backbone), dataset)
        x, _, readable = map(torch.cat, zip(*batches))
    left_out = [names[row] for row in (~readable).nonzero().flatten().tolist()]
    if left_out:
        row = 'only NaN as features' if patches else 'no features'
        message = (
            f'{len(left_out)} images cannot be read and have {row}; the first is {left_out[0]}'
        )
        warnings.warn(message, stacklevel=3)
    if patches:
        return x, names, places
    rows = readable.nonzero().flatten()
    return x[rows].numpy(), [names[row] for row in rows.tolist()]


def require_integer(name: str, number: object, least: int) -> None:
    if not isinstance(number, Integral) or number < least:
        raise UserError(
            f"{name}: must be an integer of at least {least} ('{number}'); correct the number",
            code='bad-number',
        )


def require_device(name: str) -> None:
    """Raise unless torch can use the device with this name on this machine."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"device: not available on this machine ('{name}': {reason}); use cpu, cuda or cuda:N",
            code='no-device',
        ) from error


def write_patches(
    out: str | Path | None, cfg: Config, weights: Backbone, dataset: ViewDataset, how: Extraction
) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Write the features of each cell of the backbone's last feature map to the file `out`.

    The bytes are written one after the other, so that a full disk raises an error. If they were written through a memory
    map, a full disk would kill the process.

    Returns:
        The memory-mapped features, the centers of the cells, and a mask of the readable images.
    """
    if out is None:
        raise UserError(
            "embed: patches=True requires an output file; set out, for example out='patches.npy'",
            code='no-out',
        )
    if 'VisionTransformer' in cfg.model.backbone.type:
        cfg.model.backbone.out_type = 'featmap'
    backbone = load_backbone(cfg, weights).to(how.device)
    all_readable = []
    with replacing(output(out, weights.path)) as unfinished, unfinished.open('wb') as file:
        for images, _, readable in how.images(dataset):
            with torch.no_grad():
                last = backbone(images)[-1]
            if last.ndim != 4:
                raise UserError(
                    f'{cfg.model.backbone.type}: the backbone does not return a feature map; set model.backbone.out_type in '
                    'the config',
                    code='no-feature-map',
                )
            if not all_readable:
                channels, rows, columns = last.shape[1:]
                write_header(file, (len(dataset), rows * columns, channels))
            x = last.flatten(2).transpose(1, 2).float().cpu().contiguous()
            x[~readable] = torch.nan
            file.write(x.numpy().tobytes())
            all_readable.append(readable)
    centers = [(torch.arange(length) + 0.5) / length for length in last.shape[2:]]
    places = torch.cartesian_prod(*centers).numpy()
    return np.load(out, mmap_mode='r'), places, torch.cat(all_readable)


def embedding_network(
    checkpoint: str | Path,
    part: str = 'student',
    config: str | Path | None = None,
    prefix: str | None = None,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    size: int | None = None,
) -> tuple[Config, Backbone, dict, Views, int | None]:
    """Return the network of a checkpoint, and how images must be prepared for it.

    Returns:
        A config that defines the network, the weights, a dictionary with the mean and standard deviation of the images, a
        list of one view (the steps that resize and crop an image), and the number of channels of the images (None means
        8-bit RGB images).
    """
    register()
    cfg = load_config(config) if config else None
    tensors = tensors_of_config(cfg) if cfg else None
    backbone = read_backbone(checkpoint, part, prefix, tensors)
    expected = backbone.input
    stated = expected if cfg is None else cfg.model.data_preprocessor
    normal = dict(mean=mean or stated.mean, std=std or stated.std)
    if cfg is not None:
        channels = expected.channels
    else:
        cfg = Config(dict(model=dict(backbone=backbone.network)))
        channels = expected.channels or cfg.model.backbone.get('in_channels')
        if not expected.origin and not (mean and std):
            warn_of_assumed_statistics(backbone, 'mean= and std=')
    size = size or expected.size
    resize = dict(type='Resize', size=size * 8 // 7)
    if expected.interpolation != 'bilinear':
        resize['interpolation'] = expected.interpolation
    view = [resize, dict(type='CenterCrop', size=size)]
    return cfg, backbone, normal, [view], channels


def dataset_of(images: Images, views: Views, channels: int | None = None) -> ViewDataset:
    if isinstance(images, (str, Path)):
        if Path(images).is_dir():
            return UnlabelledFolder(images, views=views, channels=channels)
        if str(images).endswith(SUFFIXES):
            return Shards(images, views=views, channels=channels)
        images = [images]
    shape = images.shape if isinstance(images, np.ndarray) else ()
    if len(shape) == 3 and shape[2] in PLANES - {channels}:
        raise UserError(
            f'embed: an array {shape} may be one image of {shape[2]} channels or {shape[0]} gray images; put the image or the '
            'images into a list (one image of more than 4 channels requires a network trained on that number of channels)',
            code='ambiguous-array',
        )
    if _is_one_image(images, channels):
        images = [images]
    items = [as_array(item) for item in images]
    if not items:
        raise UserError(
            'embed: the list of images is empty; pass at least one image', code='no-images'
        )
    if all(_is_collection(item) for item in items):
        return ConcatImages([dataset_of(item, None, channels) for item in items], views)
    return ListedImages(items, views, channels)


def _is_one_image(images: Images, channels: int | None) -> bool:
    if not isinstance(images, (np.ndarray, Tensor)):
        return not isinstance(images, Iterable)
    if images.ndim != 3:
        return images.ndim < 3
    return isinstance(images, Tensor) or images.shape[2] in (1, 2, 3, 4, channels)


def _is_collection(item: object) -> bool:
    """Return whether an item is a folder or an archive of images."""
    if not isinstance(item, (str, Path)):
        return False
    return Path(item).is_dir() or str(item).endswith(SUFFIXES)


def as_array(image: SingleImage) -> str | Path | Image.Image | np.ndarray:
    """Return a tensor (channels first) as an array (channels last). Return any other image unchanged."""
    if not isinstance(image, Tensor):
        return image
    image = image.detach().cpu()
    if image.is_floating_point():
        image = image.float()
    if image.ndim > 2:
        image = image.movedim(-3, -1)
    return image.numpy()


class ListedImages(ViewDataset):
    """A data set of listed images. Each is a path, a Pillow image or an array."""

    def __init__(
        self,
        images: list[str | Path | Image.Image | np.ndarray],
        views: Views,
        channels: int | None,
    ) -> None:
        super().__init__(views, channels)
        for number, image in enumerate(images):
            self.require_image(image, number)
        self.images = images
        self.labels = torch.full((len(images),), -1)
        self.classes = []

    def require_image(self, image: object, number: int) -> None:
        """Raise unless an item is a path, a Pillow image or an array that the network accepts.

        Arrays of any type and number of channels are accepted only if the network was trained on images that were not
        converted to 8-bit RGB.
        """
        kind = type(image).__name__
        if isinstance(image, (str, Path, Image.Image)):
            return
        if isinstance(image, np.ndarray):
            kind = f'an array {" x ".join(map(str, image.shape))} of {image.dtype}'
            gray = image.ndim == 2
            known_depth = image.dtype in (bool, np.uint8) or (gray and image.dtype == np.uint16)
            known_shape = gray or (image.ndim == 3 and 1 <= image.shape[2] <= 4)
            if image.size and (self.as_stored or (known_depth and known_shape)):
                return
        raise UserError(
            f'image {number} is {kind}; give a path, a Pillow image, or uint8 from 0 to 255 as an array height x width '
            '(x channels) or a tensor channels x height x width',
            code='unknown-image',
        )

    def name(self, index: int) -> str:
        image = self.images[index]
        return str(image) if isinstance(image, (str, Path)) else f'image {index}'

    def encoded(self, index: int) -> bytes:
        path = Path(self.images[index])
        return read_file(path, path.parent)

    def raw(self, index: int) -> Tensor:
        image = self.images[index]
        if isinstance(image, (str, Path)):
            return super().raw(index)
        if self.as_stored:
            return self.checked_format(channels_first(np.asarray(image)), index)
        if isinstance(image, np.ndarray):
            if image.dtype == bool:
                image = image.astype(np.uint8) * 255
            if image.shape[2:] == (1,):
                image = image[..., 0]
            image = Image.fromarray(image)
        upright = ImageOps.exif_transpose(image)
        return channels_first(np.array(as_rgb(upright)))
