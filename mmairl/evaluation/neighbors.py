"""Find exact nearest neighbors by cosine similarity.

The bank is the set of rows that is searched. It is searched in blocks, so that device memory does not grow with its size.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.07
QUERY_BLOCK = 2048
BANK_BLOCK = 8192  # number of rows; with 2048 features in float64, they take 128 MiB
RESOLUTION = 1e-6  # If two cosines differ by less than this, float32 may order them wrongly.
LEAST_EXPONENT = -126  # smallest exponent of normal numbers in float32


@torch.inference_mode()
def nearest(
    query: Tensor,
    bank: Tensor,
    k: int,
    device: str | torch.device = 'cpu',
    cuts: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the cosine similarities and the row indices, both (N, k), of the k bank rows nearest to each query row.

    The search runs in float32. For some queries, the cosines of two rows differ so little that float32 cannot decide which
    row is the last neighbor. The search for these queries is repeated in float64. Such queries are common if a network has
    collapsed.

    Args:
        query: Rows to find neighbors of.
        bank: Rows to search.
        k: Number of neighbors. If the bank has fewer rows, all rows are returned.
        device: Device of the search. It keeps all queries and receives each block of the bank once per search.
        cuts: Numbers of neighbors that the caller uses, such as 20 and 200. The set of nearest rows is exact for each of
            them. Default: only `k`.
    """
    similarity, position = _search(query, bank, k + 1, device, torch.float32)
    similarity = similarity.double()
    gaps = similarity[:, :-1] - similarity[:, 1:]
    ends = [cut - 1 for cut in cuts or [k] if cut <= gaps.shape[1]]
    similarity = similarity[:, :k]
    position = position[:, :k]
    is_close = gaps[:, ends] < RESOLUTION
    unclear = is_close.any(1)
    if unclear.any():
        exact = _search(query[unclear], bank, k, device, torch.float64)
        similarity[unclear], position[unclear] = exact
    return similarity, position


def unit_rows(x: Tensor) -> Tensor:
    """Scale each row to length 1, even if its values are near the limits of float32.

    Rows are first divided by a power of two, because the squares of values like 1e20 would overflow in float32.
    """
    largest = x.abs().amax(1, keepdim=True)
    exponent = torch.frexp(largest).exponent.clamp_min(LEAST_EXPONENT)
    return F.normalize(torch.ldexp(x, -exponent))


def _search(
    query: Tensor, bank: Tensor, k: int, device: str | torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    queries = []
    similarities = []
    positions = []
    for block in query.split(QUERY_BLOCK):
        rows = unit_rows(block.to(device, dtype))
        queries.append(rows)
        similarities.append(rows[:, :0])
        positions.append(rows[:, :0].long())
    for start in range(0, len(bank), BANK_BLOCK):
        block = bank[start : start + BANK_BLOCK].to(device, dtype)
        block = unit_rows(block).T
        for number, rows in enumerate(queries):
            similarity, position = _top(rows @ block, k)
            # A row that is not among the best k of its block cannot be among the best k of the bank.
            candidates = torch.cat([similarities[number], similarity], dim=1)
            origins = torch.cat([positions[number], position + start], dim=1)
            similarities[number], order = _top(candidates, k)
            positions[number] = origins.gather(1, order)
    return torch.cat(similarities).cpu(), torch.cat(positions).cpu()


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the values and column indices of the k largest entries of each row (all entries if there are fewer)."""
    return similarity.topk(min(k, similarity.shape[1]))


def vote(
    similarity: Tensor, labels: Tensor, classes: int, temperature: float = TEMPERATURE
) -> Tensor:
    """Return class scores from the votes of nearest neighbors, (N, classes).

    Each neighbor adds the weight exp(similarity / temperature) to the score of its class. In each row, the weights are
    divided by the largest weight, so that they cannot overflow. The division does not change the order of the scores.
    """
    similarity = similarity.double()
    nearness = similarity - similarity.amax(dim=1, keepdim=True)
    weights = (nearness / temperature).exp()
    scores = similarity.new_zeros(len(similarity), classes)
    return scores.scatter_add_(1, labels, weights)
