"""Some of the classes, with all their images (App. B.2, Fig. 8)."""

import torch
from torch import Tensor

from mmairl.data.listed import ImageSubset
from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module()
class ClassSubset(ImageSubset):
    """A uniform sample of `fraction` of the classes; for one seed, a smaller fraction is part of a larger one.

    Labels are counted anew from 0 in the order of the classes, so that a classifier has no empty outputs.
    """

    def __init__(self, dataset: dict, fraction: float, seed: int = 0) -> None:
        self.dataset = DATASETS.build(dataset)
        count = round(fraction * len(self.dataset.classes))
        if not 0 < fraction <= 1 or count == 0:
            raise UserError(
                f'ClassSubset.fraction={fraction} keeps {max(count, 0)} of {len(self.dataset.classes)} classes; '
                'set a fraction in (0, 1] that keeps one or more'
            )
        order = torch.randperm(len(self.dataset.classes), generator=torch.Generator().manual_seed(seed))
        self._keep_classes(order[:count].sort().values)

    def _keep_classes(self, labels: Tensor) -> None:
        """Be the images of these classes, in ascending order."""
        super()._keep(torch.isin(self.dataset.labels, labels).nonzero().squeeze(1))
        self.kept, self.classes = labels, [self.dataset.classes[label] for label in labels]
        self.labels = torch.searchsorted(labels, self.labels)

    def __getitem__(self, index: int) -> dict:
        item = super().__getitem__(index)
        label = int(self.labels[item['data_samples']['index']])
        return dict(inputs=item['inputs'], data_samples={**item['data_samples'], 'label': label})
