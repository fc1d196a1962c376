"""Compare how fast mmairl and Pillow decode images, and how fast mmairl and MoCo v2's release load them."""

import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import cv2
import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets, transforms

from mmairl.config import load_config
from mmairl.data.datasets import ImageFolder
from mmairl.data.decode import decode_bytes
from projects.benchmark.timing import Case

BATCH = 32
QUALITY = 90
SIZE = (500, 375)  # width and height of a typical photograph of ImageNet
VIEW = load_config('mmairl::_base_/views/mocov2.py').mocov2_view


def loader(device: str, quick: bool) -> Iterator[Case]:
    """Compare loaders on the CPU. They read drawn JPEGs, about as large as those of ImageNet, from a temporary folder."""
    count, workers = (16, (0,)) if quick else (512, (0, 1, 2))
    with TemporaryDirectory() as folder:
        root = Path(folder) / 'images'
        files = [path.read_bytes() for path in write(root, count)]
        yield decoding(files[:64])
        for number in workers:
            ours = epoch(ImageFolder(root, views=[VIEW, VIEW]), number)
            theirs = epoch(Released(root), number)
            name = f'load {count} images with two views, {number} workers'
            yield Case(name, "MoCo v2's release", ours, theirs)


def write(root: Path, count: int) -> list[Path]:
    """Write drawn photographs of about 85 kB in eight classes."""
    files = []
    for number in range(count):
        path = root / f'class{number % 8}' / f'{number}.jpg'
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photograph(number)).save(path, quality=QUALITY)
        files.append(path)
    return files


def photograph(seed: int) -> np.ndarray:
    """Return an image (H, W, C) of smooth colors with some noise. Its JPEG is about as large as a photograph of ImageNet."""
    generator = np.random.default_rng(seed)
    colors = generator.random((12, 16, 3), np.float32)
    smooth = cv2.resize(colors, SIZE, interpolation=cv2.INTER_CUBIC)
    noise = generator.normal(0, 0.06, smooth.shape)
    return (255 * (smooth + noise).clip(0, 1)).astype(np.uint8)


def decoding(files: list[bytes]) -> Case:
    name = f'decode {len(files)} JPEGs of 500 x 375'
    ours = lambda: [decode_bytes(data) for data in files]  # noqa: E731
    pillow = lambda: [with_pillow(data) for data in files]  # noqa: E731
    return Case(name, 'Pillow alone', ours, pillow, same_pixels)


def with_pillow(data: bytes) -> Tensor:
    pixels = np.array(Image.open(io.BytesIO(data)).convert('RGB'))
    return torch.from_numpy(pixels).permute(2, 0, 1)


def same_pixels(ours: list[Tensor], theirs: list[Tensor]) -> None:
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


class Released(Dataset):
    """The loader of MoCo's main_moco.py without Normalize, because mmairl normalizes on the device."""

    def __init__(self, root: Path) -> None:
        self.files = datasets.ImageFolder(str(root))
        self.view = transforms.Compose(
            [
                transforms.RandomResizedCrop(224, scale=(0.2, 1.0)),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.RandomApply([blur], p=0.5),
                transforms.RandomHorizontalFlip(),
                transforms.PILToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> list[Tensor]:
        image, _ = self.files[index]
        return [self.view(image), self.view(image)]


def blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def epoch(dataset: Dataset, workers: int) -> Callable[[], object]:
    """Return a function that loads all batches. Data workers persist between calls, and all calls draw the same views."""
    batches = DataLoader(dataset, BATCH, num_workers=workers, persistent_workers=workers > 0)

    def run() -> None:
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(0)
        for _ in batches:
            pass

    return run
