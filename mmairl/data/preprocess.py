"""Preprocessing of batches on the device, the one preprocessing of images in evaluation, and channel statistics."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.model import BaseDataPreprocessor
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmairl.data.datasets import Pipeline, ViewDataset, Views, build_views, innermost_dataset
from mmairl.data.decode import UnreadableImage, to_unit
from mmairl.errors import UserError
from mmairl.registry import MODELS, TRANSFORMS

IMAGENET = dict(
    mean=[0.485, 0.456, 0.406],
    std=[0.229, 0.224, 0.225],
)
SIZE = 224


def preprocessing_of(cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a config's network expects images in evaluation, embedding and exported files.

    Every command prepares images by this dictionary, so that their features agree. The key
    `preprocessing` of the config overrides single entries. By default, `size` is that of the
    training crops, and `resize` is 8/7 of it.

    Returns:
        `resize`: Length of the shorter side in pixels, or (height, width).
        `size`: Side of the central crop in pixels.
        `interpolation`: The filter of the resize, which has antialiasing.
        `mean` and `std`: One number per channel, for values in [0, 1].
        `channels`: Number of stored channels, or None for images that are converted to 8-bit RGB
        (upright by EXIF, transparent parts on white, 16 bits scaled to 8).

    Example:
        >>> cfg = dict(preprocessing=dict(size=64))
        >>> view_of(preprocessing_of(cfg))[0]
        {'type': 'Resize', 'size': 73}
    """
    device = cfg.get('model', {}).get('data_preprocessor') or {}
    training = cfg.get('train_dataloader', {}).get('dataset', {})
    while 'dataset' in training:
        training = training['dataset']
    own = dict(cfg.get('preprocessing', {}))
    size = own.get('size') or _crop_size(training) or _crop_size(device) or SIZE
    kind = str(device.get('type', 'ViewPreprocessor'))
    # The preprocessors of mmpretrain and mmengine normalize values from 0 to 255.
    scale = 1 if kind.endswith(('ViewPreprocessor', 'MaskedPreprocessor')) else 255
    derived = dict(
        resize=size * 8 // 7,
        size=size,
        interpolation='bilinear',
        mean=[value / scale for value in device.get('mean', ())] or IMAGENET['mean'],
        std=[value / scale for value in device.get('std', ())] or IMAGENET['std'],
        channels=training.get('channels'),
    )
    if unknown := sorted(own.keys() - derived.keys()):
        raise UserError(
            f"preprocessing: unknown key ('{unknown[0]}'); use {', '.join(derived)}",
            code='unknown-key',
        )
    return derived | own


def _crop_size(images: Mapping[str, Any]) -> int | None:
    """Return the size of the crop in the first of `views`, or None if it has no crop."""
    # A data set of the user may have another argument of this name.
    with suppress(LookupError, TypeError):
        for step in images['views'][0]:
            if 'Crop' in str(step['type']):
                return step['size'] if isinstance(step['size'], int) else step['size'][0]
    return None


def view_of(preprocessing: Mapping[str, Any]) -> list[dict]:
    """Return the view (a list of transforms) that resizes and crops images."""
    resize = dict(type='Resize', size=preprocessing['resize'])
    if preprocessing['interpolation'] != 'bilinear':
        resize['interpolation'] = preprocessing['interpolation']
    return [resize, dict(type='CenterCrop', size=preprocessing['size'])]


def preprocessing_code(preprocessing: Mapping[str, Any]) -> str:
    """Return lines of Python that prepare an image as `mmairl.embed` does, with PIL and torch only.

    The model card and exported files show these lines.
    """
    resize = preprocessing['resize']
    resize = [resize] if isinstance(resize, int) else list(resize)
    read = (
        "image = ImageOps.exif_transpose(Image.open('image.jpg'))\n"
        "if image.mode.startswith('I'):  # 16 bits\n"
        '    image = Image.fromarray((np.asarray(image) / 257).round().astype(np.uint8))\n'
        "white = Image.new('RGBA', image.size, 'white')\n"
        "image = Image.alpha_composite(white, image.convert('RGBA')).convert('RGB')\n"
        'x = F.pil_to_tensor(image)'
    )
    if preprocessing['channels'] is not None:
        read = (
            "x = torch.from_numpy(np.load('image.npy')).permute(2, 0, 1)  # height, width, channels"
        )
    return (
        'import torchvision.transforms.v2.functional as F\n'
        f'{read}\n'
        f"x = F.resize(x, {resize}, F.InterpolationMode('{preprocessing['interpolation']}'))\n"
        f'x = F.to_dtype(F.center_crop(x, [{preprocessing["size"]}]), torch.float32, scale=True)\n'
        f'x = F.normalize(x, {list(preprocessing["mean"])}, {list(preprocessing["std"])})[None]'
    )


@MODELS.register_module()
class ViewPreprocessor(BaseDataPreprocessor):
    """Moves a batch to the device, augments it there if `views` is set, and normalizes it.

    If `views` is set, batched operations augment each training batch on the device. If all images
    have the same size, the data set can have `views=None`. It then returns each image once, and all
    pipelines start from this image. If the images differ in size, the views of the data set contain
    only the crops, and each pipeline starts from the crop of its view (see
    configs/_base_/views/on_device.py). If `views` is None, the data workers do all augmentation.

    Args:
        mean: Mean of each channel, for values in [0, 1].
        std: Standard deviation of each channel, for values in [0, 1].
        views: One list of transforms for each view. Default: None.
        channels_last: Whether batches are in channels-last layout.
        single_view: Whether to return the images as a tensor instead of a list with one tensor per
            view. Models with a single view, such as mmpretrain's MAE, require this.

    Raises:
        UserError: If `mean` and `std` differ in length, or if a standard deviation is 0.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        views: Views | None = None,
        channels_last: bool = False,
        single_view: bool = False,
    ) -> None:
        super().__init__(non_blocking=True)
        if len(mean) != len(std) or 0 in std:
            raise UserError(
                f'data_preprocessor: mean={list(mean)} and std={list(std)} must each have one '
                'number per channel, and no std may be 0; measure both by mmairl pack '
                '--statistics, and remove channels whose values never change',
                code='bad-statistics',
            )
        # The buffers are not persistent, so the keys of a checkpoint do not depend on this class.
        for name, values in dict(mean=mean, std=std).items():
            per_channel = torch.tensor(values).view(-1, 1, 1)
            self.register_buffer(name, per_channel, persistent=False)
        self.views = build_views(views) if views else None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.single_view = single_view

    def forward(self, data: dict, training: bool = False) -> dict:
        data = self.cast_data(data)
        images = data['inputs']
        is_single = self.single_view or isinstance(images, Tensor)
        if isinstance(images, Tensor):
            images = [images]
        # Autocast and TF32 would make the augmentation less precise.
        with float32_precision('float32'), torch.autocast(self.mean.device.type, enabled=False):
            images = list(map(to_unit, images))
            if training and self.views:
                images = self.augmented(images)
            images = [normalize(batch, self.mean, self.std) for batch in images]
        images = [batch.contiguous(memory_format=self.layout) for batch in images]
        if is_single and len(images) > 1:
            raise UserError(
                f'data_preprocessor.single_view: requires a single view, but there are '
                f'{len(images)} views; set one view, or single_view=False',
                code='several-views',
            )
        return dict(data, inputs=images[0] if is_single else images)

    def augmented(self, images: list[Tensor]) -> list[Tensor]:
        """Apply `views` to a batch. Return one augmented batch for each view."""
        if len(images) == 1:
            images *= len(self.views)
        if len(images) != len(self.views):
            raise UserError(
                f'data_preprocessor.views: lists {len(self.views)} views, but the data set has '
                f'{len(images)} views; set the same number, or views=None in the data set',
                code='views-differ',
            )
        batches = []
        for view, pipeline in zip(images, self.views):
            for transform in pipeline:
                view = transform.batch(view)
            batches.append(view)
        return batches


def normalize(
    images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor
) -> Tensor:
    """Scale integers to [0, 1], subtract the mean, and divide by the standard deviation."""
    mean = torch.as_tensor(mean, device=images.device).view(-1, 1, 1)
    std = torch.as_tensor(std, device=images.device).view(-1, 1, 1)
    return (to_unit(images) - mean) / std


@contextmanager
def float32_precision(precision: str | None) -> Iterator[None]:
    """Set the precision of float32 matrix products and convolutions within a `with` block.

    'tf32' allows the TF32 format, 'float32' forbids it, and None keeps the current settings.
    """
    products = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    if precision is not None:
        torch.set_float32_matmul_precision('high' if precision == 'tf32' else 'highest')
        torch.backends.cudnn.allow_tf32 = precision != 'float32'
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def require_channels(
    dataset: Dataset,
    mean: Sequence[float] | None,
    backbone: nn.Module | None = None,
    views: Sequence[Pipeline] = (),
) -> None:
    """Raise if the mean, the first convolution or a transform does not fit the images."""
    images = innermost_dataset(dataset)
    if not isinstance(images, ViewDataset):  # only a ViewDataset states its channels
        return
    channels = images.channels
    taken = {}
    if mean is not None:
        taken['data_preprocessor.mean'] = len(mean)
    if backbone is not None:
        taken['backbone'] = channels_of(backbone)
    for part, number in taken.items():
        if number not in (None, channels):
            raise UserError(
                f'model.{part}: takes {number} channels, but the images have {channels}; set '
                f'channels={number} of the data set, or model.backbone.in_channels={channels} and '
                'one number per channel as mean and std of model.data_preprocessor (mmairl pack '
                '--statistics measures them)',
                code='other-channels',
            )
    if any(getattr(step, 'clips', False) for step in chain.from_iterable(views)):
        with suppress(UnreadableImage):
            low, high = to_unit(images.raw(0)).aminmax()
            if low < 0 or high > 1:
                raise UserError(
                    'views: ColorJitter and Solarize require values from 0 to 1, but the first '
                    f'image has values from {low:.4g} to {high:.4g}; scale the stored images, or '
                    'remove these transforms',
                    code='views-range',
                )


def channels_of(backbone: nn.Module) -> int | None:
    """Return the input channels of the first convolution, or None if there is no convolution."""
    for part in backbone.modules():
        if isinstance(part, nn.Conv2d):
            return part.in_channels
    return None


@MODELS.register_module()
class MaskedPreprocessor(ViewPreprocessor):
    """A ViewPreprocessor for models with one view and one mask per image, such as mmpretrain's SimMIM and MaskFeat.

    mmpretrain's own pipeline passes masks as NumPy arrays, which these models cannot stack. The masks depend on NumPy's random
    state, which checkpoints contain.

    Args:
        masks: Config of a transform of mmpretrain that generates a mask, such as
            ``dict(type='mmpretrain.SimMIMMaskGenerator', input_size=192)``.
        **settings: The arguments of ViewPreprocessor.
    """

    def __init__(self, masks: dict, **settings: Any) -> None:
        super().__init__(single_view=True, **settings)
        self.masks = TRANSFORMS.build(masks)

    def forward(self, data: dict, training: bool = False) -> dict:
        data = super().forward(data, training)
        masks = (self.masks.transform({})['mask'] for _ in data['inputs'])
        samples = [SimpleNamespace(mask=torch.as_tensor(mask).to(self.device)) for mask in masks]
        return dict(data, data_samples=samples)


class Statistics(NamedTuple):
    """The mean and standard deviation of each channel, and the numbers of images.

    Integer images are scaled to [0, 1] before the measurement.
    """

    mean: list[float]
    std: list[float]
    images: int
    unreadable: int


def moments(index: int, dataset: ViewDataset) -> np.ndarray | None:
    """Return the number of pixels, the sum of values and the sum of squares per channel.

    Return None if the image is unreadable. The result is an array, because a tensor from a data
    worker keeps a file open.
    """
    with suppress(UnreadableImage):
        values = to_unit(dataset.raw(index)).double().flatten(1)
        pixels = torch.ones_like(values)
        sums = [powers.sum(1) for powers in (pixels, values, values.square())]
        return torch.stack(sums).numpy()
    return None


def channel_statistics(
    dataset: ViewDataset, workers: int = 0, most: int | None = None
) -> Statistics:
    """Measure the mean and standard deviation of each channel over all pixels.

    If `most` is set, at most this many evenly spaced images are read.

    >>> channel_statistics(UnlabelledFolder('cells/train', channels=2)).mean  # doctest: +SKIP
    [0.0213, 0.1871]
    """
    count = min(len(dataset), most or len(dataset))
    indices = np.linspace(0, len(dataset) - 1, count).astype(int).tolist()
    # Without batches, a data worker calls the collate function with one index at a time.
    measure = partial(moments, dataset=dataset)
    loader = DataLoader(indices, batch_size=None, num_workers=workers, collate_fn=measure)
    measured = [found for found in track(loader, 'measuring', count) if found is not None]
    pixels, sums, squares = np.sum(measured, 0)
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    return Statistics(mean.tolist(), std.tolist(), len(measured), count - len(measured))
