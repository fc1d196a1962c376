"""Extract features of labeled images: the pooled outputs of a frozen backbone, or raw pixels as a baseline."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from mmengine import Config
from mmengine.dist import is_distributed, is_main_process
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import normalize, require_channels
from mmairl.data.workers import delivered, safe
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.sets import precision_of
from mmairl.models.backbones import pooled
from mmairl.registry import DATASETS

Result = TypeVar('Result')
Batch = tuple[Tensor, Tensor, Tensor]
SECONDS = 30  # number of seconds between two lines of progress in a log


@dataclass(frozen=True)
class Features:
    """Features of a data set, one row per readable image, on the CPU.

    Attributes:
        x: Features in float32, (N, D).
        y: Class of each row in int64, (N,). If images can have several classes, (N, classes) with 1 for yes, 0 for no, and
            -1 for labels that do not count.
        unreadable: Indices in the data set of the images that could not be read. These images have no row.
        groups: Group of each row, such as the patient that an image shows. Rows of one group are held out together.
    """

    x: Tensor
    y: Tensor
    unreadable: tuple[int, ...] = ()
    groups: np.ndarray | None = None


@DATASETS.register_module()
class Readable(Dataset):
    """Wrap a data set so that an unreadable image is marked instead of raising an error.

    The next readable image takes the place of an unreadable image, so that batches keep their shape. The replacement is
    marked by ``readable=False`` and therefore not scored.

    Args:
        dataset: The data set to wrap, or its config.
    """

    def __init__(self, dataset: Dataset | dict) -> None:
        self.dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset

    @property
    def metainfo(self) -> dict:
        return getattr(self.dataset, 'metainfo', {})

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict:
        for step in range(len(self)):
            try:
                item = self.dataset[(index + step) % len(self)]
            except UnreadableImage as error:
                last = error
                continue
            return {**item, 'data_samples': {**item['data_samples'], 'readable': step == 0}}
        raise UserError(
            f'{type(self.dataset).__name__}: none of the {len(self)} images can be read ({last}); check the files',
            code='no-readable-image',
        ) from last


@dataclass(frozen=True)
class Extraction:
    """The settings for extracting features from images.

    With ``precision='bfloat16'``, the matrix products and convolutions of the backbone run in bfloat16. The features are then
    pooled in float32.
    """

    mean: Sequence[float]
    std: Sequence[float]
    batch_size: int = 256
    device: str | torch.device = 'cpu'
    workers: int = 0
    precision: str = 'float32'

    @torch.no_grad()
    def batches(
        self, backbone: nn.Module | None, dataset: Dataset, first: int = 0
    ) -> Iterator[Batch]:
        """Yield, for each batch in order, the features, the labels, and a mask of the readable images.

        Args:
            backbone: The network. If it is None, the normalized pixels are the features.
            dataset: The labeled images. The features of unreadable images are NaN.
            first: Index of the first image, for error messages. It is not 0 if `dataset` is a part of a larger data set.
        """
        require_channels(dataset, self.mean, backbone)
        if backbone is not None:
            backbone.to(self.device, memory_format=torch.channels_last).eval()
        number = first
        late = torch.device(self.device).type == 'cuda'
        for x, copied, y, readable in delayed(self.started(backbone, dataset), late):
            if copied is not None:
                copied.synchronize()
            broken = (~x.isfinite().all(dim=1)).nonzero()
            if len(broken):
                raise Diverged(
                    f'image {number + int(broken[0])}: the features are NaN or infinite, because the pre-training diverged; '
                    'use an earlier checkpoint',
                    code='features-not-finite',
                )
            x[~readable] = torch.nan
            number += len(x)
            yield x, y, readable

    def started(self, backbone: nn.Module | None, dataset: Dataset) -> Iterator[tuple]:
        """Yield the features of each batch while they are still being copied to the CPU.

        Each item has the features, the CUDA event that marks the end of their copy (None without a GPU), the labels, and a
        mask of the readable images.
        """
        for images, *labels in self.images(dataset):
            x = images.flatten(1) if backbone is None else self.pooled(backbone, images)
            x = x.float().to('cpu', non_blocking=True)
            yield x, torch.cuda.current_stream().record_event() if images.is_cuda else None, *labels

    def pooled(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """Return one feature vector per image. Feature maps are averaged over all positions in float32."""
        with self.autocast():
            features = backbone(images)
        if isinstance(features, (tuple, list)):
            features = features[-1]
        return pooled(features.float())

    def autocast(self) -> torch.autocast:
        """Return the context manager in which the backbone runs with the chosen precision."""
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.precision == 'bfloat16')

    def images(self, dataset: Dataset, label: str = 'features') -> Iterator[Batch]:
        """Yield, for each batch, the normalized images on the device, the labels, and a mask of the readable images."""
        pinned = torch.device(self.device).type == 'cuda'
        loader = DataLoader(
            Readable(dataset), self.batch_size, num_workers=self.workers, pin_memory=pinned
        )
        mean, std = (torch.tensor(values, device=self.device) for values in (self.mean, self.std))
        for batch in show_progress(delivered(safe(loader)), label, len(loader)):
            images = batch['inputs'][0].to(self.device, non_blocking=True)
            images = normalize(images, mean, std)
            samples = batch['data_samples']
            yield (
                images.contiguous(memory_format=torch.channels_last),
                samples['label'],
                samples['readable'],
            )


def delayed(items: Iterator, late: bool) -> Iterator:
    """Yield all items in order. If `late`, yield each item only after the next one was created.

    While the CPU handles one batch, a GPU can then already compute the next batch.
    """
    waiting = []
    for item in items:
        waiting.append(item)
        if len(waiting) > late:
            yield waiting.pop(0)
    yield from waiting


def extraction(cfg: Config, device: str = 'cpu', workers: int = 0) -> Extraction:
    """Return the settings for extracting features with a config. Images are normalized as in the config's training."""
    normal = cfg.model.data_preprocessor
    size = cfg.evaluation.get('batch_size', 256)
    return Extraction(normal.mean, normal.std, size, device, workers, precision_of(cfg))


def extract(backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """Extract the features of all images in order and return them in memory, without storing them."""
    columns = zip(*how.batches(backbone, dataset))
    x, y, readable = (torch.cat(column) for column in columns)
    return readable_rows(x, y, readable)


def readable_rows(x: Tensor, y: Tensor, readable: Tensor) -> Features:
    if readable.all():
        return Features(x, y)
    unreadable = (~readable).nonzero().flatten().tolist()
    return Features(x[readable], y[readable], tuple(unreadable))


def on_main_process(compute: Callable[[], Result]) -> Result:
    """Call `compute` on the main process and send its result or UserError to all others, which wait for up to a day."""
    if not is_distributed():
        return compute()
    group = dist.new_group(backend='gloo', timeout=timedelta(days=1))
    outcome: list = [None]
    if is_main_process():
        try:
            outcome = [compute()]
        except UserError as error:
            outcome = [error]
    dist.broadcast_object_list(outcome, src=0, group=group)
    dist.destroy_process_group(group)
    [result] = outcome
    if isinstance(result, UserError):
        raise result
    return result


def show_progress(items: object, label: str, total: int | None = None) -> Iterator:
    """Yield the items and show progress: a bar on a terminal, or in a log one line every half minute."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, label, total, console=console, transient=True)
        return
    total = len(items) if total is None else total
    printed = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - printed >= SECONDS:
            printed = time.monotonic()
            print(f'{label} {done / total:.0%}', file=sys.stderr, flush=True)
        yield item
