"""A data set of views: each image is read once, then each view's own pipeline changes it."""

from collections.abc import Callable, Sequence

from torch import Tensor
from torch.utils.data import Dataset

from mmairl.registry import TRANSFORMS

Pipeline = list[Callable[[Tensor], Tensor]]


def build_views(views: Sequence[Sequence[dict]] | None) -> list[Pipeline]:
    """One list of transforms per view from its configs; no views mean one empty pipeline, the image as it is."""
    return [[TRANSFORMS.build(step) for step in steps] for steps in (views or [[]])]


class ViewDataset(Dataset):
    """Base of the data sets: a child sets `labels` and `classes`, and defines `raw`.

    `labels` is one class an image (-1 where unknown), or of shape (images, classes) where an image can be of several:
    1 is of the class, 0 is not, -1 is not to be counted. `metric` is what the field scores the set by.
    """

    labels: Tensor
    classes: list[str]
    metric = 'top-1'

    def __init__(self, views: Sequence[Sequence[dict]] | None) -> None:
        self.views = build_views(views)

    def raw(self, index: int) -> Tensor:
        """The image as stored: uint8, channels first."""
        raise NotImplementedError

    def load(self, index: int) -> tuple[Tensor, int]:
        """The image to show for `index`, and the index it really has; they differ where a file cannot be read."""
        return self.raw(index), index

    @property
    def metainfo(self) -> dict[str, list[str]]:
        """What mmengine writes into a checkpoint about its data."""
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        image, index = self.load(index)
        inputs = []
        for pipeline in self.views:
            view = image
            for transform in pipeline:
                view = transform(view)
            inputs.append(view)
        label = self.labels[index]
        return dict(inputs=inputs, data_samples=dict(label=int(label) if label.ndim == 0 else label, index=index))
