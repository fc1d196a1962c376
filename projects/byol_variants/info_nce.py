"""BYOL's bridge between itself and SimCLR: one loss with a weight on the negatives (BYOL's Eq. 6)."""

import torch
from mmengine.dist import get_rank
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads import unit
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class InfoNCEHead(nn.Module):
    """Minimises -InfoNCE(alpha, beta), summed over both directions; negatives are the batch of all processes.

    InfoNCE(alpha, beta) = 2/B sum_i S(v_i, v'_i)
        - beta 2 alpha / B sum_i ln( sum_{j != i} exp(S(v_i, v_j) / alpha) + sum_j exp(S(v_i, v'_j) / alpha) )

    S is the cosine of v_i's query and the other image's key. At beta = 0 a direction is BYOL's 2 - 2 cos less the
    constant 2; at beta = 1 it is 2 alpha times SimCLR's NT-Xent at temperature alpha. Both directions summed, as here,
    that is BYOL's loss less 4, and 4 alpha times NT-Xent's mean over the 2B rows.
    """

    rewards = ('alignment', 'uniformity')

    def __init__(self, alpha: float = 0.1, beta: float = 1.0) -> None:
        super().__init__()
        if alpha <= 0 or not 0 <= beta <= 1:
            raise UserError(f'InfoNCEHead wants alpha > 0 and beta in [0, 1], not alpha={alpha} and beta={beta}')
        self.alpha, self.beta = alpha, beta

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        if len(q) != 2 or len(k) != 2:
            raise UserError(f'InfoNCEHead compares two views both ways and got {len(q)}; set model.symmetric=True')
        q, k = ({view: unit(rows) for view, rows in side.items()} for side in (q, k))
        one, two = q
        loss = self.direction(q[one], k[one], k[two]) + self.direction(q[two], k[two], k[one])
        similarity = ((q[one] * k[two]).sum(1).mean() + (q[two] * k[one]).sum(1).mean()) / 2
        return dict(loss=loss, similarity=similarity.detach())

    def direction(self, query: Tensor, same: Tensor, other: Tensor) -> Tensor:
        """Queries of a view against the keys of the same view, own image left out, and of the other view."""
        attraction = -2 * (query * other).sum(dim=1).mean()
        if self.beta == 0:
            return attraction
        # autocast would make the products half precision; the sums then run on float32 all the same
        near, far = ((query @ gather_with_gradient(keys).T).to(query.dtype) / self.alpha for keys in (same, other))
        own = torch.arange(len(query), device=query.device)
        near = near.index_put((own, own + get_rank() * len(query)), near.new_full((), float('-inf')))
        return attraction + self.beta * 2 * self.alpha * torch.cat([near, far], dim=1).logsumexp(dim=1).mean()
