"""Features of a whole data set: pooled from a frozen backbone, or the raw pixels as the baseline without one."""

from collections.abc import Iterable, Sequence
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
    """One row per image: `x` float32 (N, D) and the class `y` int64 (N), both on the CPU."""

    x: Tensor
    y: Tensor


@torch.no_grad()
def extract(
    backbone: nn.Module | None,
    dataset: Dataset,
    mean: Sequence[float],
    std: Sequence[float],
    batch_size: int = 256,
    device: str | torch.device = 'cpu',
    workers: int = 0,
    label: str = 'features',
) -> Features:
    """Run every image through `backbone`, in order; without a backbone the normalised pixels are the features."""
    mean_c11, std_c11 = (torch.tensor(list(v), device=device).view(-1, 1, 1) for v in (mean, std))
    if backbone is not None:
        backbone.to(device, memory_format=torch.channels_last).eval()
    loader = DataLoader(dataset, batch_size, num_workers=workers, collate_fn=_collate)
    xs, ys = [], []
    for images, y in _progress(loader, label):
        images = (images.to(device).float() / 255 - mean_c11) / std_c11
        x = (
            images.flatten(1)
            if backbone is None
            else pooled(backbone(images.contiguous(memory_format=torch.channels_last)))
        )
        xs.append(x.float().cpu())
        ys.append(y)
    if not xs:
        raise UserError(f'no images to evaluate: {dataset} is empty; check the evaluation data in the config')
    features = Features(torch.cat(xs), torch.cat(ys))
    _require_sound(features)
    return features


def _collate(items: list[dict]) -> tuple[Tensor, Tensor]:
    images = torch.stack([item['inputs'][0] for item in items])
    return images, torch.tensor([item['data_samples']['label'] for item in items])


def _progress(loader: DataLoader, label: str) -> Iterable:
    console = Console(stderr=True)
    return track(loader, label, console=console, transient=True) if console.is_terminal else loader


def _require_sound(features: Features) -> None:
    broken = (~features.x.isfinite()).any(dim=1)
    if broken.any():
        first = int(broken.nonzero()[0])
        raise UserError(
            f'{int(broken.sum())} of {len(broken)} images have NaN or infinite features, image {first} first; '
            'the pre-training has diverged, use an earlier checkpoint'
        )
    if int(features.y.min()) < 0:
        raise UserError('the evaluation data has images without a label; name a labelled data set under cfg.evaluation')
