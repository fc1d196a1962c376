"""Script that computes the loss and the gradients of each head on a batch shared by several processes.

Rank 0 saves the results.
"""

import sys

import torch
from mmengine.dist import all_reduce, get_rank, get_world_size

from mmairl.config import load_config
from mmairl.engine.distributed import start_processes
from mmairl.models.heads.barlow import BarlowTwinsHead
from mmairl.models.heads.dino import DINOHead
from mmairl.models.heads.lejepa import LeJEPAHead
from mmairl.models.heads.mocov3 import BatchContrastiveHead
from mmairl.models.heads.swav import SwAVHead
from mmairl.models.heads.vicreg import VICRegHead
from mmairl.models.processes import gather
from mmairl.registry import MODELS
from mmairl.signals import stop_processes

ROWS, WIDTH = 12, 5
HEADS = {
    'barlow': BarlowTwinsHead,
    'dino': lambda: DINOHead(prototypes=WIDTH),
    'dino_sinkhorn': lambda: DINOHead(prototypes=WIDTH, targets='sinkhorn'),
    'lejepa': lambda: LeJEPAHead(slices=7),
    'mocov3': BatchContrastiveHead,
    'swav': lambda: SwAVHead(channels=WIDTH, prototypes=6),
    'vicreg': VICRegHead,
}

MASKED = ('ibot', 'ibot_sinkhorn')


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
    shared = {
        'loss': loss.detach(),
        **{key: weight.grad for key, weight in head.named_parameters()},
    }
    for value in shared.values():
        all_reduce(value, 'mean')
    return gradients | shared | dict(head.named_buffers())


def masked_step(name: str) -> dict[str, torch.Tensor]:
    """Return the mean loss and gradients of a step of a method with masked patches, and the centers after the step."""
    cfg = load_config(f'mmairl::methods/{name}_vit_s16_800e.py')
    arch = dict(embed_dims=16, num_layers=1, num_heads=2, feedforward_channels=32)
    cfg.model.backbone.update(arch=arch, img_size=32, patch_size=8, drop_path_rate=0.0)
    for part in (cfg.model.projector, cfg.model.get('patch_projector') or {}):
        part.update(in_channels=16, hidden_channels=24, out_channels=8, prototypes=WIDTH)
    cfg.model.head.prototypes = WIDTH
    cfg.model.data_preprocessor = dict(type='BaseDataPreprocessor')
    torch.manual_seed(3)
    model = MODELS.build(cfg.model).double()
    views = torch.randn(2, ROWS, 3, 32, 32, dtype=torch.float64)
    # ResumableSampler gives the images of a batch to the processes in turn.
    loss = model([view[get_rank() :: get_world_size()] for view in views], mode='loss')['loss']
    loss.backward()
    shared = {'loss': loss.detach()}
    shared |= {
        key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None
    }
    for value in shared.values():
        all_reduce(value, 'mean')
    return shared | dict(model.head.named_buffers())


if __name__ == '__main__':
    start_processes('pytorch')
    saved = {name: step(name) for name in HEADS} | {name: masked_step(name) for name in MASKED}
    if get_rank() == 0:
        torch.save(saved, sys.argv[1])
    stop_processes()
