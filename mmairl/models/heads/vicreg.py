"""VICReg: a variance term prevents collapse, without a teacher, a predictor or negatives."""

import torch.nn.functional as F
from torch import Tensor

from mmairl.models.heads.base import PairwiseHead, full_precision, widened
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class VICRegHead(PairwiseHead):
    """VICReg's loss of two views' projections ``z`` and ``z'`` over the batch of all processes.

    ::

        loss = invariance s(z, z') + variance (v(z) + v(z')) + covariance (c(z) + c(z'))

    ``s`` is the mean squared difference of the two views. ``v`` is the mean of ``max(0, 1 - standard deviation)`` over the
    dimensions, as in the paper. The released code halves ``v``. ``c`` is the sum of the squared covariances between
    different dimensions, divided by the number of dimensions.

    Args:
        invariance: Weight of ``s``.
        variance: Weight of ``v``.
        covariance: Weight of ``c``.

    Returns (forward):
        ``loss``, and its three terms ``invariance``, ``variance`` and ``covariance`` before they are weighted.
    """

    page_metrics = ('invariance', 'variance', 'covariance')

    def __init__(
        self, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0
    ) -> None:
        super().__init__()
        self.weights = {
            'invariance': invariance,
            'variance': variance,
            'covariance': covariance,
        }

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        with full_precision(q):
            q = gather_with_gradient(widened(q))
            k = gather_with_gradient(widened(k))
            terms = {
                'invariance': F.mse_loss(q, k),
                'variance': variance(q) + variance(k),
                'covariance': covariance(q) + covariance(k),
            }
        loss = sum(self.weights[name] * value for name, value in terms.items())
        logged = {name: value.detach() for name, value in terms.items()}
        return {'loss': loss, **logged}


def variance(z: Tensor) -> Tensor:
    deviation = (z.var(dim=0) + 1e-4).sqrt()
    return F.relu(1 - deviation).mean()


def covariance(z: Tensor) -> Tensor:
    centered = z - z.mean(dim=0)
    # torch.cov is not used, because it makes the host wait for the device.
    matrix = centered.T @ centered / (len(z) - 1)
    squares = matrix.square()
    different = squares.sum() - squares.diagonal().sum()
    return different / len(matrix)
