"""Long-tailed data: each class has fewer images than the one before it (Cao et al. 2019, CIFAR-10-LT and -100-LT)."""

import torch

from mmairl.data.listed import ImageSubset
from mmairl.errors import UserError
from mmairl.registry import DATASETS


def quotas(largest: int, classes: int, imbalance: float) -> list[int]:
    """Images of each class, n_i = int(n_0 (1 / imbalance)^(i / (C - 1))), from `largest` down to largest / imbalance.

    >>> quotas(5000, 3, imbalance=100)
    [5000, 500, 50]
    """
    return [int(largest * (1 / imbalance) ** (label / max(classes - 1, 1))) for label in range(classes)]


@DATASETS.register_module()
class LongTailed(ImageSubset):
    """All images of class 0, and of each next class exponentially fewer, down to 1 / `imbalance` of that number.

    They are drawn class by class: for one seed, a smaller imbalance keeps the images of a larger one and more.
    """

    def __init__(self, dataset: dict, imbalance: float, seed: int = 0) -> None:
        self.dataset = DATASETS.build(dataset)
        if not 1 <= imbalance < float('inf'):
            raise UserError(
                f'LongTailed.imbalance={imbalance} is no ratio of the largest class to the smallest; set 1 or more.'
            )
        labels, names = self.dataset.labels, self.dataset.classes
        if labels.ndim != 1 or not names:
            raise UserError(f'LongTailed wants one class an image and {dataset["type"]} gives another kind of labels.')
        wanted = quotas(int((labels == 0).sum()), len(names), imbalance)
        generator = torch.Generator().manual_seed(seed)
        kept = []
        for label, count in enumerate(wanted):
            members = (labels == label).nonzero().squeeze(1)
            if not 0 < count <= len(members):
                raise UserError(
                    f'class {names[label]} has {len(members)} images and LongTailed.imbalance={imbalance} wants {count} '
                    f'of it, from {wanted[0]} of class {names[0]}; '
                    'every class needs one and no more than it has, so set another imbalance or data set.'
                )
            kept.append(members[torch.randperm(len(members), generator=generator)[:count]])
        self._keep(torch.cat(kept).sort().values)
