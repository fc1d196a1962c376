"""Views: the data set that reads an image once and changes it by each view's pipeline, and what is done on the device."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import cv2
import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.registry import MODELS, TRANSFORMS

Views = Sequence[Sequence[dict]]
Pipeline = list[Callable[[Tensor], Tensor]]


def build_views(views: Views | None) -> list[Pipeline]:
    """One list of transforms per view from its configs; no views mean one empty pipeline, the image as it is."""
    # OpenCV's thread pool does not survive the fork of a data worker, and each worker has one core to itself.
    cv2.setNumThreads(0)
    return [[TRANSFORMS.build(step) for step in steps] for steps in (views or [[]])]


class ViewDataset(Dataset):
    """Base of the data sets: a child sets `labels` and `classes`, and defines `raw`.

    `labels` is one class an image (-1 where unknown), or of shape (images, classes) where an image can be of several:
    1 is of the class, 0 is not, -1 is not to be counted. `metric` is what the field scores the set by.
    """

    labels: Tensor
    classes: list[str]
    metric = 'top-1'

    def __init__(self, views: Views | None) -> None:
        self.views = build_views(views)

    def raw(self, index: int) -> Tensor:
        """The image as stored: uint8, channels first."""
        raise NotImplementedError

    def name(self, index: int) -> str:
        """What a message calls an image."""
        return f'image {index}'

    @property
    def metainfo(self) -> dict[str, list[str]]:
        """What mmengine writes into a checkpoint about its data."""
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        image = self.raw(index)
        inputs = []
        for pipeline in self.views:
            view = image
            for transform in pipeline:
                view = transform(view)
            inputs.append(view)
        label = self.labels[index]
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
        # Not persistent: a checkpoint holds what was learnt, and its keys do not depend on the preprocessor.
        self.register_buffer('mean', torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(3, 1, 1), persistent=False)
        self.views = build_views(views) if views else None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, data: dict, training: bool = False) -> dict:
        if isinstance(samples := data.get('data_samples'), dict):
            # Hooks read the images' places in the data set on the host; the device does not need them.
            samples = {key: value for key, value in samples.items() if key != 'index'}
            data = dict(data, data_samples=samples)
        data = self.cast_data(data)
        inputs = data['inputs']
        with full_precision(self.mean.device.type):
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
def full_precision(device: str) -> Iterator[None]:
    """Products in float32, whatever the step's precision: autocast and TF32 round coarser than a byte."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision('highest')
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.autocast(device, enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def to_unit(images: Tensor) -> Tensor:
    """Bytes become floats in [0, 1]; floats are in [0, 1] already."""
    return images if images.is_floating_point() else images.float().div_(255)


def normalised(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(x - mean) / std of images in bytes or in [0, 1]: what every network of ours is given."""
    return (to_unit(images) - mean) / std
