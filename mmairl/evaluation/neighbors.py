"""Nearest neighbors by cosine similarity: exact, and in blocks, so that device memory does not grow with the bank."""

import torch
import torch.nn.functional as F
from torch import Tensor

TEMPERATURE = 0.07
QUERY_BLOCK = 2048
BANK_BLOCK = 65536


@torch.inference_mode()
def nearest(
    query: Tensor, bank: Tensor, k: int, device: str | torch.device = 'cpu'
) -> tuple[Tensor, Tensor]:
    """Return the cosine similarities and positions, both (N, k), of the k bank rows nearest to each query row.

    The queries stay on the device. Each block of the bank, which may exceed the device's memory, is moved there once.
    """
    queries = [F.normalize(block.to(device)) for block in query.split(QUERY_BLOCK)]
    similarities = [rows.new_empty(len(rows), 0) for rows in queries]
    positions = [rows.long() for rows in similarities]
    for start in range(0, len(bank), BANK_BLOCK):
        block = F.normalize(bank[start : start + BANK_BLOCK].to(device)).T
        for number, rows in enumerate(queries):
            similarity, position = _top(rows @ block, k)
            # A row outside a block's best k can never be among the best of all.
            candidates = torch.cat([similarities[number], similarity], dim=1)
            origins = torch.cat([positions[number], position + start], dim=1)
            similarities[number], order = _top(candidates, k)
            positions[number] = origins.gather(1, order)
    return torch.cat(similarities).cpu(), torch.cat(positions).cpu()


def _top(similarity: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the values and columns of the k largest of each row, or of all if there are fewer."""
    values, columns = similarity.topk(min(k, similarity.shape[1]))
    return values, columns


def vote(
    similarity: Tensor, labels: Tensor, classes: int, temperature: float = TEMPERATURE
) -> Tensor:
    """Return class scores (N, classes): each neighbor adds exp(similarity / temperature) to its class.

    The weights of a row are divided by its largest, which changes no order and cannot overflow.
    """
    scores = torch.zeros(len(similarity), classes, dtype=torch.float64)
    similarity = similarity.double()
    nearness = similarity - similarity.amax(dim=1, keepdim=True)
    return scores.scatter_add_(1, labels, (nearness / temperature).exp())
