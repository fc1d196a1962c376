"""Norms of a backbone's weights, and whether they look trained by LARS without weight decay on batch norm."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

# Norm of a 3x3 convolution over its norm at initialization. Weight decay of 1e-4 brings it below 1 within a few epochs.
# Without decay, each step of a scale-invariant weight is orthogonal to it and increases its norm.
LARS_GROWTH = 1.5


@dataclass(frozen=True)
class Norm:
    """A weight's norm.

    Attributes:
        name: Key of the weight.
        norm: Its L2 norm.
        growth: Ratio of the norm to that of Kaiming initialization (fan out). None if it is no convolution.
    """

    name: str
    norm: float
    growth: float | None


def is_statistic(key: str) -> bool:
    """Return whether a tensor is a batch statistic or counter, not a learned weight."""
    return key.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def weight_norms(weights: Mapping[str, Tensor], kernel: int | None = None) -> list[Norm]:
    """Return the norms of learned tensors in the order of the network; with `kernel`, only of convolutions of that size.

    >>> import torch
    >>> weight_norms({'conv.weight': torch.ones(2, 3, 3, 3)}, kernel=3)[0].norm
    7.348...
    """
    return [
        Norm(key, value.double().norm().item(), growth(value))
        for key, value in weights.items()
        if not is_statistic(key) and (kernel is None or tuple(value.shape[2:]) == (kernel, kernel))
    ]


def growth(weight: Tensor) -> float | None:
    """Return |w| / sqrt(2 C_in), or None if the weight is no convolution.

    Initialization with variance 2 / (C_out k^2) gives the C_out C_in k^2 entries the norm sqrt(2 C_in).
    """
    if weight.ndim != 4:
        return None
    return weight.double().norm().item() / (2 * weight.shape[1]) ** 0.5


def typical_growth(weights: Mapping[str, Tensor]) -> float | None:
    """Return the median growth of the 3x3 convolutions, or None if there are none."""
    ratios = [row.growth for row in weight_norms(weights, kernel=3)]
    return statistics.median(ratios) if ratios else None


def typical_gain(weights: Mapping[str, Tensor]) -> float | None:
    """Return the median, over batch norms, of the root mean square of the gain, or None if there are none."""
    names = [
        key
        for key in weights
        if f'{key.removesuffix("weight")}running_mean' in weights and 'weight' in key
    ]
    gains = [weights[name].double().square().mean().sqrt().item() for name in names]
    return statistics.median(gains) if gains else None


def predicted_times(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return by which factor the anchor's best learning rate should change for these weights, by kernels and by gains.

    A kernel before batch norm has a gradient proportional to 1 / |w| and turns by rate / |w|^2 per step, so a longer one
    needs a higher rate. Features are proportional to the gains, and the curvature of a classifier's loss to their square,
    so longer gains need a lower rate.
    """
    factors = {}
    kernels = typical_growth(weights), typical_growth(anchor)
    if all(kernels):
        factors['kernels'] = (kernels[0] / kernels[1]) ** 2
    gains = typical_gain(weights), typical_gain(anchor)
    if all(gains):
        factors['gains'] = (gains[1] / gains[0]) ** 2
    return factors


def looks_lars_trained(weights: Mapping[str, Tensor]) -> bool:
    """Return whether the typical 3x3 convolution exceeds its initial norm by LARS_GROWTH.

    SGD with L2 prevents that within a few epochs; after fewer, its norms can be as long.
    """
    ratio = typical_growth(weights)
    return ratio is not None and ratio > LARS_GROWTH


def warning_before_fine_tuning(weights: Mapping[str, Tensor], origin: str) -> str:
    """Return a warning for weights that look trained by LARS and are about to be fine-tuned, or ''."""
    if not looks_lars_trained(weights):
        return ''
    return (
        f'{origin} looks LARS-trained: the norms of its 3x3 convolutions are {typical_growth(weights):.1f} times those at '
        "initialization, which hurts SGD's fine-tuning recipes; rescale it by tools/normrescale.py or by "
        "init_cfg=dict(type='mmairl.NormRescaled', checkpoint=..., anchor=...)"
    )
