"""Long-tailed training sets, as in CIFAR-10-LT and CIFAR-100-LT (Cao et al. 2019)."""

import torch

from mmairl.data.splits import Subset
from mmairl.errors import UserError
from mmairl.registry import DATASETS


@DATASETS.register_module()
class LongTailed(Subset):
    """Selects images so that the sizes of the classes decrease exponentially.

    Class i of C has n_i = int(n_0 (1 / imbalance)^(i / (C - 1))) images, so class 0 keeps all. With
    the same seed, the images for a larger imbalance are also among those for a smaller imbalance.

    Args:
        dataset: Config of the data set.
        imbalance: The size of the first class, divided by the size of the last class.
        seed: Seed of the selection.

    Raises:
        UserError: If a class has fewer images than n_i, or if n_i is 0.
    """

    def __init__(self, dataset: dict, imbalance: float, seed: int = 0) -> None:
        super().__init__(dataset)
        labels = self.dataset.labels
        largest = int((labels == 0).sum())
        steps = max(len(self.classes) - 1, 1)
        generator = torch.Generator().manual_seed(seed)
        drawn = []
        for label, name in enumerate(self.classes):
            images = (labels == label).nonzero().flatten()
            count = int(largest * (1 / imbalance) ** (label / steps))
            if not 0 < count <= len(images):
                raise UserError(
                    f'LongTailed.imbalance={imbalance}: requires {count} of the {len(images)} images '
                    f'of class {name}; set another imbalance, or use another data set',
                    code='bad-imbalance',
                )
            drawn.append(images[torch.randperm(len(images), generator=generator)[:count]])
        self.select(torch.cat(drawn).sort().values)
