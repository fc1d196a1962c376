"""Preprocessing of batches on the device, and checks that the network and the views support the images."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.data.datasets import Pipeline, ViewDataset, Views, build_views, innermost_dataset
from mmairl.data.decode import to_unit
from mmairl.errors import UserError
from mmairl.registry import MODELS


@MODELS.register_module()
class ViewPreprocessor(BaseDataPreprocessor):
    """Moves a batch to the device, augments it there if `views` is set, and normalizes it.

    If `views` is set, batched operations augment each training batch on the device. If all images have the same size, the
    data set can have `views=None`. It then returns each image once, and all pipelines start from this image. If the images
    differ in size, the views of the data set contain only the crops, and each pipeline starts from the crop of its view (see
    configs/_base_/views/on_device.py). If `views` is None, the data workers do all augmentation.

    Args:
        mean: Mean of each channel, for values in [0, 1].
        std: Standard deviation of each channel, for values in [0, 1].
        views: One list of transforms for each view, or the name of a predefined list of views (see view_sets.yaml).
            Default: None.
        channels_last: Whether batches are in channels-last layout.
        single_view: Whether to return the images as a tensor instead of a list with one tensor per view. Models with a
            single view, such as mmpretrain's MAE, require this.

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
                f'data_preprocessor: mean={list(mean)} and std={list(std)} must each have one number per channel, and no std '
                'may be 0; measure both by mmairl pack --statistics, and remove channels whose values never change',
                code='bad-statistics',
            )
        # The buffers are not persistent, so that the keys of a checkpoint do not depend on the preprocessor.
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.views = build_views(views) if views else None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format
        self.single_view = single_view

    def forward(self, data: dict, training: bool = False) -> dict:
        samples = data.get('data_samples')
        if isinstance(samples, dict):
            # The indices of the images are not copied to the device, because only hooks on the host read them.
            samples = {key: value for key, value in samples.items() if key != 'index'}
            data = dict(data, data_samples=samples)
        data = self.cast_data(data)
        inputs = data['inputs']
        # Preprocessing always runs in float32, because autocast and TF32 would make the augmentation less precise.
        with float32_precision('float32'), torch.autocast(self.mean.device.type, enabled=False):
            if isinstance(inputs, Tensor):
                return dict(data, inputs=self.normalize(to_unit(inputs)))
            images = [to_unit(batch) for batch in inputs]
            if training and self.views:
                images = self.augment(images)
            images = [self.normalize(batch) for batch in images]
            if not self.single_view:
                return dict(data, inputs=images)
            if len(images) > 1:
                raise UserError(
                    f'data_preprocessor.single_view: requires a single view, but the data set has {len(images)} views; set one '
                    'view in the data set, or single_view=False',
                    code='several-views',
                )
            return dict(data, inputs=images[0])

    def augment(self, images: Sequence[Tensor]) -> list[Tensor]:
        """Apply `views` to a batch. Return one augmented batch for each view."""
        if len(images) not in (1, len(self.views)):
            raise UserError(
                f'data_preprocessor.views: lists {len(self.views)} views, but the data set has {len(images)} views; set the '
                'same number for both, or set views=None in the data set',
                code='views-differ',
            )
        starts = images if len(images) == len(self.views) else [images[0]] * len(self.views)
        batches = []
        for view, pipeline in zip(starts, self.views):
            for transform in pipeline:
                view = transform.batch(view)
            batches.append(view)
        return batches

    def normalize(self, images: Tensor) -> Tensor:
        return normalize(images, self.mean, self.std).contiguous(memory_format=self.layout)


def normalize(
    images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor
) -> Tensor:
    """Scale integer images to [0, 1], then subtract the mean and divide by the standard deviation of each channel."""
    mean_c11, std_c11 = (
        torch.as_tensor(values, device=images.device).view(-1, 1, 1) for values in (mean, std)
    )
    return (to_unit(images) - mean_c11) / std_c11


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
    """Raise if the mean, the first convolution or a transform does not support the channels or the values of the images."""
    images = innermost_dataset(dataset)
    if not isinstance(images, ViewDataset):
        # Only a ViewDataset states its channels, so other data sets are not checked.
        return
    channels = images.channels
    if mean is not None and len(mean) != channels:
        raise UserError(
            f'data_preprocessor.mean: the images have {channels} channels, but the mean has {len(mean)} numbers; set mean and '
            'std to one number per channel (mmairl pack --statistics measures them), or change channels of the data set',
            code='statistics-channels',
        )
    expected = channels_of(backbone) if backbone is not None else None
    if expected not in (None, channels):
        raise UserError(
            f'the images have {channels} channels, but the first convolution takes {expected}; set '
            f'model.backbone.in_channels={channels}, or set channels={expected} in the data set',
            code='backbone-channels',
        )
    require_fitting_views(images, [step for view in views for step in view])


def require_fitting_views(images: ViewDataset, steps: Sequence) -> None:
    """Raise if a transform does not support the value range or the channels of the images."""
    low, high = images.value_range
    clipping = [type(step).__name__ for step in steps if getattr(step, 'clips', False) and step.p]
    if clipping and (low < 0 or high > 1):
        raise UserError(
            f'the first image has values from {low:.4g} to {high:.4g}, but {clipping[0]} requires values from 0 to 1; scale '
            f'the stored images, or remove {clipping[0]} from the views',
            code='views-range',
        )
    if images.channels == 3:
        return
    limits = [step.only_rgb() for step in steps if hasattr(step, 'only_rgb')]
    if wrong := list(dict.fromkeys(filter(None, limits))):
        raise UserError(
            f'the images have {images.channels} channels, but the views use transforms that require RGB: {"; ".join(wrong)}; '
            'edit the views in the config',
            code='views-channels',
        )


def channels_of(backbone: nn.Module) -> int | None:
    """Return the number of input channels of the backbone's first convolution, or None if it has no convolution."""
    return next(
        (part.in_channels for part in backbone.modules() if isinstance(part, nn.Conv2d)), None
    )
