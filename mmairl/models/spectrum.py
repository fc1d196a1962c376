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
    tiny = torch.finfo(torch.float64).tiny
    share = values / values.sum().clamp_min(tiny)
    entropy = -(share * (share + 1e-12).log()).sum()
    return entropy.exp().item()


def spread(x: Tensor) -> float:
    """Return the mean standard deviation of the unit embeddings' coordinates, times sqrt(d).

    It is 1 for embeddings spread evenly over the sphere and 0 for collapsed embeddings.
    """
    deviation = F.normalize(x.double()).std(dim=0).mean()
    dimensions = x.shape[1]
    return (deviation * dimensions**0.5).item()


def singular_values(x: Tensor, centred: bool = False) -> Tensor:
    """Return the singular values in descending order, from the smaller Gram matrix in float64."""
    x = x.double()
    if centred:
        x = x - x.mean(dim=0)
    rows, columns = x.shape
    gram = x.T @ x if rows >= columns else x @ x.T
    eigenvalues = torch.linalg.eigvalsh(gram)
    return eigenvalues.clamp_min(0).sqrt().flip(0)
