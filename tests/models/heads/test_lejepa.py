"""LeJEPAHead's loss equals a computation with loops over slices and over the points of the integral."""

import torch
from harness.losses import assert_same, rows

from mmairl.models.heads.lejepa import LeJEPAHead


def test_lejepa_equals_the_integral_in_the_paper():
    """The test computes the integral in complex numbers, as the paper writes it."""
    head = LeJEPAHead(weight=0.05, slices=4, points=5, reach=3.0).double()
    z = rows(3, 8, 5)
    torch.manual_seed(1)
    ours = head(z, {0: z[0], 1: z[1]}, None)['loss']
    torch.manual_seed(1)
    slices = torch.randn(5, 4, dtype=torch.float64)
    statistics = []
    for view in z.values():
        for direction in slices.T:
            line = view @ (direction / direction.norm())
            errors = []
            for t in torch.linspace(-3, 3, 9, dtype=torch.float64):
                error = torch.exp(1j * t * line).mean() - torch.exp(-t * t / 2)
                errors.append((error * error.conj()).real * torch.exp(-t * t / 2))
            statistics.append(8 * 0.75 * (sum(errors) - (errors[0] + errors[-1]) / 2))
    center = (z[0] + z[1]) / 2
    distance = sum((view - center).square().mean() for view in z.values()) / 3
    assert_same(ours, 0.95 * distance + 0.05 * sum(statistics) / 12, list(z.values()), 1e-10)
