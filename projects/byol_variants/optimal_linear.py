"""BYOL without a target network: its predictor is the linear map that fits the current batch best (BYOL's Sec. 5)."""

import torch
from mmengine.dist import all_reduce
from torch import Tensor

from mmairl.models.heads import RegressionHead
from mmairl.registry import MODELS


@MODELS.register_module()
class OptimalLinearHead(RegressionHead):
    """BYOL's loss of the predictions q W, with W the least-squares solution of q W = k over the batch of all processes.

    W is solved anew for each pair of views and held fixed in the backward pass, as the error is propagated through the
    network only. It is W = (q'q + ridge I)^-1 q'k, with the ridge a fraction of q'q's mean eigenvalue.

    Args:
        ridge: that fraction; it keeps the solution finite where the batch is smaller than the embedding.
    """

    def __init__(self, ridge: float = 1e-6) -> None:
        super().__init__()
        self.ridge = ridge

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        return super().pair(q.float() @ self.solve(q.detach(), k.detach()), k, negatives)

    @torch.no_grad()
    def solve(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = q.double(), k.double()
        products = torch.stack([q.T @ q, q.T @ k])
        all_reduce(products)
        square, mixed = products
        ridge = self.ridge * square.diagonal().mean().clamp(min=torch.finfo(torch.float64).tiny)
        return torch.linalg.solve_ex(
            square + ridge * torch.eye(len(square), out=torch.empty_like(square)), mixed
        ).result.float()
