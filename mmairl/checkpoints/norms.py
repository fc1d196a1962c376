"""Measure the norms of a backbone's weights, and recognize LARS-trained weights by them."""

import statistics
from collections.abc import Mapping

from torch import Tensor

# Weights count as LARS-trained if the median norm of the 3x3 convolutions is more than this multiple of the initial norm. Each
# gradient step increases the norm of a weight that a batch norm follows: the loss does not depend on this norm, so the gradient
# is orthogonal to the weight. SGD is mostly used with a weight decay of about 1e-4, which reduces the norms below their initial
# values within a few epochs. LARS is mostly used with about 1e-6, which hardly reduces the norms.
LARS_GROWTH = 1.5


def is_statistic(key: str) -> bool:
    """Return whether a key belongs to a batch statistic or a counter, which are not learned."""
    return key.endswith(('running_mean', 'running_var', 'num_batches_tracked'))


def convolution_norms(weights: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the L2 norm of each 3x3 convolution, by the key of its weight.

    >>> import torch
    >>> convolution_norms({'conv.weight': torch.ones(2, 3, 3, 3), 'conv.bias': torch.ones(2)})
    {'conv.weight': 7.348...}
    """
    return {
        key: value.double().norm().item()
        for key, value in weights.items()
        if value.shape[2:] == (3, 3)
    }


def typical_growth(weights: Mapping[str, Tensor]) -> float:
    """Return the median growth of the norms of 3x3 convolutions since Kaiming initialization, or 0 if there are none.

    The initialization (fan out) gives each of the C_out C_in 9 entries a variance of 2 / (C_out 9), so the initial norm is
    sqrt(2 C_in).
    """
    norms = convolution_norms(weights)
    ratios = [norm / (2 * weights[key].shape[1]) ** 0.5 for key, norm in norms.items()]
    return statistics.median(ratios or [0.0])


def looks_lars_trained(weights: Mapping[str, Tensor]) -> bool:
    """Return whether the median norm of the 3x3 convolutions is more than LARS_GROWTH times the initial norm.

    SGD with weight decay can also reach norms of this size, but only during the first epochs.
    """
    return typical_growth(weights) > LARS_GROWTH
