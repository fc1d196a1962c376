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
    """MoCo v3's loss: InfoNCE with temperature ``t`` over the keys of another view in the batch, times ``2 t``.

    The logits of a query ``q`` are ``cos(q, k) / t`` for each key ``k`` of the other view, from all processes. The positive
    is the key of the query's own image.

    Args:
        temperature: Softmax temperature ``t``.

    Returns (forward):
        ``loss``: mean over the batch, summed over view pairs.
        ``instance_accuracy``: fraction of queries for which the key of their own image is the closest key.
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
