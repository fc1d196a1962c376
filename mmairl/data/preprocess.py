"""From a batch of uint8 images to the normalised views that the network sees."""

from collections.abc import Sequence

import torch
from mmengine.model import BaseDataPreprocessor
from torch import Tensor

from mmairl.data.views import build_views
from mmairl.registry import MODELS


@MODELS.register_module()
class ViewPreprocessor(BaseDataPreprocessor):
    """Moves a batch to the device, augments it there when `views` is given, and normalises.

    With `views`, a training batch of one image each becomes one augmented batch per view by batched operations; the
    data set then has `views=None`. Without, the workers have made the views. `mean` and `std` are for values in [0, 1].
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
        if isinstance(inputs, Tensor):
            return dict(data, inputs=self.normalise(to_unit(inputs)))
        images = [to_unit(batch) for batch in inputs]
        if training and self.views and len(images) == 1:
            images = self.augment(images[0])
        return dict(data, inputs=[self.normalise(batch) for batch in images])

    def augment(self, images: Tensor) -> list[Tensor]:
        """One augmented batch per view, every image with its own draws."""
        made = []
        for pipeline in self.views:
            view = images
            for transform in pipeline:
                view = transform.batch(view)
            made.append(view)
        return made

    def normalise(self, images: Tensor) -> Tensor:
        return ((images - self.mean) / self.std).contiguous(memory_format=self.layout)


def to_unit(images: Tensor) -> Tensor:
    """Bytes become floats in [0, 1]; floats are taken to be there already."""
    return images if images.is_floating_point() else images.float().div_(255)
