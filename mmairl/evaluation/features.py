"""Features of a whole data set: pooled from a frozen backbone, or the raw pixels as the baseline without one."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmairl.errors import UserError
from mmairl.models.siamese import pooled


@dataclass(frozen=True)
class Features:
    """One row per image, on the CPU: `x` float32 (N, D), and `y` its class int64 (N), or (N, classes) of 1, 0 and -1."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Extraction:
    """How images become features: the statistics they are normalised by, and what the work is done on."""

    mean: Sequence[float]
    std: Sequence[float]
    batch_size: int = 256
    device: str | torch.device = 'cpu'
    workers: int = 0

    @torch.no_grad()
    def batches(
        self, backbone: nn.Module | None, dataset: Dataset, label: str = 'features'
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and labels batch by batch, in order; without a backbone the normalised pixels are the features."""
        if backbone is not None:
            backbone.to(self.device, memory_format=torch.channels_last).eval()
        for images, y in self.images(dataset, label):
            x = images.flatten(1) if backbone is None else pooled(backbone(images))
            yield x.float().cpu(), y

    def images(self, dataset: Dataset, label: str) -> Iterator[tuple[Tensor, Tensor]]:
        """What a network is given, batch by batch, with the labels."""
        mean_c11, std_c11 = (torch.tensor(list(v), device=self.device).view(-1, 1, 1) for v in (self.mean, self.std))
        loader = DataLoader(
            dataset,
            self.batch_size,
            num_workers=self.workers,
            collate_fn=_collate,
            pin_memory=torch.device(self.device).type == 'cuda',
        )
        for images, y in _progress(loader, label):
            images = (images.to(self.device, non_blocking=True).float() / 255 - mean_c11) / std_c11
            yield images.contiguous(memory_format=torch.channels_last), y


def extract(backbone: nn.Module | None, dataset: Dataset, how: Extraction, label: str = 'features') -> Features:
    """Every image's features, in order and in memory."""
    parts = list(how.batches(backbone, dataset, label))
    if not parts:
        raise UserError(f'no images to evaluate: {dataset} is empty; check the evaluation data in the config')
    features = Features(*(torch.cat(column) for column in zip(*parts)))
    require_sound(features)
    return features


def _collate(items: list[dict]) -> tuple[Tensor, Tensor]:
    images = torch.stack([item['inputs'][0] for item in items])
    return images, torch.stack([torch.as_tensor(item['data_samples']['label']) for item in items])


def _progress(loader: DataLoader, label: str) -> Iterable:
    console = Console(stderr=True)
    return track(loader, label, console=console, transient=True) if console.is_terminal else loader


def require_sound(features: Features, first_image: int = 0) -> None:
    """Refuse features that no protocol can make sense of; `first_image` is the index of the first row."""
    broken = (~features.x.isfinite()).any(dim=1)
    if broken.any():
        first = first_image + int(broken.nonzero()[0])
        raise UserError(
            f'{int(broken.sum())} of {len(broken)} images have NaN or infinite features, image {first} first; '
            'the pre-training has diverged, use an earlier checkpoint'
        )
    if features.y.ndim == 1 and len(features.y) and int(features.y.min()) < 0:
        raise UserError('the evaluation data has images without a label; name a labelled data set under cfg.evaluation')
