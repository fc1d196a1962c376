"""Views: the data set that reads an image once and changes it by each view's pipeline, and what is done on the device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import cv2
import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.data.decode import DICOM, MAX_PIXELS, Reason, UnreadableImage, decode_bytes
from mmairl.data.view_sets import listed
from mmairl.errors import UserError, printable
from mmairl.registry import MODELS, TRANSFORMS

FIRST = 20  # images that are tried
Views = Sequence[Sequence[dict]] | str  # a name of mmairl.data.view_sets
Pipeline = list[Callable[[Tensor], Tensor]]


def build_views(views: Views | None) -> list[Pipeline]:
    """One list of transforms per view from its configs; no views mean one empty pipeline, the image as it is."""
    # OpenCV's thread pool does not survive the fork of a data worker, and each worker has one core to itself.
    cv2.setNumThreads(0)
    return [[TRANSFORMS.build(step) for step in steps] for steps in (listed(views) or [[]])]


class ViewDataset(Dataset):
    """Base of the data sets: a child sets `labels` and `classes`, and defines `raw`, or `encoded` where images are files.

    `labels` is one class an image (-1 where unknown), or of shape (images, classes) where an image can be of several:
    1 is of the class, 0 is not, -1 is not to be counted. `metric` is what the field scores the set by.

    Where the images are files, `channels` says that they are to be read as they are stored, with so many channels.
    Otherwise they are RGB of 8 bits.
    """

    labels: Tensor
    classes: list[str]
    metric = 'top-1'
    max_pixels = MAX_PIXELS
    channels, as_stored, depth, reach = 3, False, None, (0.0, 1.0)

    def __init__(self, views: Views | None, channels: int | None = None) -> None:
        self.views = build_views(views)
        if channels is not None:
            self.channels, self.as_stored = channels, True

    def encoded(self, index: int) -> bytes:
        """The image's file as it is stored."""
        raise NotImplementedError

    def raw(self, index: int) -> Tensor:
        """The image as stored: uint8, uint16 or float32, channels first."""
        try:
            return self.decoded(self.encoded(index), index)
        except UnreadableImage as fault:
            raise UnreadableImage(fault.reason, printable(self.name(index))) from fault

    def decoded(self, data: bytes, index: int) -> Tensor:
        """The image in a file; as it is stored, it must have the channels of the set and the depth of its first image."""
        if not data:
            raise UnreadableImage(Reason.EMPTY)
        if data[128:132] == DICOM:
            from mmairl.data.dicom import decode_dicom

            image = decode_dicom(data, self.max_pixels, self.as_stored)
            return self.alike(image, index) if self.as_stored else image
        if not self.as_stored:
            return decode_bytes(data, self.max_pixels)
        from mmairl.data.raw_values import decode_stored  # which photographs do not need

        return self.alike(decode_stored(data, self.max_pixels), index)

    def alike(self, image: Tensor, index: int) -> Tensor:
        """The image; a UserError where its channels or its depth are not those of the set."""
        depth = self.depth or image.dtype
        if (len(image), image.dtype) != (self.channels, depth):
            raise UserError(
                f'{printable(self.name(index))} has {len(image)} channels of {in_words(image.dtype)} (an array is height x '
                f'width x channels), and the data set channels={self.channels} of {in_words(depth)}; set channels to that of '
                'all images, convert it, or move it out of the set'
            )
        return image

    def take_depth(self) -> None:
        """Take the depth and the range of the values from the first image that can be read."""
        for index in range(min(len(self), FIRST) if self.as_stored else 0):
            with suppress(UnreadableImage):
                image = self.raw(index)
                values = to_unit(image)
                self.depth, self.reach = image.dtype, (values.min().item(), values.max().item())
                return

    def label(self, index: int) -> Tensor:
        """The image's own of `labels`, which sets of other sets put together only when they are asked for all."""
        return self.labels[index]

    def name(self, index: int) -> str:
        """The image's name in messages."""
        return f'image {index}'

    @property
    def metainfo(self) -> dict[str, list[str]]:
        """For mmengine, which writes it into a checkpoint."""
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        image = self.raw(index)
        if image.dtype is torch.uint16:  # for which torch has few functions
            image = to_unit(image)
        inputs = []
        for pipeline in self.views:
            view = image
            for transform in pipeline:
                view = transform(view)
            inputs.append(view)
        label = self.label(index)
        return dict(inputs=inputs, data_samples=dict(label=int(label) if label.ndim == 0 else label, index=index))


@MODELS.register_module()
class ViewPreprocessor(BaseDataPreprocessor):
    """Moves a batch to the device, goes on augmenting it there when `views` is given, and normalises.

    With `views`, one pipeline a view, a training batch is augmented by batched operations. A data set with `views=None`
    gives one image each, which every pipeline starts from; where files differ in size, the data set's views are the
    crops alone, and each pipeline goes on with its own (configs/_base_/views/on_device.py). Without `views`, the
    workers have done all of it. `mean` and `std` are for values in [0, 1].
    """

    def __init__(
        self, mean: Sequence[float], std: Sequence[float], views: Views | None = None, channels_last: bool = False
    ) -> None:
        super().__init__(non_blocking=True)
        if len(mean) != len(std) or 0 in std:
            raise UserError(
                f'data_preprocessor.mean={list(mean)} and std={list(std)} are to hold a number for each channel, and std no 0; '
                'set them, as tools/pack.py --statistics measures them, and leave out a channel that never changes'
            )
        # Not persistent: a checkpoint holds what was learnt, and its keys do not depend on the preprocessor.
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1), persistent=False)
        self.views = build_views(views) if views else None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, data: dict, training: bool = False) -> dict:
        if isinstance(samples := data.get('data_samples'), dict):
            # Hooks read the images' places in the data set on the host; the device does not need them.
            samples = {key: value for key, value in samples.items() if key != 'index'}
            data = dict(data, data_samples=samples)
        data = self.cast_data(data)
        inputs = data['inputs']
        # whatever the step's precision: autocast and TF32 round coarser than a byte
        with float32_precision('float32'), torch.autocast(self.mean.device.type, enabled=False):
            if isinstance(inputs, Tensor):
                return dict(data, inputs=self.normalise(to_unit(inputs)))
            images = [to_unit(batch) for batch in inputs]
            if training and self.views:
                images = self.augment(images)
            return dict(data, inputs=[self.normalise(batch) for batch in images])

    def augment(self, images: Sequence[Tensor]) -> list[Tensor]:
        """One augmented batch per view, every image with its own draws."""
        if len(images) not in (1, len(self.views)):
            raise UserError(
                f'the data set gives {len(images)} views of an image and data_preprocessor.views has '
                f'{len(self.views)} pipelines; give as many of both, or views=None to the data set'
            )
        starts = images if len(images) == len(self.views) else [images[0]] * len(self.views)
        made = []
        for view, pipeline in zip(starts, self.views):
            for transform in pipeline:
                view = transform.batch(view)
            made.append(view)
        return made

    def normalise(self, images: Tensor) -> Tensor:
        return normalised(images, self.mean, self.std).contiguous(memory_format=self.layout)


@contextmanager
def float32_precision(precision: str | None) -> Iterator[None]:
    """Whether products and convolutions in float32 may be TF32; as they are where nothing is said, and before it afterwards."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    if precision is not None:
        torch.set_float32_matmul_precision('high' if precision == 'tf32' else 'highest')
        torch.backends.cudnn.allow_tf32 = precision != 'float32'
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def to_unit(images: Tensor) -> Tensor:
    """Whole numbers become floats in [0, 1], whose 1 is the largest number of 8 or 16 bits; floats stay as they are."""
    return images if images.is_floating_point() else images.float().div_(65535 if images.dtype is torch.uint16 else 255)


def require_channels(
    dataset: Dataset, mean: Sequence[float] | None, backbone: nn.Module | None = None, views: Sequence[Pipeline] = ()
) -> None:
    """Refuse images that do not fit the statistics, the first convolution or an operation that only RGB has."""
    images = inner_most(dataset)
    if not isinstance(images, ViewDataset):  # another does not say
        return
    channels, (low, high) = images.channels, images.reach
    if mean is not None and len(mean) != channels:
        raise UserError(
            f'the images have {channels} channels and data_preprocessor.mean {len(mean)} numbers; give mean and std a number '
            'for each channel, as tools/pack.py --statistics measures them, or the data set other channels'
        )
    if backbone is not None and (taken := channels_of(backbone)) not in (None, channels):
        raise UserError(
            f'the images have {channels} channels and the first convolution takes {taken}; set '
            f'model.backbone.in_channels={channels}, or channels={taken} of the data set'
        )
    steps = [step for view in views for step in view]
    clipping = [type(step).__name__ for step in steps if getattr(step, 'clips', False) and step.p]
    if clipping and (low < 0 or high > 1):
        raise UserError(
            f'the first image has values from {low:.4g} to {high:.4g}, and {clipping[0]} is for 0 to 1; scale all images in '
            'their files, or leave it out'
        )
    of_rgb = [step.only_rgb() for step in steps if channels != 3 and hasattr(step, 'only_rgb')]
    if wrong := list(dict.fromkeys(said for said in of_rgb if said)):
        raise UserError(
            f'the images have {channels} channels, and what only RGB has is to be changed: {"; ".join(wrong)}; '
            'change the views of the config'
        )


def channels_of(backbone: nn.Module) -> int | None:
    """The channels that its first convolution takes; None where it has no convolution."""
    return next((part.in_channels for part in backbone.modules() if isinstance(part, nn.Conv2d)), None)


def inner_most(dataset: Dataset) -> Dataset:
    """The data set below those that pick or relabel its images."""
    while hasattr(dataset, 'dataset'):
        dataset = dataset.dataset
    return dataset


def in_words(depth: torch.dtype) -> str:
    return {torch.uint8: '8 bits', torch.uint16: '16 bits'}.get(depth, 'floats')


def normalised(images: Tensor, mean: Sequence[float] | Tensor, std: Sequence[float] | Tensor) -> Tensor:
    """(x - mean) / std of images in whole numbers or in [0, 1]: what every network of ours is given."""
    mean_c11, std_c11 = (torch.as_tensor(values, device=images.device).view(-1, 1, 1) for values in (mean, std))
    return (to_unit(images) - mean_c11) / std_c11
