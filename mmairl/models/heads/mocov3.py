"""MoCo v3: InfoNCE with the other keys of the batch as negatives, instead of a queue."""

import torch
import torch.nn.functional as F
from mmengine.dist import get_rank
from torch import Tensor

from mmairl.models.heads.base import PairwiseHead, unit
from mmairl.models.processes import gather
from mmairl.registry import MODELS


@MODELS.register_module()
class BatchContrastiveHead(PairwiseHead):
    """MoCo v3's loss: ``2 t`` times the cross entropy of ``cos(q, k) / t`` over the keys ``k`` of the other view.

    The keys are those of all processes.

    Args:
        temperature: Softmax temperature ``t``.

    Returns (forward):
        ``loss``: mean over the batch, summed over view pairs.
        ``instance_accuracy``: fraction of queries whose own key is the closest.
    """

    page_metrics = ('instance_accuracy',)

    def __init__(self, temperature: float = 0.2) -> None:
        super().__init__()
        self.temperature = temperature

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        keys = gather(unit(k.detach()))
        logits = (unit(q) @ keys.T).to(keys.dtype) / self.temperature
        own = torch.arange(len(q), device=q.device) + get_rank() * len(q)
        loss = 2 * self.temperature * F.cross_entropy(logits, own)
        closest = logits.detach().argmax(dim=1)
        accuracy = (closest == own).float().mean()
        return {'loss': loss, 'instance_accuracy': accuracy}
