"""Measure the norms of a backbone's weights, and recognize LARS-trained weights by them."""

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

# Weights count as LARS-trained if the median norm of the 3x3 convolutions is more than this multiple of the initial norm. Each
# gradient step increases the norm of a weight that a batch norm follows: the loss does not depend on this norm, so the gradient
# is orthogonal to the weight. SGD is mostly used with a weight decay of about 1e-4, which reduces the norms below their initial
# values within a few epochs. LARS is mostly used with about 1e-6, which hardly reduces the norms.
LARS_GROWTH = 1.5


class Norm(NamedTuple):
    """The norm of one weight.

    Attributes:
        name: Key of the weight.
        norm: L2 norm of the weight.
        growth: The norm, divided by the norm after Kaiming initialization (fan out). None if the weight is not a convolution.
    """

    name: str
    norm: float
    growth: float | None


def is_statistic(key: str) -> bool:
    """Return whether a key belongs to a batch statistic or a counter, which are not learned."""
    return key.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def weight_norms(weights: Mapping[str, Tensor], kernel: int | None = None) -> list[Norm]:
    """Return the norms of the learned tensors. If `kernel` is a number k, return only those of k x k convolutions.

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
    """Return the norm of a convolution divided by its norm after Kaiming initialization, or None for other weights.

    The initialization gives each of the C_out C_in k^2 entries a variance of 2 / (C_out k^2), so the initial norm is
    sqrt(2 C_in).
    """
    if weight.ndim != 4:
        return None
    return weight.double().norm().item() / (2 * weight.shape[1]) ** 0.5


def typical_growth(weights: Mapping[str, Tensor]) -> float | None:
    """Return the median growth of the norms of 3x3 convolutions since initialization, or None if there are none."""
    ratios = [row.growth for row in weight_norms(weights, kernel=3)]
    return statistics.median(ratios) if ratios else None


def typical_gain(weights: Mapping[str, Tensor]) -> float | None:
    """Return the median gain of the batch norms, or None if there are none.

    The gain of one batch norm is the root mean square over its channels.
    """
    keys = [
        key.replace('running_mean', 'weight') for key in weights if key.endswith('running_mean')
    ]
    gains = [weights[key].double().square().mean().sqrt().item() for key in keys if key in weights]
    return statistics.median(gains) if gains else None


def looks_lars_trained(weights: Mapping[str, Tensor]) -> bool:
    """Return whether the median norm of the 3x3 convolutions is more than LARS_GROWTH times the initial norm.

    SGD with weight decay can also reach norms of this size, but only during the first epochs.
    """
    ratio = typical_growth(weights)
    return ratio is not None and ratio > LARS_GROWTH


def warning_before_fine_tuning(weights: Mapping[str, Tensor], origin: str) -> str:
    """Return a warning to log before weights that look LARS-trained are fine-tuned, or '' for other weights."""
    if not looks_lars_trained(weights):
        return ''
    return (
        f'{origin} looks LARS-trained: the norms of its 3x3 convolutions are {typical_growth(weights):.1f} times those at '
        'initialization, so fine-tuning by SGD barely changes them; rescale it by tools/normrescale.py or by '
        "init_cfg=dict(type='mmairl.NormRescaled', checkpoint=..., anchor=...)"
    )
