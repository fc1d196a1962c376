"""Extract features of labeled images: the pooled outputs of a frozen backbone, or raw pixels."""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from mmengine import Config
from mmengine.dist import barrier, get_rank, get_world_size, is_distributed, is_main_process
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import normalize, require_channels
from mmairl.data.workers import delivered, safe
from mmairl.errors import Diverged, UserError, explained
from mmairl.io import explained_disk_errors, replacing
from mmairl.models.backbones import features, require_features
from mmairl.registry import DATASETS

Result = TypeVar('Result')
Batch = tuple[Tensor, Tensor, Tensor]
SECONDS = 30  # number of seconds between two lines of progress in a log


@dataclass(frozen=True)
class Features:
    """Features of a data set, one row per readable image, on the CPU.

    Attributes:
        x: Features in float32, (N, D).
        y: Class of each row in int64, (N,). If images can have several classes, (N, classes) with
            1 for yes, 0 for no, and -1 for labels that do not count.
        unreadable: Indices in the data set of the images that could not be read.
        groups: Group of each row, such as the patient that an image shows.
    """

    x: Tensor
    y: Tensor
    unreadable: tuple[int, ...] = ()
    groups: np.ndarray | None = None


@DATASETS.register_module()
class Readable(Dataset):
    """Wrap a data set so that an unreadable image is marked instead of raising an error.

    The next readable image takes the place of an unreadable image, so that batches keep their
    shape. The replacement is marked by ``readable=False`` and therefore not scored.

    Args:
        dataset: The data set to wrap, or its config.
    """

    def __init__(self, dataset: Dataset | dict) -> None:
        self.dataset = DATASETS.build(dataset) if isinstance(dataset, dict) else dataset
        self.metainfo = {}

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
            f'{type(self.dataset).__name__}: none of the {len(self)} images can be read ({last}); '
            'check the files',
            code='no-readable-image',
        ) from last


@dataclass(frozen=True)
class Extraction:
    """The settings for extracting features from images."""

    mean: Sequence[float]
    std: Sequence[float]
    batch_size: int = 256
    device: str | torch.device = 'cpu'
    workers: int = 0

    @torch.no_grad()
    def batches(self, backbone: nn.Module | None, dataset: Dataset) -> Iterator[Batch]:
        """Yield the features, the labels and a mask of the readable images of each batch.

        Args:
            backbone: The network. If it is None, the normalized pixels are the features.
            dataset: The labeled images. The features of unreadable images are NaN.
        """
        require_channels(dataset, self.mean, backbone)
        compute = partial(torch.flatten, start_dim=1)
        if backbone is not None:
            backbone.to(self.device, memory_format=torch.channels_last).eval()
            compute = partial(pooled, backbone)
        for number, (images, y, readable) in enumerate(self.images(dataset)):
            if backbone is not None and number == 0:
                require_features(backbone, images)
            x = compute(images).cpu()
            if not x.isfinite().all():
                raise Diverged(
                    'the features are NaN or infinite, because the pre-training diverged; use an '
                    'earlier checkpoint',
                    code='features-not-finite',
                )
            x[~readable] = torch.nan
            yield x, y, readable

    def images(self, dataset: Dataset) -> Iterator[Batch]:
        """Yield the normalized images on the device, the labels and a mask of readable images."""
        loader = DataLoader(
            Readable(dataset),
            self.batch_size,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
        )
        mean, std = (torch.tensor(values, device=self.device) for values in (self.mean, self.std))
        for batch in show_progress(delivered(safe(loader)), 'features', len(loader)):
            images = normalize(batch['inputs'][0].to(self.device, non_blocking=True), mean, std)
            samples = batch['data_samples']
            images = images.contiguous(memory_format=torch.channels_last)
            yield images, samples['label'], samples['readable']


def pooled(backbone: nn.Module, images: Tensor) -> Tensor:
    """Return one feature vector per image, pooled in float32."""
    return features(backbone, images).pooled.float()


def extraction(cfg: Config, device: str = 'cpu', workers: int = 0) -> Extraction:
    """Return the settings for extracting features, with images normalized as in training."""
    normal = cfg.model.data_preprocessor
    size = cfg.evaluation.get('batch_size', 256)
    return Extraction(normal.mean, normal.std, size, device, workers)


def extract(backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """Extract the features of all images in order and return them in memory."""
    return readable_rows(*map(torch.cat, zip(*how.batches(backbone, dataset))))


def readable_rows(x: Tensor, y: Tensor, readable: Tensor) -> Features:
    if readable.all():
        return Features(x, y)
    unreadable = (~readable).nonzero().flatten().tolist()
    return Features(x[readable], y[readable], tuple(unreadable))


def stored(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """Return the features of a data set from the file `path`, which is written if it is missing.

    All processes of a run write the file together. It has a temporary name until it is complete.
    """
    if not on_main_process(path.is_file):
        _fill(path, backbone, dataset, how)
    what = f'the features in {path} cannot be read'
    remedy = 'remove the file to extract the features again'
    with explained(what, remedy, code='unreadable-features'):
        x = torch.from_numpy(np.load(path, mmap_mode='c', allow_pickle=False))
        return readable_rows(x, dataset.labels, ~x[:, 0].isnan())


def _fill(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Let each process extract a contiguous share of the images and write the rows into one file.

    Bytes are written one after the other, because a full disk kills a process that writes through
    a memory map.
    """
    images = len(dataset)
    first, end = (images * rank // get_world_size() for rank in (get_rank(), get_rank() + 1))
    with ExitStack() as complete, explained_disk_errors(path):
        unfinished = on_main_process(lambda: complete.enter_context(replacing(path)))
        if is_main_process():
            unfinished.touch()
        barrier()
        with unfinished.open('rb+') as file:
            for x, *_ in how.batches(backbone, Subset(dataset, range(first, end))):
                if not file.tell():
                    header = dict(descr='<f4', fortran_order=False, shape=(images, x.shape[1]))
                    np.lib.format.write_array_header_1_0(file, header)
                    file.seek(first * x[0].nbytes, os.SEEK_CUR)
                file.write(x.numpy().tobytes())
        barrier()
    barrier()


def on_main_process(compute: Callable[[], Result]) -> Result:
    """Call `compute` on the main process, and send its result or UserError to all others.

    The other processes wait for up to a day.
    """
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


def show_progress(items: Iterable, label: str, total: int = 0) -> Iterator:
    """Yield the items and show progress: a bar on a terminal, or a line every half minute."""
    total = total or len(items)
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, label, total, console=console, transient=True)
        return
    printed = time.monotonic()
    for done, item in enumerate(items):
        if time.monotonic() - printed >= SECONDS:
            printed = time.monotonic()
            print(f'{label} {done / total:.0%}', file=sys.stderr, flush=True)
        yield item
