"""scikit-learn's handwritten digits: real images that need no download."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mmairl.data.views import ViewDataset
from mmairl.registry import DATASETS

HELD_OUT = 0.2


@DATASETS.register_module()
class Digits(ViewDataset):
    """1 797 digits of 8 x 8 pixels, enlarged to `size`; the seed decides which fifth is 'val', class by class."""

    def __init__(
        self, split: str = 'train', size: int = 32, seed: int = 0, views: Sequence[Sequence[dict]] | None = None
    ) -> None:
        super().__init__(views)
        # scikit-learn takes a second to import, which users of other data need not pay.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        parts = train_test_split(
            range(len(digits.target)), test_size=HELD_OUT, random_state=seed, stratify=digits.target
        )
        rows = dict(zip(('train', 'val'), parts))[split]
        self.classes = [str(name) for name in digits.target_names]
        self.labels = torch.as_tensor(digits.target[rows], dtype=torch.int64)
        self.images = enlarge(torch.as_tensor(digits.images[rows], dtype=torch.float32) / 16, size)

    def raw(self, index: int) -> Tensor:
        return self.images[index].expand(3, -1, -1).clone()


def enlarge(images: Tensor, size: int) -> Tensor:
    """(N, 8, 8) values in [0, 1] to (N, 1, size, size) bytes."""
    large = torch.nn.functional.interpolate(images[:, None], size=(size, size), mode='bilinear', antialias=True)
    return (large * 255).round().to(torch.uint8)
