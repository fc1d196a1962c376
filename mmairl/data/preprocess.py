"""From a batch of uint8 images to the normalised views that the network sees."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from mmairl.data.views import build_views
from mmairl.errors import UserError
from mmairl.registry import MODELS


@MODELS.register_module()
class ViewPreprocessor(BaseDataPreprocessor):
    """Moves a batch to the device, goes on augmenting it there when `views` is given, and normalises.

    With `views`, one pipeline a view, a training batch is augmented by batched operations. A data set with `views=None`
    gives one image each, which every pipeline starts from; where files differ in size, the data set's views are the
    crops alone, and each pipeline goes on with its own (configs/_base_/views/on_device.py). Without `views`, the
    workers have done all of it. `mean` and `std` are for values in [0, 1].
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        views: Sequence[Sequence[dict]] | None = None,
        channels_last: bool = False,
    ) -> None:
        super().__init__(non_blocking=True)
        # Not persistent: a checkpoint holds what was learnt, and its keys do not depend on the preprocessor.
        self.register_buffer('mean', torch.tensor(mean).view(3, 1, 1), persistent=False)
        self.register_buffer('std', torch.tensor(std).view(3, 1, 1), persistent=False)
        self.views = build_views(views) if views else None
        self.layout = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, data: dict, training: bool = False) -> dict:
        data = self.cast_data(data)
        inputs = data['inputs']
        # Under autocast the products below would round to its precision, which is coarser than a byte's.
        with torch.autocast(self.mean.device.type, enabled=False):
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
                f'{len(self.views)} pipelines; give as many of both, or views=None to the data set.'
            )
        starts = images if len(images) == len(self.views) else [images[0]] * len(self.views)
        made = []
        for view, pipeline in zip(starts, self.views):
            for transform in pipeline:
                view = transform.batch(view)
            made.append(view)
        return made

    def normalise(self, images: Tensor) -> Tensor:
        return ((images - self.mean) / self.std).contiguous(memory_format=self.layout)


def to_unit(images: Tensor) -> Tensor:
    """Bytes become floats in [0, 1]; floats are taken to be there already."""
    return images if images.is_floating_point() else images.float().div_(255)
