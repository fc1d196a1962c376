"""Train BYOL with solo-learn's code, at the size of mmairl's studies: python -m projects.judge.sololearn_byol

docs/how-to/external_checkpoints.md explains how to compare the checkpoints with mmairl's.

From solo-learn (1.0.2, bash_files/pretrain/imagenet/byol.sh): the views by Pillow with bicubic crops, the heads, the loss,
LARS around SGD, a learning rate of 0.45 per 256 images (mmairl: 0.3) that changes once per epoch and starts at 0.003, and
accumulated gradients. As in solo-learn, the teacher is updated after each step.

From mmairl's BYOL with LARS at the scale (size of data, networks and schedules) that --scale names: network, widths of the
heads, images, crops, grayscale, mean and deviation of the pixels, batch, epochs, warm-up, and the factors by which the scale
changes the learning rate and 1 - momentum. There is no 16-bit precision, no DALI and no online classifier (its gradients would
not reach the network).

solo-learn imports parts of Lightning that Lightning 2 no longer has, so only the four required files are imported.
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
# Gradients are accumulated over four parts of a batch, as in explain_sololearn.yaml. solo-learn's release uses 16 parts of
# 256 images.
PASSES = 4
BLUR, SOLARIZE = (1.0, 0.1), (0.0, 0.2)


class SoloBYOL(nn.Module):
    """Student and teacher of BYOL, with solo-learn's names of modules. The teacher starts as a copy of the student."""

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
        """Take a step with gradients accumulated over parts of the batch, update the teacher, and return the loss."""
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
    """Return both views of solo-learn's recipe, which return Pillow images, with the crops and grayscale of `sizes`."""
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
    """Return the learning rate of an epoch, relative to its maximum, by the warm-up and cosine schedule of lightning-bolts.

    >>> [round(rate(epoch, 5, 1), 4) for epoch in range(5)]
    [0.0067, 1.0, 0.8536, 0.5, 0.1464]
    """
    if epoch < warm_up:
        return FIRST + (1 - FIRST) * epoch / max(1, warm_up - 1)
    return (1 + math.cos(math.pi * (epoch - warm_up) / (epochs - warm_up))) / 2


def train(seed: int, sizes: Sizes, images: Tensor, epochs: int) -> dict:
    """Train with this seed, and return a checkpoint whose weights are named as in solo-learn."""
    torch.manual_seed(seed)
    random.seed(seed)  # solo-learn's blur uses Python's generator
    model = SoloBYOL(sizes.backbone(), *sizes.widths).train().to(memory_format=torch.channels_last)
    optimizer, teacher = model.optimizer(FASTER * sizes.rate), TEACHER.MomentumUpdater(sizes.tau)
    epoch_steps = sizes.per_epoch(images)
    for step, batch in enumerate(sizes.batches(images, views(sizes), epochs)):
        for group in optimizer.param_groups:
            group['lr'] = FASTER * sizes.rate * rate(step // epoch_steps, epochs, sizes.warm_up)
        model.step(batch, optimizer, teacher)
        teacher.update_tau(step + 1, epochs * epoch_steps)
    settings = dict(
        batch_size=sizes.batch // PASSES,
        accumulate_grad_batches=PASSES,
        base_tau_momentum=sizes.tau,
    )
    return lightning(model.state_dict(), optimizer, epochs, epochs * epoch_steps, settings)


if __name__ == '__main__':
    main(train, __doc__, 'work_dirs/sololearn')
