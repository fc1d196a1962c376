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
    no_similarity = torch.empty(len(query), 0, device=device, dtype=query.dtype)
    no_position = no_similarity.long()
    best = list(zip(no_similarity.split(QUERY_BLOCK), no_position.split(QUERY_BLOCK)))
    for start in range(0, len(bank), BANK_BLOCK):
        rows = F.normalize(bank[start : start + BANK_BLOCK].to(device)).T
        for number, block in enumerate(queries):
            similarity = block @ rows
            top, position = similarity.topk(min(k, similarity.shape[1]))
            best[number] = _merged(best[number], (top, position + start), k)
    similarity, position = (torch.cat(parts).cpu() for parts in zip(*best))
    return similarity, position


def _merged(
    best: tuple[Tensor, Tensor], block: tuple[Tensor, Tensor], k: int
) -> tuple[Tensor, Tensor]:
    """Return the k best of two sets of candidates. A row outside a block's best k can never be among the best of all."""
    similarity = torch.cat([best[0], block[0]], dim=1)
    position = torch.cat([best[1], block[1]], dim=1)
    top, kept = similarity.topk(min(k, similarity.shape[1]))
    return top, position.gather(1, kept)


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
