"""A made-up run: class-coloured images, two results, curves; enough to draw every section of a page."""

import json
from pathlib import Path

import pytest
import torch
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.evaluation.protocol import Result
from mmairl.registry import DATASETS, MODELS


@DATASETS.register_module(force=True)
class Blobs(Dataset):
    """`count` noisy images of three colours."""

    classes = ('red', 'green', 'blue')

    def __init__(self, count: int, seed: int = 0, size: int = 16) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(count) % 3
        self.images = torch.randint(0, 120, (count, 3, size, size), generator=generator, dtype=torch.uint8)
        self.images[torch.arange(count), self.labels] += 100

    def __len__(self) -> int:
        return len(self.labels)

    def raw(self, index: int) -> Tensor:
        return self.images[index]

    def __getitem__(self, index: int) -> dict:
        return {'inputs': [self.images[index]], 'data_samples': {'label': int(self.labels[index]), 'index': index}}


@MODELS.register_module(force=True)
class FlipViews(nn.Module):
    """Two normalised views of a batch: the image and its mirror image."""

    def __init__(self, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.mean, self.std = (torch.tensor(v).view(-1, 1, 1) for v in (mean, std))

    def forward(self, batch: dict, training: bool) -> dict:
        view = (batch['inputs'][0] / 255 - self.mean) / self.std
        return {**batch, 'inputs': [view, view.flip(-1)]}


@pytest.fixture
def cfg() -> Config:
    return Config(
        {
            'model': {'data_preprocessor': {'type': 'FlipViews', 'mean': [0.5] * 3, 'std': [0.25] * 3}},
            'train_dataloader': {'dataset': {'type': 'Blobs', 'count': 60}},
            'evaluation': {
                'train': {'type': 'Blobs', 'count': 60},
                'test': {'type': 'Blobs', 'count': 30, 'seed': 1},
            },
        }
    )


@pytest.fixture
def results() -> list[Result]:
    rows = (('raw pixels', 31.2, 40.0), ('random initialisation', 25.04, 33.3), ('trained <student>', 71.9, 80.5))
    return [Result(name, {'k-NN, k = 20': knn, 'linear': linear}, 1.5) for name, knn, linear in rows]


@pytest.fixture
def work_dir(tmp_path: Path) -> Path:
    for stamp, scale in (('20240101_000000', 9.0), ('20240102_000000', 1.0)):
        lines = [
            {'loss': scale * 5 / i, 'instance_accuracy': 1 - 1 / i, 'lr': 0.1, 'momentum': 0.99, 'step': 10 * i}
            for i in range(1, 8)
        ]
        file = tmp_path / stamp / 'vis_data' / 'scalars.json'
        file.parent.mkdir(parents=True)
        file.write_text('\n'.join(map(json.dumps, lines)) + '\n{"loss": 0.1, "st')
    return tmp_path
