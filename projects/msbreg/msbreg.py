"""The losses of MSBReg: a head that compares each view with a centroid of K views, and regularizers for any head."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads.base import unit
from mmairl.models.processes import gather_with_gradient
from mmairl.registry import MODELS


@MODELS.register_module()
class CentroidHead(nn.Module):
    """Pull each view's prediction to the center of the other views' targets: 2 mean_k (2 - 2 q_k . c_{-k}).

    Args:
        centroid: Which of three interpretations of the paper to use. With ``'leave_one_out'``, c_{-k} is the normalized mean of
            the teacher's embeddings z of all views except k; for K = 2, the loss is BYOL's symmetric loss. With ``'all'``,
            the mean includes view k, as in a public implementation. With ``'mean'``, the loss is 2 (2 - 2 q . z), where q
            and z are the normalized means over all views of the student and of the teacher.

    Raises:
        UserError: If `centroid` is unknown, or there are fewer than two views.
    """

    def __init__(self, centroid: str = 'leave_one_out') -> None:
        super().__init__()
        if centroid not in ('leave_one_out', 'all', 'mean'):
            raise UserError(
                f"CentroidHead.centroid: unknown ('{centroid}'); set leave_one_out, all or mean",
                code='unknown-centroid',
            )
        self.centroid = centroid

    def forward(
        self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None
    ) -> dict[str, Tensor]:
        if len(q) < 2 or q.keys() != k.keys():
            raise UserError(
                f"CentroidHead: requires at least two views, each as query and as key ('{len(q)}'); add views, and set "
                'model.symmetric=True'
            )
        queries, keys = (torch.stack([unit(rows) for rows in side.values()]) for side in (q, k))
        if self.centroid == 'mean':
            cosines = F.normalize(queries.mean(0), dim=1) * F.normalize(keys.mean(0), dim=1)
        else:
            own = 0 if self.centroid == 'all' else keys
            cosines = queries * F.normalize(keys.sum(0) - own, dim=-1)
        similarity = cosines.sum(-1).mean()
        return dict(loss=2 * (2 - 2 * similarity), similarity=similarity.detach())


@MODELS.register_module()
class RegularisedHead(nn.Module):
    """Add weighted regularizers of the student's normalized predictions to the loss of another head."""

    def __init__(self, base: dict, terms: list[dict]) -> None:
        super().__init__()
        self.base = MODELS.build(base)
        self.terms = nn.ModuleList(MODELS.build(term) for term in terms)

    def forward(
        self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None
    ) -> dict[str, Tensor]:
        found = self.base(q, k, negatives)
        queries = torch.stack([unit(rows) for rows in q.values()])
        for term in self.terms:
            value = term(queries)
            found['loss'] = found['loss'] + term.weight * value
            found[term.name] = value.detach()
        return found


@MODELS.register_module()
class SingularValueTerm(nn.Module):
    """Spread a view's embeddings over all dimensions: |Z^T Z / N - I|_F^2, averaged over the views.

    Z is the batch of all processes, centered and scaled to unit variance in each dimension. The term equals
    sum (s^2 - 1)^2 over the singular values s of Z / sqrt(N), but needs no decomposition.
    """

    name = 'singular'

    def __init__(self, weight: float = 0.004) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, queries: Tensor) -> Tensor:
        return torch.stack([self.of_view(gather_with_gradient(view)) for view in queries]).mean()

    def of_view(self, z: Tensor) -> Tensor:
        z = z - z.mean(dim=0)
        z = z / (len(z) * (z.square().mean(dim=0) + 1e-8)).sqrt()
        # Z is divided by sqrt(N) before the matrix product. Otherwise, sums over a large batch overflow float16 under autocast.
        correlation = z.T @ z
        return (
            (correlation - torch.eye(len(correlation), device=z.device, dtype=z.dtype))
            .square()
            .sum()
        )


@MODELS.register_module()
class BrownianTerm(nn.Module):
    """Push each embedding in a random direction: mean q . g, where g is uniform on the sphere and new in every step.

    Each process draws its own directions.

    Args:
        weight: The weight of the term, lambda_b in the paper.
        per: Whether all views of an image share a direction ('image'), each view of each image has its own ('view'), or
            the whole batch of a process shares one ('batch').
    """

    name = 'brownian'

    def __init__(self, weight: float = 0.5, per: str = 'image') -> None:
        super().__init__()
        if per not in ('image', 'view', 'batch'):
            raise UserError(f"BrownianTerm.per: unknown ('{per}'); set image, view or batch")
        self.weight = weight
        self.per = per

    def forward(self, queries: Tensor) -> Tensor:
        views, images, width = queries.shape
        shape = {
            'image': (1, images, width),
            'view': (views, images, width),
            'batch': (1, 1, width),
        }[self.per]
        g = F.normalize(torch.randn(shape, device=queries.device, dtype=queries.dtype), dim=-1)
        return (queries * g).sum(dim=-1).mean()


@MODELS.register_module()
class UniformityTerm(nn.Module):
    """Wang and Isola's uniformity loss: ln of the mean of exp(-2 |q_i - q_j|^2) over pairs of images, averaged over views."""

    name = 'uniformity'

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, queries: Tensor) -> Tensor:
        return torch.stack([self.of_view(gather_with_gradient(view)) for view in queries]).mean()

    def of_view(self, q: Tensor) -> Tensor:
        own = torch.eye(len(q), dtype=torch.bool, device=q.device)
        # For unit vectors, |q_i - q_j|^2 = 2 - 2 q_i . q_j.
        distances = (4 - 4 * (q @ q.T).to(q.dtype)).masked_fill(own, math.inf)
        return (-distances).logsumexp((0, 1)) - math.log(len(q) * (len(q) - 1))
