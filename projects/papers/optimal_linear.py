"""BYOL's loss with a linear predictor that is solved for each batch (BYOL's Sec. 5)."""

import torch
from mmengine.dist import all_reduce
from torch import Tensor

from mmairl.models.heads.regression import RegressionHead
from mmairl.registry import MODELS


@MODELS.register_module()
class OptimalLinearHead(RegressionHead):
    """BYOL's loss with the optimal linear predictor ``W``, the least-squares solution of ``q W = k`` (BYOL's Sec. 5).

    ``W = (q'q + ridge I)^-1 q'k`` is computed over the batch of all processes for each pair of views, and has no gradient.

    Args:
        ridge: The ridge, as a fraction of the mean eigenvalue of ``q'q``. The ridge keeps the solution finite if the batch has
            fewer images than the embeddings have dimensions.
    """

    def __init__(self, ridge: float = 1e-6) -> None:
        super().__init__()
        self.ridge = ridge

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        weight = self.solve(q.detach(), k.detach())
        return super().pair(q.float() @ weight, k, negatives)

    @torch.no_grad()
    def solve(self, q: Tensor, k: Tensor) -> Tensor:
        q = q.double()
        k = k.double()
        products = torch.stack([q.T @ q, q.T @ k])
        all_reduce(products)
        square, mixed = products
        smallest = torch.finfo(torch.float64).tiny
        ridge = self.ridge * square.diagonal().mean().clamp(min=smallest)
        identity = torch.eye(len(square), out=torch.empty_like(square))
        return torch.linalg.solve_ex(square + ridge * identity, mixed).result.float()
