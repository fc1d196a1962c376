"""LeJEPA: views agree on the mean of the large ones, and projections are kept Gaussian; no teacher and no stop-gradient."""

import torch
from mmengine.dist import broadcast, get_world_size
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from mmairl.registry import MODELS


def mean_over_processes(rows: Tensor) -> Tensor:
    """The mean over the rows of all processes, with gradient; each process has as many."""
    mean = rows.mean(dim=0)
    return mean if get_world_size() == 1 else all_reduce(mean) / get_world_size()


def epps_pulley(z: Tensor, slices: Tensor, points: Tensor) -> Tensor:
    """n times the squared distance of the characteristic functions of z's projections and of N(0, 1), weighted by e^(-t^2/2).

    It is integrated over [-T, T] by the trapezoid rule, where `points` go from 0 to T, and averaged over the slices.
    """
    angles = (z @ slices).unsqueeze(2) * points
    normal = (-points.square() / 2).exp()
    distance = (mean_over_processes(angles.cos()) - normal).square() + mean_over_processes(angles.sin()).square()
    return 2 * torch.trapezoid(distance * normal, points, dim=1).mean() * len(z) * get_world_size()


@MODELS.register_module()
class LeJEPAHead(nn.Module):
    """(1 - weight) * |z_v - mean of the keys|^2 + weight * the mean over views of the sliced Epps-Pulley statistic.

    The keys are the projections of the large crops, with their gradient: `model.target` is 'student'. Each step draws its
    slices anew, the same in all processes.
    """

    rewards = ('alignment', 'Epps-Pulley', 'RankMe')

    def __init__(self, weight: float = 0.05, slices: int = 1024, points: int = 17, reach: float = 3.0) -> None:
        super().__init__()
        self.weight, self.slices = weight, slices
        self.register_buffer('points', torch.linspace(0, reach, points), persistent=False)

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        first = next(iter(q.values()))
        with torch.autocast(first.device.type, enabled=False):
            z = torch.stack(list(q.values()))
            z = z.to(torch.promote_types(z.dtype, torch.float32))
            centre = torch.stack(list(k.values())).to(z.dtype).mean(dim=0)
            invariance = (z - centre).square().mean()
            slices = torch.randn(z.shape[2], self.slices, device=z.device, dtype=z.dtype)
            broadcast(slices)
            slices, points = slices / slices.norm(dim=0), self.points.to(z.dtype)
            gaussianity = torch.stack([epps_pulley(view, slices, points) for view in z]).mean()
        loss = (1 - self.weight) * invariance + self.weight * gaussianity
        return dict(loss=loss, invariance=invariance.detach(), gaussianity=gaussianity.detach())
