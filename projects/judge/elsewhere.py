"""Train BYOL in a plain torch loop, as external code would: python -m projects.judge.elsewhere

docs/how-to/external_checkpoints.md explains how to compare the checkpoints with mmairl's.

Network, images, crops, probability of grayscale and batch size are those of mmairl's BYOL with LARS at the scale (size of data,
networks and schedules) that --scale names. Everything else is defined in this file. A checkpoint with the keys of Lightning is
written for each seed.
"""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms import v2

from mmairl.registry import MODELS
from projects.judge.sizes import Sizes, lightning, main

RATE, MOMENTUM, DECAY, TAU = 0.05, 0.9, 1e-4, 0.99


class Network(nn.Module):
    """A backbone and a projector."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.backbone = MODELS.build(sizes.network)
        self.projector = mlp(*sizes.widths)

    def forward(self, images: Tensor) -> Tensor:
        return self.projector(self.backbone(images)[-1].mean(dim=(2, 3)))


def mlp(channels: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(channels, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out)
    )


def train(seed: int, sizes: Sizes, images: Tensor, epochs: int) -> dict:
    """Train with this seed, and return a checkpoint."""
    torch.manual_seed(seed)
    _, hidden, out = sizes.widths
    student, predictor = Network(sizes), mlp(out, hidden, out)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD(
        [*student.parameters(), *predictor.parameters()], RATE, MOMENTUM, weight_decay=DECAY
    )
    crop = sizes.view_step('RandomResizedCrop')
    view = v2.Compose(
        [
            v2.RandomResizedCrop(crop['size'], scale=crop['scale'], antialias=True),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(p=sizes.view_step('RandomGrayscale')['p']),
        ]
    )
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(sizes.batch):
            one, two = (
                normal(torch.stack([view(image) for image in images[rows]])) for _ in range(2)
            )
            loss = sum(
                -F.cosine_similarity(predictor(student(a)), teacher(b)).mean() / 2
                for a, b in ((one, two), (two, one))
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for teacher_weight, student_weight in zip(teacher.parameters(), student.parameters()):
                teacher_weight.lerp_(student_weight.detach(), 1 - TAU)
            step += 1
    return lightning(
        student.state_dict(), optimizer, epochs, step, dict(batch=sizes.batch, tau=TAU)
    )


def normal(images: Tensor) -> Tensor:
    return (images / 255 - 0.5) / 0.25


if __name__ == '__main__':
    main(train, __doc__, 'work_dirs/elsewhere', epochs=3)
