"""LeJEPA: each view predicts the mean projection of the large crops, and a second term keeps projections Gaussian.

LeJEPA has no teacher.
"""

import torch
from mmengine.dist import broadcast, get_world_size
from torch import Tensor
from torch.distributed.nn.functional import all_reduce

from mmairl.models.heads.base import ByView, Head, full_precision, widened
from mmairl.registry import MODELS


def mean_over_processes(rows: Tensor) -> Tensor:
    """Return the mean over the rows of all processes, with gradient. Each process must have the same number of rows."""
    mean = rows.mean(dim=0)
    return mean if get_world_size() == 1 else all_reduce(mean) / get_world_size()


def epps_pulley(z: Tensor, slices: Tensor, points: Tensor) -> Tensor:
    """Return how far the n embeddings of all processes are from a standard normal distribution (Epps-Pulley statistic).

    The embeddings are projected onto each slice, which is a direction, and the statistic is averaged over the slices. For
    one slice, it is n times the squared difference between the characteristic functions of the projected embeddings and of
    N(0, 1), weighted by exp(-t^2 / 2) and integrated over t from -T to T by the trapezoid rule.

    Args:
        z: Embeddings of this process.
        slices: The directions as unit vectors, one per column.
        points: Values of t from 0 to T. Negative values are not needed, because the integrand is symmetric.
    """
    angles = (z @ slices).unsqueeze(2) * points
    normal = (-points.square() / 2).exp()
    real = mean_over_processes(angles.cos()) - normal
    imaginary = mean_over_processes(angles.sin())
    distance = real.square() + imaginary.square()
    half = torch.trapezoid(distance * normal, points, dim=1)
    return 2 * half.mean() * len(z) * get_world_size()


@MODELS.register_module()
class LeJEPAHead(Head):
    """LeJEPA's loss, computed from the projections ``z_v`` of the views v.

    ::

        loss = (1 - weight) mean_v |z_v - center|^2 + weight mean_v epps_pulley(z_v)

    The squared distance is averaged over the dimensions. The center is the mean of the keys. In LeJEPA, the keys are the
    student's projections of the large crops (`model.key_views`), and gradients flow through them (`model.target='student'`).
    At each step, the Epps-Pulley term uses new random slices, which are the same in all processes.

    Args:
        weight: Weight of the Epps-Pulley term.
        slices: Number of random slices per step.
        points: Number of integration points.
        reach: Largest integration point ``T``.

    Returns (forward):
        ``loss``, and its terms ``invariance`` and ``gaussianity``.
    """

    page_metrics = ('invariance', 'gaussianity')

    def __init__(
        self, weight: float = 0.05, slices: int = 1024, points: int = 17, reach: float = 3.0
    ) -> None:
        super().__init__()
        self.weight = weight
        self.slices = slices
        self.register_buffer('points', torch.linspace(0, reach, points), persistent=False)

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        first = next(iter(q.values()))
        with full_precision(first):
            z = widened(torch.stack(list(q.values())))
            keys = torch.stack(list(k.values()))
            center = keys.to(z.dtype).mean(dim=0)
            invariance = (z - center).square().mean()
            slices = self.directions(z)
            points = self.points.to(z.dtype)
            distances = [epps_pulley(view, slices, points) for view in z]
            gaussianity = torch.stack(distances).mean()
        loss = (1 - self.weight) * invariance + self.weight * gaussianity
        return {
            'loss': loss,
            'invariance': invariance.detach(),
            'gaussianity': gaussianity.detach(),
        }

    def directions(self, z: Tensor) -> Tensor:
        slices = torch.randn(z.shape[2], self.slices, device=z.device, dtype=z.dtype)
        broadcast(slices)
        return slices / slices.norm(dim=0)
