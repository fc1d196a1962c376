"""Two runs that store features, the first of which somebody else has begun: storing.py FOLDER."""

import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.engine.distributed import start_processes
from mmairl.errors import stop_processes
from mmairl.evaluation import features
from mmairl.evaluation.features import Extraction, Features

HOW = Extraction((0.5,) * 3, (0.25,) * 3, batch_size=4)


class Ramp(Dataset):
    """Ten images, each of one brightness."""

    labels = torch.arange(10) % 3

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict:
        return dict(inputs=[torch.full((3, 4, 4), index)], data_samples=dict(label=int(self.labels[index])))


class Waits(nn.Module):
    """Leaves a file when it is called, and goes on once another file is there."""

    def __init__(self, called: Path, waited_for: Path | None = None) -> None:
        super().__init__()
        self.called, self.waited_for = called, waited_for

    def forward(self, images: Tensor) -> Tensor:
        self.called.touch()
        wait_for(self.waited_for)
        return images


def wait_for(file: Path | None, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while file is not None and not file.exists():
        assert time.monotonic() < end, f'{file} did not come'
        time.sleep(0.01)


def stored(root: Path, name: str, waited_for: Path | None = None) -> Features:
    network = Waits(root.parent / f'{name}.extracts', waited_for)
    return features.stored(root / 'key.npy', network, Ramp(), HOW)


if __name__ == '__main__':
    folder = Path(sys.argv[1])
    start_processes('pytorch')
    (folder / 'starts').touch()
    for root in ('shared', 'two'):
        stored(folder / root, root)
    stop_processes()
