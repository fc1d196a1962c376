"""k nearest neighbours by cosine similarity: exact, in blocks, so that memory does not grow with the bank."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce, get_rank, get_world_size
from mmengine.logging import print_log
from torch import Tensor

from mmairl.errors import UserError
from mmairl.evaluation.features import Features

TEMPERATURE = 0.07
QUERY_BLOCK, BANK_BLOCK = 2048, 65536


@torch.inference_mode()
def nearest(query: Tensor, bank: Tensor, k: int, device: str | torch.device = 'cpu') -> tuple[Tensor, Tensor]:
    """Cosine similarities and bank positions, both (N, k), of the k rows of `bank` nearest to each row of `query`.

    The queries stay on the device; each block of the bank, which may be larger than the device's memory, goes there once.
    """
    queries = [F.normalize(block.to(device)) for block in query.split(QUERY_BLOCK)]
    empty = torch.empty(len(query), 0, device=device, dtype=query.dtype)
    nearest_yet = list(zip(empty.split(QUERY_BLOCK), empty.long().split(QUERY_BLOCK)))
    for start in range(0, len(bank), BANK_BLOCK):
        rows = F.normalize(bank[start : start + BANK_BLOCK].to(device)).T
        for number, (block, (best, places)) in enumerate(zip(queries, nearest_yet)):
            similarity = block @ rows
            top, position = similarity.topk(min(k, similarity.shape[1]))
            # What falls out of a block's best k can never come back.
            candidates, positions = torch.cat([best, top], dim=1), torch.cat([places, position + start], dim=1)
            best, keep = candidates.topk(min(k, candidates.shape[1]))
            nearest_yet[number] = best, positions.gather(1, keep)
    similarity, position = (torch.cat(parts).cpu() for parts in zip(*nearest_yet))
    return similarity, position


def vote(similarity: Tensor, labels: Tensor, classes: int, temperature: float = TEMPERATURE) -> Tensor:
    """Class scores (N, classes): each neighbour gives its class the weight exp(similarity / temperature).

    A row's weights are divided by its largest, which changes no order and overflows at no temperature.
    """
    scores = torch.zeros(len(similarity), classes, dtype=torch.float64)
    nearness = similarity.double() - similarity.double().amax(dim=1, keepdim=True)
    return scores.scatter_add_(1, labels, (nearness / temperature).exp())


def knn_right(
    train: Features,
    test: Features,
    ks: Sequence[int] = (20, 200),
    temperature: float = TEMPERATURE,
    device: str | torch.device = 'cpu',
) -> dict[int, Tensor]:
    """Mark the images of `test` that are recognised, for each k; the neighbours are searched once for the largest.

    Each process searches for its share of the test images.

    >>> here = Features(torch.eye(3), torch.tensor([0, 1, 2]))
    >>> knn_right(here, here, ks=[1])
    {1: tensor([True, True, True])}
    """
    if max(ks) > len(train.x):
        print_log(f'there are {len(train.x)} training images: all of them vote for a larger k', logger='current')
        ks = sorted({min(k, len(train.x)) for k in ks})
    if train.y.ndim == 2:
        raise UserError('k-NN votes for one class an image and these images have several; measure svm or logreg')
    share = slice(get_rank(), None, get_world_size())
    similarity, position = nearest(test.x[share], train.x, max(ks), device)
    labels, classes = train.y[position], int(train.y.max()) + 1
    votes = (vote(similarity[:, :k], labels[:, :k], classes, temperature).argmax(1) for k in ks)
    right = torch.zeros(len(ks), len(test.y), dtype=torch.int64)
    right[:, share] = torch.stack([predicted == test.y[share] for predicted in votes]).long()
    all_reduce(right)
    return dict(zip(ks, right.bool()))
