"""Features of a whole data set: pooled from a frozen backbone, or the raw pixels as the baseline without one.

`extract` keeps them in memory. `stored` keeps them in one file, whose name is the key of what they depend on (`identity`),
so that every protocol and every later run reads what one extraction has left.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from filelock import FileLock, Timeout
from mmengine.dist import barrier, get_rank, get_world_size, is_main_process
from mmengine.logging import print_log
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmairl.data.decode import UnreadableImage
from mmairl.data.preprocess import normalize, require_channels
from mmairl.data.workers import delivered, safe
from mmairl.errors import Diverged, UserError, explained
from mmairl.io import explained_disk_errors, replacing
from mmairl.models.backbones import pooled
from mmairl.registry import DATASETS

Answer = TypeVar('Answer')
SECONDS = 30  # between two lines of progress in a log


@dataclass(frozen=True)
class Features:
    """One row per image, on the CPU: `x` float32 (N, D), and `y` its class int64 (N), or (N, classes) of 1, 0 and -1.

    `unreadable` are the positions in the data set of the images that could not be read: they have no row. Images of one of the
    `groups`, which name each row's, stay together where rows are held out.
    """

    x: Tensor
    y: Tensor
    unreadable: tuple[int, ...] = ()
    groups: np.ndarray | None = None


@DATASETS.register_module()
class Readable(Dataset):
    """A data set that says by `readable` whether an image is the one asked for.

    One that cannot be read is shown as the next readable one, so that batches keep their shape, left out and counted.
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
            except UnreadableImage as fault:
                last = fault
                continue
            return {**item, 'data_samples': {**item['data_samples'], 'readable': step == 0}}
        raise UserError(f'none of the {len(self)} images can be read, the last because {last}') from last


@dataclass(frozen=True)
class Extraction:
    """How images become features: the statistics they are normalized by, and what the work is done on.

    In bfloat16 the backbone's products and convolutions are; sums, batch norm's statistics and the pooling are in float32.
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
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Features, labels and whether they are readable, batch by batch and in order; the features of the others are NaN.

        Without a backbone the normalized pixels are the features. `first` is what a message calls the first image.
        """
        require_channels(dataset, self.mean, backbone)
        if backbone is not None:
            backbone.to(self.device, memory_format=torch.channels_last).eval()
        at = first
        for images, y, readable in self.images(dataset):
            x = (images.flatten(1) if backbone is None else self.pooled(backbone, images)).float().cpu()
            if (broken := ~x.isfinite().all(dim=1)).any():
                raise Diverged(
                    f'image {at + int(broken.nonzero()[0])} has NaN or infinite features; the pre-training has diverged, '
                    'use an earlier checkpoint'
                )
            x[~readable] = torch.nan
            at += len(x)
            yield x, y, readable

    def pooled(self, backbone: nn.Module, images: Tensor) -> Tensor:
        """One vector an image, averaged over space in float32."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.precision == 'bfloat16'):
            features = backbone(images)
        return pooled((features[-1] if isinstance(features, (tuple, list)) else features).float())

    def images(self, dataset: Dataset, label: str = 'features') -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Normalised images on the device, batch by batch, with the labels and whether they are readable."""
        pinned = torch.device(self.device).type == 'cuda'
        loader = DataLoader(Readable(dataset), self.batch_size, num_workers=self.workers, pin_memory=pinned)
        for batch in progress(delivered(safe(loader)), label, len(loader)):
            images = normalize(batch['inputs'][0].to(self.device, non_blocking=True), self.mean, self.std)
            of_image = batch['data_samples']
            yield images.contiguous(memory_format=torch.channels_last), of_image['label'], of_image['readable']


def extract(backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """Every image's features, in order and in memory."""
    x, y, readable = (torch.cat(column) for column in zip(*how.batches(backbone, dataset)))
    return _readable_rows(x, y, readable)


def _readable_rows(x: Tensor, y: Tensor, readable: Tensor) -> Features:
    if readable.all():
        return Features(x, y)
    return Features(x[readable], y[readable], tuple((~readable).nonzero().flatten().tolist()))


def stored(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> Features:
    """The features of `dataset` in the file `path`, which is read, or filled first by all processes together.

    Of several runs that want the file at the same time one fills it, and the others wait and read. It has its name only
    when it is whole.
    """
    require_labelled_images(dataset)
    lock = FileLock(path.with_name(f'.{path.name}.lock'))  # the system frees it when its process is killed
    try:
        if not on_main_process(lambda: _is_filled(path, lock)):
            _fill(path, backbone, dataset, how)
    finally:
        lock.release()
    x = read_rows(path, len(dataset))
    return _readable_rows(x, dataset.labels, ~x[:, 0].isnan())


def read_rows(path: Path, images: int) -> Tensor:
    """The features in a file, which are plain numbers: NumPy refuses what would have to be unpickled."""
    with explained(f'the features in {path} cannot be read', 'remove the file to extract again'):
        x = np.load(path, mmap_mode='c', allow_pickle=False)
        if x.dtype != np.float32 or x.ndim != 2 or len(x) != images:
            raise ValueError(f'it holds {x.dtype} of shape {x.shape} for {images} images')
    return torch.from_numpy(x)


def _is_filled(path: Path, lock: FileLock) -> bool:
    """Whether the file is there, now or by the time that the lock is ours."""
    if path.is_file():
        return True
    with explained_disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            print_log(f'another run extracts the same features into {path}: waiting for it', logger='current')
            lock.acquire()
    return path.is_file()


def _fill(path: Path, backbone: nn.Module | None, dataset: Dataset, how: Extraction) -> None:
    """Each process writes the rows of its contiguous share of the images into one file, which gets its name at the end.

    Rows are written, not mapped: a full disk is then an error and not a signal.
    """
    first, end = (len(dataset) * share // get_world_size() for share in (get_rank(), get_rank() + 1))
    with ExitStack() as whole, explained_disk_errors(path):
        unfinished = on_main_process(lambda: whole.enter_context(replacing(path)))
        if is_main_process():
            unfinished.touch()
        barrier()
        with unfinished.open('rb+') as file:
            for x, _, _ in how.batches(backbone, Subset(dataset, range(first, end)), first):
                if not file.tell():  # every process writes the same header, whose length says where its rows begin
                    shape = (len(dataset), x.shape[1])
                    np.lib.format.write_array_header_1_0(file, dict(descr='<f4', fortran_order=False, shape=shape))
                    file.seek(first * x.shape[1] * 4, os.SEEK_CUR)
                file.write(x.numpy().tobytes())
        barrier()
    barrier()


def on_main_process(compute: Callable[[], Answer]) -> Answer:
    """Run on the first process and broadcast its result or its error; the others wait for a day at most."""
    if not (dist.is_available() and dist.is_initialized()):
        return compute()
    group = dist.new_group(backend='gloo', timeout=timedelta(days=1))
    answer: list = [None, None]
    if is_main_process():
        try:
            answer[0] = compute()
        except UserError as error:
            answer[1] = str(error)
    dist.broadcast_object_list(answer, src=0, group=group)
    dist.destroy_process_group(group)
    if answer[1] is not None:
        raise UserError(answer[1])
    return answer[0]


def progress(items: object, label: str, total: int | None = None) -> Iterator:
    """A bar on a terminal, a line every half minute in a log."""
    console = Console(stderr=True)
    if console.is_terminal:
        yield from track(items, label, total, console=console, transient=True)
        return
    total, said = total or len(items), time.monotonic()
    for done, item in enumerate(items):
        if (now := time.monotonic()) - said >= SECONDS:
            said = now
            print(f'{label} {done / total:.0%}', file=sys.stderr, flush=True)
        yield item


def require_labelled_images(dataset: Dataset) -> None:
    if not len(dataset):
        raise UserError(f'no images to evaluate: {type(dataset).__name__} is empty; check cfg.evaluation')
    if dataset.labels.ndim == 1 and int(dataset.labels.min()) < 0:
        raise UserError('the evaluation data has images without a label; name a labelled data set under cfg.evaluation')
