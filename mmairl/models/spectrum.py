"""Rank and spread of embeddings, from their singular values."""

import torch
import torch.nn.functional as F
from torch import Tensor


def rankme(x: Tensor) -> float:
    """Return RankMe (Garrido et al. 2023), the effective number of dimensions in use.

    It is exp of the entropy of the normalized singular values.

    >>> round(rankme(torch.eye(8)), 3)
    8.0
    """
    return effective(singular_values(x))


def effective(values: Tensor) -> float:
    """Return exp of the entropy of the values' shares, or 1 if all values are 0."""
    share = values / values.sum().clamp_min(torch.finfo(torch.float64).tiny)
    return torch.exp(-(share * (share + 1e-12).log()).sum()).item()


def spread(x: Tensor) -> float:
    """Return the mean standard deviation of the unit embeddings' coordinates, times sqrt(d).

    It is 1 for embeddings spread evenly over the sphere and 0 for collapsed embeddings.
    """
    deviation = F.normalize(x.double()).std(dim=0).mean()
    return (deviation * x.shape[1] ** 0.5).item()


def singular_values(x: Tensor, centred: bool = False) -> Tensor:
    """Return the singular values in descending order, from the smaller Gram matrix in float64."""
    x = x.double()
    x = x - x.mean(dim=0) if centred else x
    gram = x.T @ x if x.shape[0] >= x.shape[1] else x @ x.T
    return torch.linalg.eigvalsh(gram).clamp_min(0).sqrt().flip(0)
