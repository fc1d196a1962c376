"""Norms of a backbone's weights, and a test that recognizes LARS-trained weights."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

# Ratio of the norm of a 3x3 convolution to its norm at initialization. With a weight decay of 1e-4, it falls below 1 within a
# few epochs. Without decay, each step increases it, because the gradient is orthogonal to a scale-invariant weight.
LARS_GROWTH = 1.5


@dataclass(frozen=True)
class Norm:
    """A weight's norm.

    Attributes:
        name: Key of the weight.
        norm: Its L2 norm.
        growth: Ratio of the norm to the norm of Kaiming initialization (fan out). None if the weight is no convolution.
    """

    name: str
    norm: float
    growth: float | None


def is_statistic(key: str) -> bool:
    """Return whether a tensor is a batch statistic or counter, not a learned weight."""
    return key.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def weight_norms(weights: Mapping[str, Tensor], kernel: int | None = None) -> list[Norm]:
    """Return the norms of the learned tensors in order, or with `kernel` only of convolutions of that kernel size.

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
    norms = [key.removesuffix('running_mean') for key in weights if key.endswith('running_mean')]
    gains = [weights[norm + 'weight'] for norm in norms if norm + 'weight' in weights]
    typical = [gain.double().square().mean().sqrt().item() for gain in gains]
    return statistics.median(typical) if typical else None


def predicted_times(
    weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor]
) -> dict[str, float]:
    """Return the factors for the anchor's best learning rate that the kernels and the gains of these weights suggest.

    The gradient of a kernel before a batch norm is proportional to 1 / |w|. A step turns the kernel by rate / |w|^2, so a
    longer kernel needs a higher rate. Features are proportional to the gains, and the curvature of a classifier's loss to
    their square, so larger gains need a lower rate.
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
    """Return whether the median 3x3 convolution has over LARS_GROWTH times its initial norm.

    SGD with weight decay can also reach such norms, but only within the first epochs.
    """
    ratio = typical_growth(weights)
    return ratio is not None and ratio > LARS_GROWTH


def warning_before_fine_tuning(weights: Mapping[str, Tensor], origin: str) -> str:
    """Return a warning before fine-tuning weights that look LARS-trained, or ''."""
    if not looks_lars_trained(weights):
        return ''
    return (
        f'{origin} looks LARS-trained: the norms of its 3x3 convolutions are {typical_growth(weights):.1f} times those at '
        'initialization, so fine-tuning by SGD barely changes them; rescale it by tools/normrescale.py or by '
        "init_cfg=dict(type='mmairl.NormRescaled', checkpoint=..., anchor=...)"
    )
