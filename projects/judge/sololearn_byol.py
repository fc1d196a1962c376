"""Train BYOL by solo-learn's own code at the size of our rows: python -m projects.judge.sololearn_byol

docs/how-to/external_checkpoints.md compares the checkpoints.

solo-learn's are (1.0.2, bash_files/pretrain/imagenet/byol.sh): the views by Pillow with bicubic crops, the heads, the loss,
its LARS around SGD, 0.45 per 256 images where ours has 0.3, a rate that changes once an epoch and begins at 0.003 per 256,
gradients that are accumulated, and a teacher that moves behind each step. Our rows' are (explain_sololearn.yaml at a scale):
network, widths, images, crops, grey, mean and deviation, batch and its parts, epochs, warm-up, and what the scale multiplies
the rate and the teacher's memory by. Left out: 16 bits, DALI, and both classifiers, from which the network learns nothing.

Its package imports what Lightning 2 has no longer; the four files that are used are read without it.
"""

import copy
import math
import random
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.transforms import Compose

from mmairl.models.backbones import pooled
from projects.judge.elsewhere import mlp
from projects.judge.sizes import Sizes, lightning, main
from projects.parity.compare import source

LARS, LOSS, TEACHER, VIEWS = (
    source('solo', f'{file}.py')
    for file in ('utils/lars', 'losses/byol', 'utils/momentum', 'utils/pretrain_dataloader')
)
FASTER, FIRST = 0.45 / 0.3, 0.003 / 0.45
PASSES = 4  # as the end of explain_sololearn.yaml has it; its release has 16, of 256 images each
BLUR, SOLARIZE = (1.0, 0.1), (0.0, 0.2)


class SoloBYOL(nn.Module):
    """The networks by its names; the teacher starts as a copy."""

    def __init__(self, encoder: nn.Module, features: int, hidden: int, out: int) -> None:
        super().__init__()
        self.encoder, self.projector = encoder, mlp(features, hidden, out)
        self.predictor = mlp(out, hidden, out)
        self.momentum_encoder = copy.deepcopy(self.encoder).requires_grad_(False)
        self.momentum_projector = copy.deepcopy(self.projector).requires_grad_(False)

    def loss(self, views: tuple[Tensor, Tensor]) -> Tensor:
        queries = [self.predictor(self.projector(pooled(self.encoder(view)))) for view in views]
        with torch.no_grad():
            keys = [self.momentum_projector(pooled(self.momentum_encoder(view))) for view in views]
        return sum(LOSS.byol_loss_func(query, key) for query, key in zip(reversed(queries), keys))

    def optimizer(self, rate: float) -> Any:
        parts = (self.encoder, self.projector, self.predictor)
        groups = [dict(params=part.parameters()) for part in parts]
        sgd = torch.optim.SGD(groups, rate, momentum=0.9, weight_decay=1e-6)
        return LARS.LARSWrapper(sgd, eta=0.001, exclude_bias_n_norm=True)

    def step(self, views: list[Tensor], optimizer: Any, teacher: Any) -> Tensor:
        """Take a step on gradients that are accumulated over parts of the batch; the teacher follows."""
        optimizer.zero_grad()
        total = 0.0
        for shares in zip(*(view.chunk(PASSES) for view in views)):
            loss = self.loss(shares) / PASSES
            loss.backward()
            total += loss.detach()
        optimizer.step()
        teacher.update(self.encoder, self.momentum_encoder)
        teacher.update(self.projector, self.momentum_projector)
        return total


def views(sizes: Sizes) -> list[Compose]:
    """Both views of its recipe, in our rows' crops and grey, up to the steps that make numbers of an image."""
    crop, grey = sizes.view_step('RandomResizedCrop'), sizes.view_step('RandomGrayscale')['p']
    size = dict(
        crop_size=crop['size'],
        min_scale=crop['scale'][0],
        max_scale=crop['scale'][1],
        gray_scale_prob=grey,
    )
    colours = dict(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
    kinds = (
        VIEWS.CustomTransform(**colours, **size, gaussian_prob=blur, solarization_prob=solarize)
        for blur, solarize in zip(BLUR, SOLARIZE)
    )
    return [Compose(kind.transform.transforms[:-2]) for kind in kinds]


def rate(epoch: int, epochs: int, warm_up: int) -> float:
    """Return an epoch's part of the rate: lightning-bolts' linear warm-up and cosine, by epochs.

    >>> [round(rate(epoch, 5, 1), 4) for epoch in range(5)]
    [0.0067, 1.0, 0.8536, 0.5, 0.1464]
    """
    if epoch < warm_up:
        return FIRST + (1 - FIRST) * epoch / max(1, warm_up - 1)
    return (1 + math.cos(math.pi * (epoch - warm_up) / (epochs - warm_up))) / 2


def train(seed: int, sizes: Sizes, images: Tensor, epochs: int) -> dict:
    """Train from a seed, and return a checkpoint with solo-learn's names."""
    torch.manual_seed(seed)
    random.seed(seed)  # which blur draws from
    model = SoloBYOL(sizes.backbone(), *sizes.widths).train().to(memory_format=torch.channels_last)
    optimizer, teacher = model.optimizer(FASTER * sizes.rate), TEACHER.MomentumUpdater(sizes.tau)
    per_epoch = sizes.per_epoch(images)
    for step, batch in enumerate(sizes.batches(images, views(sizes), epochs)):
        for group in optimizer.param_groups:
            group['lr'] = FASTER * sizes.rate * rate(step // per_epoch, epochs, sizes.warm_up)
        model.step(batch, optimizer, teacher)
        teacher.update_tau(step + 1, epochs * per_epoch)
    settings = dict(
        batch_size=sizes.batch // PASSES,
        accumulate_grad_batches=PASSES,
        base_tau_momentum=sizes.tau,
    )
    return lightning(model.state_dict(), optimizer, epochs, epochs * per_epoch, settings)


if __name__ == '__main__':
    main(train, __doc__, 'work_dirs/sololearn')
