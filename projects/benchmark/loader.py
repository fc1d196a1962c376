"""Compare how fast mmairl and torchvision find, decode and load images."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision import datasets
from torchvision.io import decode_jpeg

from mmairl.data.datasets import ImageFolder
from mmairl.data.decode import decode_bytes
from projects.benchmark.augment import VIEW, photograph, seeded, torchvision_released
from projects.benchmark.timing import Case

BATCH = 32
QUALITY = 90


def loader(device: str, quick: bool) -> Iterator[Case]:
    """Compare loaders on the CPU. They read drawn JPEGs, about as large as those of ImageNet, from a temporary folder."""
    count, workers = (16, (0,)) if quick else (512, (0, 1, 2))
    with TemporaryDirectory() as folder:
        root = Path(folder) / 'images'
        files = write(root, count)
        yield from decoding([path.read_bytes() for path in files[:64]])
        yield Case(
            f'find {count} images in folders',
            "torchvision's folder",
            lambda: ImageFolder(root),
            lambda: datasets.ImageFolder(str(root)),
            images=count,
        )
        for number in workers:
            yield Case(
                f'loader with two views, {number} workers',
                'torchvision on PIL, as released',
                epoch(ImageFolder(root, views=[VIEW, VIEW]), number),
                epoch(Released(root), number),
                images=count,
            )


def write(root: Path, count: int) -> list[Path]:
    """Write drawn photographs of about 85 kB in eight classes."""
    files = []
    for number in range(count):
        files.append(root / f'class{number % 8}' / f'{number}.jpg')
        files[-1].parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(number)).save(files[-1], quality=QUALITY)
    return files


def decoding(files: list[bytes]) -> Iterator[Case]:
    name = f'decode {len(files)} JPEGs of 500 x 375'
    arrays = [torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in files]
    peers: dict[str, Callable[[], list[Tensor]]] = {
        'Pillow alone': lambda: [with_pillow(data) for data in files],
        'torchvision.io': lambda: [decode_jpeg(data) for data in arrays],
    }
    for peer_name, peer in peers.items():
        ours = lambda: [decode_bytes(data) for data in files]  # noqa: E731
        yield Case(name, peer_name, ours, peer, same_pixels, len(files))


def with_pillow(data: bytes) -> Tensor:
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data)).convert('RGB'))).permute(2, 0, 1)


class Released(Dataset):
    """The loader of MoCo v2's release: torchvision's folder and two crops by PIL."""

    def __init__(self, root: Path) -> None:
        self.files, self.view = datasets.ImageFolder(str(root)), torchvision_released()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[Tensor]:
        image = self.files[index][0]
        return [self.view(image), self.view(image)]


def epoch(dataset: Dataset, workers: int) -> Callable[[], object]:
    """Return a function that loads all batches and returns the last one. Data workers persist between calls."""
    batches = DataLoader(
        dataset,
        BATCH,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=default_collate,
    )

    def run() -> object:
        last = None
        for last in batches:  # noqa: B007
            pass
        return last

    return seeded(run)


def same_pixels(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
