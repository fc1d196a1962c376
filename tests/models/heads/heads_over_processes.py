"""Script that computes the loss and the gradients of each head on a batch shared by several processes.

Rank 0 saves the results.
"""

import sys

import torch
from mmengine.dist import all_reduce, get_rank, get_world_size

from mmairl.engine.distributed import start_processes
from mmairl.models.heads.barlow import BarlowTwinsHead
from mmairl.models.heads.dino import DINOHead
from mmairl.models.heads.lejepa import LeJEPAHead
from mmairl.models.heads.mocov3 import BatchContrastiveHead
from mmairl.models.heads.swav import SwAVHead
from mmairl.models.heads.vicreg import VICRegHead
from mmairl.models.processes import gather
from mmairl.signals import stop_processes

ROWS, WIDTH = 12, 5
HEADS = {
    'barlow': BarlowTwinsHead,
    'dino': lambda: DINOHead(prototypes=WIDTH),
    'lejepa': lambda: LeJEPAHead(slices=7),
    'mocov3': BatchContrastiveHead,
    'swav': lambda: SwAVHead(channels=WIDTH, prototypes=6),
    'vicreg': VICRegHead,
}


def step(name: str) -> dict[str, torch.Tensor]:
    """Return the mean loss over all processes, the gradients of the queries and of the head's weights, and the buffers of
    the head.
    """
    torch.manual_seed(3)
    head = HEADS[name]().double()
    views = torch.randn(4, ROWS, WIDTH, dtype=torch.float64)
    share = views.unflatten(1, (get_world_size(), -1))[:, get_rank()]
    q = {view: share[view].clone().requires_grad_() for view in (0, 1)}
    # LeJEPAHead samples random slices. Although each process has its own seed here, all processes
    # must use the slices of the first process.
    torch.manual_seed(5 + get_rank())
    loss = head(q, {view: share[2 + view] for view in (0, 1)}, None)['loss']
    loss.backward()
    gradients = {f'q{view}': gather(z.grad) / get_world_size() for view, z in q.items()}
    shared = {'loss': loss.detach(), **{key: weight.grad for key, weight in head.named_parameters()}}
    for value in shared.values():
        all_reduce(value, 'mean')
    return gradients | shared | dict(head.named_buffers())


if __name__ == '__main__':
    start_processes('pytorch')
    saved = {name: step(name) for name in HEADS}
    if get_rank() == 0:
        torch.save(saved, sys.argv[1])
    stop_processes()
