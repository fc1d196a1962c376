"""Muon of timm, against its paper's rules in double precision."""

import pytest
import torch

from mmairl.engine.run import register
from mmairl.registry import OPTIMIZERS

RATE, DECAY, STEPS = 0.01, 0.1, 4


def moved(shape: tuple[int, ...], **optimizer) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Return a weight before and after a few steps of an optimizer, and its gradients."""
    register()
    generator = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(STEPS + 1))
    weight = start.clone().requires_grad_()
    stepped = OPTIMIZERS.build(dict(optimizer, params=[weight], lr=RATE, weight_decay=DECAY))
    for gradient in gradients:
        weight.grad = gradient.clone()
        stepped.step()
    return start, weight.detach(), gradients


def test_muon_step_is_the_orthogonalized_momentum():
    """Against the singular vectors: Newton and Schulz's iterations leave singular values of 0.7 to 1.2."""
    start, end, gradients = moved((6, 4, 3, 3), type='mmairl.Muon', momentum=0.95, nesterov=False)
    weight, momentum = start.flatten(1), torch.zeros(6, 36, dtype=torch.float64)
    for gradient in gradients:
        momentum = 0.95 * momentum + 0.05 * gradient.flatten(1)
        u, _, v = torch.linalg.svd(momentum, full_matrices=False)
        weight = weight * (1 - RATE * DECAY) - RATE * 0.2 * 36**0.5 * u @ v
    step, wanted = end.flatten(1) - start.flatten(1), weight - start.flatten(1)
    assert torch.cosine_similarity(step.flatten(), wanted.flatten(), dim=0) > 0.98
    assert step.norm() == pytest.approx(wanted.norm().item(), rel=0.1)


def test_muon_moves_gains_and_biases_as_adamw_does():
    start, end, gradients = moved((5,), type='mmairl.Muon', betas=(0.9, 0.95))
    weight, first, second = start, torch.zeros(5).double(), torch.zeros(5).double()
    for step, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.95 * second + 0.05 * gradient**2
        weight = weight * (1 - RATE * DECAY)
        weight = weight - RATE * (first / (1 - 0.9**step)) / ((second / (1 - 0.95**step)).sqrt() + 1e-8)
    assert torch.allclose(end, weight, rtol=1e-6)
