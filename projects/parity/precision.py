"""Compare gradients in bfloat16 and float32 during training: python -m projects.parity.precision [--write].

BYOL is trained with a ResNet-18 and a ResNet-50 on the data set Shapes, in float32 on a CPU. At some steps, one batch that
is not used for training passes through copies of the network in both precisions. For comparison, the same batch passes
through copies with torchvision's backbones and the same weights.
"""

import argparse
import copy
import re
from collections.abc import Iterator
from pathlib import Path

import torch
import torchvision
from torch import Tensor, nn
from torch.utils.data import DataLoader

from mmairl.config import load_config
from mmairl.engine.run import register
from mmairl.registry import DATASETS, MODELS
from projects.benchmark.step import quiet

TABLES = Path(__file__).with_name('tables.md')
TABLE = re.compile(r'(?<=<!-- precision -->\n).*?(?=<!-- end -->)', re.DOTALL)
# For each depth of the ResNet: the width of its features, and the steps before which gradients are compared.
NETWORKS = {18: (512, (0, 10, 30, 100)), 50: (2048, (0, 10))}
COLUMNS = (
    'ResNet',
    'step',
    'loss',
    'mmairl, median',
    'mmairl, minimum',
    'torchvision, median',
    'torchvision, minimum',
)


def views(batches: int, batch: int, size: int) -> Iterator[list[Tensor]]:
    view = [
        dict(type='RandomResizedCrop', size=size, scale=(0.2, 1.0)),
        dict(type='RandomFlip', p=0.5),
        dict(type='ColorJitter', p=0.8, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1),
    ]
    data = DATASETS.build(
        dict(type='Shapes', split='train', count=batches * batch, size=size, views=[view, view])
    )
    for items in DataLoader(data, batch, shuffle=True):
        yield [images / 127.5 - 1 for images in items['inputs']]


def with_torchvision(model: nn.Module) -> nn.Module:
    """Return a copy of the model in which student and teacher are torchvision's ResNet with the same weights."""
    model = copy.deepcopy(model)
    for network in (model, model.teacher):
        backbone = getattr(torchvision.models, f'resnet{network.backbone.depth}')()
        backbone.fc = nn.Identity()
        backbone.load_state_dict(network.backbone.state_dict())
        network.backbone = backbone
    return model


def cosines(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Return, for each convolution, the cosine between its gradients in float32 and in bfloat16, in ascending order."""
    sides = []
    for enabled in (False, True):
        network = copy.deepcopy(model)  # the forward pass changes batch-norm statistics
        with torch.autocast('cpu', torch.bfloat16, enabled=enabled):
            loss = network(batch, mode='loss')['loss']
        weights = [weight for weight in network.backbone.parameters() if weight.ndim > 1]
        sides.append(torch.autograd.grad(loss, weights))
    return (
        torch.stack([torch.cosine_similarity(*pair, dim=0) for pair in zip(*map(flat, sides))])
        .sort()
        .values
    )


def flat(gradients: tuple[Tensor, ...]) -> list[Tensor]:
    return [gradient.double().flatten() for gradient in gradients]


def rows(depth: int, batch: int = 32, size: int = 64) -> Iterator[str]:
    """Yield a line of the table for each measured step, while the network trains."""
    width, steps = NETWORKS[depth]
    register()
    torch.manual_seed(0)
    cfg = load_config('mmairl::byol_r50_200e.py').model
    cfg.backbone.depth, cfg.projector.in_channels = depth, width
    cfg.projector.hidden_channels = cfg.predictor.hidden_channels = 512
    model = MODELS.build(cfg)
    with quiet():
        model.init_weights()
    learning = [weight for weight in model.train().parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.03, momentum=0.9, weight_decay=1e-4)
    train = views(steps[-1] + 1, batch, size)
    test_batch = next(train)
    for step in range(steps[-1] + 1):
        if step in steps:
            with torch.no_grad(), torch.random.fork_rng():
                loss = copy.deepcopy(model)(test_batch, mode='loss')['loss']
                theirs = with_torchvision(model)
            results = [cosines(network, test_batch) for network in (model, theirs)]
            cells = [f'{result.median():.2f} | {result[0]:.2f}' for result in results]
            yield f'| {depth} | {step} | {loss:.2f} | {" | ".join(cells)} |'
        if step < steps[-1]:
            optimizer.zero_grad()
            model(next(train), mode='loss')['loss'].backward()
            optimizer.step()
            model.teacher.follow(model, 0.99)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--write', action='store_true', help='also write the table to tables.md')
    args = parser.parse_args()
    lines = ['| ' + ' | '.join(COLUMNS) + ' |', '|' + '---|' * len(COLUMNS)]
    for depth in NETWORKS:
        for line in rows(depth):
            print(line, flush=True)
            lines.append(line)
    if args.write:
        TABLES.write_text(TABLE.sub('\n'.join(lines) + '\n', TABLES.read_text()))


if __name__ == '__main__':
    main()
