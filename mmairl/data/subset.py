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
        self.kept = order[:count].sort().values
        self.classes = [self.dataset.classes[label] for label in self.kept]
        self.indices = torch.isin(self.dataset.labels, self.kept).nonzero().squeeze(1)
        self.labels = torch.searchsorted(self.kept, self.dataset.labels[self.indices])

    @property
    def metainfo(self) -> dict[str, list[str]]:
        return dict(classes=self.classes)

    def __len__(self) -> int:
        return len(self.indices)

    def raw(self, index: int) -> Tensor:
        return self.dataset.raw(int(self.indices[index]))

    def __getitem__(self, index: int) -> dict:
        item = self.dataset[int(self.indices[index])]
        label = int(torch.searchsorted(self.kept, torch.tensor(item['data_samples']['label'])))
        return dict(inputs=item['inputs'], data_samples=dict(label=label, index=index))

    def unreadable_files(self) -> list[str]:
        return self.dataset.unreadable_files() if hasattr(self.dataset, 'unreadable_files') else []
