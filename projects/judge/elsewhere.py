"""BYOL by a plain loop of torch, as somebody else's code would train it, for docs/judge.md: python -m projects.judge.elsewhere

The network and the images are those of the scale `demo`; the rest is this file's own. Each seed leaves a checkpoint with the
keys that Lightning writes.
"""

import argparse
import copy
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.transforms import v2

from mmairl.data.shapes import Shapes
from mmairl.models.resnet import ResNet

VIEW = v2.Compose(
    [
        v2.RandomResizedCrop(28, scale=(0.2, 0.6), antialias=True),
        v2.RandomHorizontalFlip(),
        v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
        v2.RandomGrayscale(p=1.0),
    ]
)
RATE, MOMENTUM, DECAY, BATCH, TAU = 0.05, 0.9, 1e-4, 256, 0.99


class Network(nn.Module):
    """A backbone and a projector."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = ResNet(depth=18, stem_channels=16, base_channels=16)
        self.projector = mlp(128)

    def forward(self, images: Tensor) -> Tensor:
        return self.projector(self.backbone(images)[-1].mean(dim=(2, 3)))


def mlp(channels: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(channels, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 64))


def train(seed: int, images: Tensor, epochs: int) -> dict:
    """Train from a seed, and return a checkpoint."""
    torch.manual_seed(seed)
    student, predictor = Network(), mlp(64)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.SGD([*student.parameters(), *predictor.parameters()], RATE, MOMENTUM, weight_decay=DECAY)
    step = 0
    for _ in range(epochs):
        for rows in torch.randperm(len(images)).split(BATCH):
            one, two = (torch.stack([normal(VIEW(image)) for image in images[rows]]) for _ in range(2))
            loss = sum(
                -F.cosine_similarity(predictor(student(a)), teacher(b)).mean() / 2 for a, b in ((one, two), (two, one))
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            for own, theirs in zip(teacher.parameters(), student.parameters()):
                own.lerp_(theirs.detach(), 1 - TAU)
            step += 1
    return lightning(student, optimizer, epochs, step, dict(batch=BATCH, tau=TAU))


def lightning(network: nn.Module, optimizer: torch.optim.Optimizer, epochs: int, steps: int, settings: dict) -> dict:
    """Return a checkpoint with the keys that Lightning writes."""
    return {
        'pytorch-lightning_version': '2.5.0',
        'epoch': epochs - 1,
        'global_step': steps,
        'state_dict': network.state_dict(),
        'optimizer_states': [optimizer.state_dict()],
        'hyper_parameters': settings,
    }


def normal(image: Tensor) -> Tensor:
    return (image / 255 - 0.5) / 0.25


def main(train: Callable[[int, Tensor, int], dict], about: str, epochs: int, out: str) -> None:
    """Train from each seed on drawn images, and write a checkpoint each."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument('--seeds', type=int, nargs='+', default=[0, 1, 2])
    parser.add_argument('--epochs', type=int, default=epochs)
    parser.add_argument('--images', type=int, default=12_000)
    parser.add_argument('--out', type=Path, default=Path(out))
    args = parser.parse_args()
    data = Shapes(split='train', count=args.images, size=48)
    images = torch.stack([data.raw(index) for index in range(args.images)])
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        torch.save(train(seed, images, args.epochs), args.out / f'seed_{seed}.ckpt')
        print(args.out / f'seed_{seed}.ckpt', flush=True)


if __name__ == '__main__':
    main(train, __doc__, epochs=3, out='work_dirs/elsewhere')
