"""VICReg: two branches kept apart by the spread of their embeddings, with neither teacher, predictor nor negatives."""

import torch
import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads import PairwiseHead
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class VICRegHead(PairwiseHead):
    """25 s(z, z') + 25 (v(z) + v(z')) + c(z) + c(z'), over the batch of all processes.

    s is the mean squared distance of the two views' projections, v the mean over dimensions of max(0, 1 - deviation), and
    c the sum of the squared covariances of different dimensions, over their number. The release halves v; the paper does not.
    """

    rewards = ('alignment', 'RankMe')

    def __init__(self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> None:
        super().__init__()
        self.weights = dict(invariance=invariance, variance=variance, covariance=covariance)

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        with torch.autocast(q.device.type, enabled=False):  # covariances in half precision are none
            q, k = (gather_with_gradient(z.to(torch.promote_types(z.dtype, torch.float32))) for z in (q, k))
            terms = dict(
                invariance=F.mse_loss(q, k),
                variance=variance(q) + variance(k),
                covariance=covariance(q) + covariance(k),
            )
        loss = sum(self.weights[name] * value for name, value in terms.items())
        return dict(loss=loss, **{name: value.detach() for name, value in terms.items()})


def variance(z: Tensor) -> Tensor:
    return F.relu(1 - (z.var(dim=0) + 1e-4).sqrt()).mean()


def covariance(z: Tensor) -> Tensor:
    """cov^2 summed off the diagonal, over the number of dimensions."""
    centred = z - z.mean(dim=0)
    found = centred.T @ centred / (len(z) - 1)  # torch's cov waits for the device
    return (found.square().sum() - found.diagonal().square().sum()) / len(found)
