"""Some of the classes, with all their images (App. B.2, Fig. 8)."""

import torch
from torch import Tensor
from torch.utils.data import Dataset

from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module()
class ClassSubset(Dataset):
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
        self._keep(order[:count].sort().values)

    def _keep(self, labels: Tensor) -> None:
        """Be the images of these classes, in ascending order."""
        self.kept, self.metric = labels, self.dataset.metric
        self.classes = [self.dataset.classes[label] for label in labels]
        self.indices = torch.isin(self.dataset.labels, labels).nonzero().squeeze(1)
        self.labels = torch.searchsorted(labels, self.dataset.labels[self.indices])

    @property
    def metainfo(self) -> dict[str, list[str]]:
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.indices)

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))

    def __getitem__(self, index: int) -> dict:
        for step in range(len(self)):  # an unreadable file may have given way to an image of another class
            item = self.dataset[int(self.indices[(index + step) % len(self)])]
            label = item['data_samples']['label']
            if (self.kept == label).any():
                label = int(torch.searchsorted(self.kept, torch.tensor(label)))
                return dict(inputs=item['inputs'], data_samples=dict(label=label, index=index))
        raise UserError(f'none of the {len(self)} images of the kept classes can be read; check the data set')

    def unreadable_files(self) -> list[str]:
        return self.dataset.unreadable_files() if hasattr(self.dataset, 'unreadable_files') else []
