"""Measure the effective rank and the spread of embeddings."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rankme(x: Tensor) -> float:
    """Return RankMe, the effective rank of embeddings (Garrido et al. 2023).

    It is the exponential of the entropy of the singular values, which are first divided by their sum.

    >>> round(rankme(torch.eye(8)), 3)
    8.0
    """
    return effective(singular_values(x))


def effective(values: Tensor) -> float:
    """Return the effective number of values: divide them by their sum, and take the exponential of the entropy.

    The result is 1 if all values are 0.
    """
    tiny = torch.finfo(torch.float64).tiny
    share = values / values.sum().clamp_min(tiny)
    entropy = -(share * (share + 1e-12).log()).sum()
    return entropy.exp().item()


def spread(x: Tensor) -> float:
    """Return the mean standard deviation of the coordinates of normalized embeddings, times the square root of their width.

    It is about 1 for embeddings that are spread evenly over the sphere, and 0 for collapsed embeddings.
    """
    deviation = F.normalize(x.double()).std(dim=0).mean()
    dimensions = x.shape[1]
    return (deviation * dimensions**0.5).item()


def singular_values(x: Tensor, centred: bool = False) -> Tensor:
    """Return the singular values of `x` in descending order.

    The values are computed in float64 from the smaller of the two Gram matrices.
    """
    x = x.double()
    if centred:
        x = x - x.mean(dim=0)
    rows, columns = x.shape
    gram = x.T @ x if rows >= columns else x @ x.T
    eigenvalues = torch.linalg.eigvalsh(gram)
    return eigenvalues.clamp_min(0).sqrt().flip(0)
