"""Masks of image patches: which patches are hidden from the student (iBOT, DINOv2)."""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from mmengine.dist import broadcast, get_rank, get_world_size
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import patch_projection
from mmairl.registry import MODELS


@MODELS.register_module()
class BlockMasking(nn.Module):
    """Masks of rectangular blocks of patches, and the learned token that replaces a masked patch.

    Masks depend only on the seed of the run, on the number of the batch, and on the position of a crop in the batch of all
    processes. They are drawn on the CPU, so the number of masked patches is known without waiting for the device.

    Args:
        backbone: The student's backbone, a ViT. The model sets it.
        weight: Weight of the loss on masked patches.
        probability: Fraction of the crops that are masked.
        low: Smallest fraction of masked patches in a masked crop.
        high: Largest fraction.
        strata: With False, each crop is masked independently, with a uniform fraction (iBOT). With True, exactly the fraction
            `probability` of all crops is masked, with evenly spread fractions (DINOv2).
        least: Smallest area of a block in patches. Default: the square of a third of the shorter side, as in iBOT.
        most: Largest area of a block, as a fraction of all patches.

    Raises:
        UserError: If the backbone has no patches, or if they do not fit the masks.
    """

    def __init__(
        self,
        backbone: nn.Module,
        weight: float = 1.0,
        probability: float = 0.5,
        low: float = 0.1,
        high: float = 0.5,
        strata: bool = False,
        least: int | None = None,
        most: float = 1.0,
    ) -> None:
        super().__init__()
        projection = patch_projection(backbone)
        if projection is None:
            raise UserError(
                f"model.masking: the backbone has no patches ('{type(backbone).__name__}'); set a ViT that returns its tokens",
                code='no-patch-tokens',
            )
        self.token = nn.Parameter(torch.zeros(1, projection.out_channels))
        projection.register_forward_hook(self._replace)
        self.weight = weight
        self.probability = probability
        self.low = low
        self.high = high
        self.strata = strata
        self.least = least
        self.most = most
        self.hidden: Tensor | None = None
        # The run's seed is unknown until the first batch.
        self.seed = -1
        self.batch = 0

    @contextmanager
    def hide(self, masks: Tensor | None) -> Iterator[None]:
        """Hide the masked patches from the backbone while the `with` block runs."""
        self.hidden = masks
        try:
            yield
        finally:
            self.hidden = None

    def _replace(self, projection: nn.Module, inputs: tuple, patches: Tensor) -> Tensor:
        if self.hidden is None:
            return patches
        if self.hidden.shape[1:] != patches.shape[2:]:
            raise UserError(
                f"model.masking: the masks have another size than the map of patches ('{tuple(self.hidden.shape[1:])}' and "
                f"'{tuple(patches.shape[2:])}'); use key views of one size",
                code='mask-size',
            )
        hidden = self.hidden.to(patches.device, non_blocking=True)
        token = self.token.to(patches.dtype)
        return torch.where(hidden.unsqueeze(1), token.view(-1, 1, 1), patches)

    def draw(self, views: int, images: int, rows: int, columns: int) -> Tensor:
        """Return the masks of the next batch on the CPU, with shape (views, images, rows, columns)."""
        if self.seed < 0:
            seed = torch.tensor(torch.initial_seed() % 2**63, device='cpu')
            broadcast(seed)
            self.seed = seed.item()
        crops = views * images * get_world_size()
        order = list(range(crops))
        random.Random(f'{self.seed}:{self.batch}').shuffle(order)
        masks = np.zeros((views, images, rows, columns), dtype=bool)
        for view, image in np.ndindex(views, images):
            # ResumableSampler gives the images of a batch to the processes in turn.
            place = (image * get_world_size() + get_rank()) * views + view
            draw = random.Random(f'{self.seed}:{self.batch}:{place}')
            number = order[place]
            share = self._stratum(number, crops, draw) if self.strata else self._share(draw)
            self._fill(masks[view, image], int(share * rows * columns), draw)
        self.batch += 1
        return torch.from_numpy(masks)

    def _share(self, draw: random.Random) -> float:
        masked = draw.random() < self.probability
        return draw.uniform(self.low, self.high) if masked else 0.0

    def _stratum(self, number: int, crops: int, draw: random.Random) -> float:
        """Return a fraction in the interval of this number. The intervals of all masked crops divide [low, high] evenly."""
        masked = int(self.probability * crops)
        if number >= masked:
            return 0.0
        place = number + draw.random()
        return self.low + (self.high - self.low) * place / masked

    def _fill(self, mask: np.ndarray, count: int, draw: random.Random) -> None:
        """Mask `count` patches, or fewer if ten blocks in a row do not fit."""
        while count > 0:
            for _ in range(10):
                if added := self._add_block(mask, count, draw):
                    count -= added
                    break
            else:
                return

    def _add_block(self, mask: np.ndarray, count: int, draw: random.Random) -> int:
        """Draw a block. Mask it if it adds 1 to `count` patches. Return how many patches it adds."""
        rows, columns = mask.shape
        least = (min(rows, columns) // 3) ** 2 if self.least is None else self.least
        area = draw.uniform(least, min(count, self.most * mask.size))
        widest = -math.log(0.3)
        aspect = math.exp(draw.uniform(-widest, widest))
        height = round(math.sqrt(area * aspect))
        width = round(math.sqrt(area / aspect))
        if height >= rows or width >= columns:
            return 0
        top = draw.randint(0, rows - height)
        left = draw.randint(0, columns - width)
        block = mask[top : top + height, left : left + width]
        added = block.size - int(block.sum())
        if not 0 < added <= count:
            return 0
        block[:] = True
        return added

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.seed, self.batch])

    def set_extra_state(self, state: Tensor) -> None:
        self.seed, self.batch = state.tolist()


def patch_weights(masks: Tensor) -> Tensor:
    """Return the weight of each masked patch in the loss: 1 / (masked patches of its crop), divided by the number of crops.

    >>> patch_weights(torch.tensor([[[[True, True], [False, False]]], [[[True, False], [False, False]]]]))
    tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)
    """
    masks = masks.flatten(0, 1).flatten(1)
    hidden = masks.sum(dim=1, keepdim=True).clamp(min=1)
    weights = masks.double() / (hidden * len(masks))
    return weights[masks]
