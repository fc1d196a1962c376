"""The norm of every weight of a backbone, and whether together they look as LARS without L2 on BN leaves them."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

# |w| of a 3x3 convolution over its norm at the start. Weight decay of 1e-4 brings it below 1 within a few epochs; where
# nothing holds it, every step of a scale-invariant weight is at a right angle to it and adds to its norm.
LARS_GROWTH = 1.5


@dataclass(frozen=True)
class Norm:
    """A weight's norm, and `growth`, its ratio to what Kaiming's start (fan out) gives a convolution of its shape."""

    name: str
    norm: float
    growth: float | None


def is_statistic(key: str) -> bool:
    """Whether a tensor is what a BN layer has counted and not learned."""
    return key.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def weight_norms(weights: Mapping[str, Tensor], kernel: int | None = None) -> list[Norm]:
    """The learnable tensors in the order of the network; with `kernel`, its convolutions of that size alone.

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
    """|w| / sqrt(2 C_in): a start of variance 2 / (C_out k^2) gives the C_out C_in k^2 entries the norm sqrt(2 C_in)."""
    return weight.double().norm().item() / (2 * weight.shape[1]) ** 0.5 if weight.ndim == 4 else None


def typical_growth(weights: Mapping[str, Tensor]) -> float | None:
    """The median growth of the 3x3 convolutions; a network without them has none."""
    ratios = [row.growth for row in weight_norms(weights, kernel=3)]
    return statistics.median(ratios) if ratios else None


def typical_gain(weights: Mapping[str, Tensor]) -> float | None:
    """The median, over the batch norms, of the root mean square of a gain; a network without them has none."""
    names = [key for key in weights if f'{key.removesuffix("weight")}running_mean' in weights and 'weight' in key]
    gains = [weights[name].double().square().mean().sqrt().item() for name in names]
    return statistics.median(gains) if gains else None


def predicted_times(weights: Mapping[str, Tensor], anchor: Mapping[str, Tensor]) -> dict[str, float]:
    """Return how many times the rate that suits the anchor should suit these, by the kernels' norms and by the gains'.

    A kernel before batch norm has a gradient as 1 / |w|, and turns by rate / |w|^2 a step: a longer one wants more. The
    features are as long as the gains, and the curvature of a classifier's loss is as their square: longer ones want less.
    """
    kernels, gains = ([measure(tensors) for tensors in (weights, anchor)] for measure in (typical_growth, typical_gain))
    times = dict(kernels=(kernels[0] / kernels[1]) ** 2) if all(kernels) else {}
    return times | (dict(gains=(gains[1] / gains[0]) ** 2) if all(gains) else {})


def looks_lars_trained(weights: Mapping[str, Tensor]) -> bool:
    """Whether the typical 3x3 convolution has outgrown its start by LARS_GROWTH, as SGD with L2 never lets it."""
    ratio = typical_growth(weights)
    return ratio is not None and ratio > LARS_GROWTH


def warning_before_fine_tuning(weights: Mapping[str, Tensor], origin: str) -> str:
    """One sentence for whoever is about to fine-tune weights that look LARS-trained, or nothing."""
    if not looks_lars_trained(weights):
        return ''
    return (
        f'{origin} looks LARS-trained: its 3x3 convolutions are {typical_growth(weights):.1f} times as long as at their '
        "start, which SGD's fine-tuning recipes suffer from; rescale it by tools/normrescale.py or by "
        "init_cfg=dict(type='mmairl.NormRescaled', checkpoint=..., anchor=...)"
    )
