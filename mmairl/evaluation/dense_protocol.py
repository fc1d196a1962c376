"""Base class of probes that predict a value per pixel, such as a class or a depth, from a frozen backbone.

A cell is one position of the backbone's feature map. The trained heads of a probe see the features of one cell at a time.
"""

import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from mmengine.logging import print_log
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as T

from mmairl.checkpoints.read import Backbone
from mmairl.data.dense import IGNORED, DenseDataset
from mmairl.data.preprocess import normalize
from mmairl.data.workers import delivered, safe
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.feature_store import write_header
from mmairl.evaluation.features import Extraction, extraction, on_main_process, show_progress
from mmairl.evaluation.identity import FEATURE_CODE, key_of
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.evaluation.sources import room_source
from mmairl.io import replacing
from mmairl.models.layers import joined_map, layer_outputs

POINTS = 4  # In training, the target is sampled at POINTS x POINTS points of each cell.
# Before a random crop, an image is resized by a random factor from this range, as in mmseg.
SCALES = (0.5, 2.0)
Batches = Iterator[tuple[Tensor, Tensor]]
Window = tuple[slice, slice]
Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class DenseProtocol(Protocol):
    """Base class of probes that predict a value per pixel. Subclasses define the heads, their loss and the scores.

    The backbone receives square windows of the images. By default, the features of the central window of each training image
    are computed once, stored in float16, and read again in every epoch. The names of the scores then end in
    '(stored features)'. With `random_crops`, the backbone instead runs on new random crops in every epoch, as in DINOv2's
    protocol.

    Args:
        layers: Layers whose feature maps are concatenated: stages of a ResNet or blocks of a ViT. Negative numbers count
            from the end.
        size: Length in pixels to which the shorter side of each image is resized.
        crop: Side of the windows. If it is None, each image is resized to size x size, and this square is the only window.
        stride: Distance between neighboring windows of a test image. Predictions are averaged where windows overlap.
            Default: two thirds of `crop`.
        mask_size: Side of the square to which targets are resized before scoring. Default: targets are not resized.
        upsample: How predictions are resized: 'bilinear' or 'nearest'.
        random_crops: Whether to train on random crops and flips. Default: False.
        permuted: Whether to shuffle the cells of each image. As a control, this removes all information about positions.
            Default: False.
        epochs: Number of passes over the training images.
        batch: Training images per step.
        lr: Initial learning rate of AdamW. It decreases to 0 along a half cosine.
        weight_decay: Weight decay of AdamW.
        seed: Seed for the initial heads, the order of the images, the random crops and the shuffled cells.
        heads: Heads to measure. The first one gives the main score. Default: all.

    Class attributes:
        known_heads: Names of all heads.
        unknown: Target value that marks pixels without a target.
    """

    layers: Sequence[int] = (-1,)
    size: int = 512
    crop: int | None = 512
    stride: int | None = None
    mask_size: int | None = None
    upsample: Literal['bilinear', 'nearest'] = 'bilinear'
    random_crops: bool = False
    permuted: bool = False
    epochs: int = 10
    batch: int = 16
    lr: float = 1e-3
    weight_decay: float = 1e-4
    seed: int = 0
    heads: Sequence[str] = ()

    labels: ClassVar = ('dense',)
    null_rows: ClassVar = ('random',)
    known_heads: ClassVar[tuple[str, ...]] = ()
    unknown: ClassVar[int] = IGNORED

    def __post_init__(self) -> None:
        if self.crop is not None and self.crop > self.size:
            raise UserError(
                f"{self.name}: crop must not exceed size ('crop={self.crop}, size={self.size}'); set a larger size or a "
                'smaller crop',
                code='crop-above-size',
            )
        if self.upsample not in ('bilinear', 'nearest'):
            raise UserError(
                f"{self.name}: upsample must be bilinear or nearest ('{self.upsample}')",
                code='unknown-upsampling',
            )
        if not self.heads or not set(self.heads) <= set(self.known_heads):
            raise UserError(
                f"{self.name}.heads: expected one or more of {', '.join(self.known_heads)} ('{list(self.heads)}')",
                code='unknown-head',
            )

    @abstractmethod
    def widths(self, classes: Sequence[str]) -> dict[str, int]:
        """Return how many outputs per cell each trained head has."""

    @abstractmethod
    def loss(self, head: str, outputs: Tensor, points: Tensor) -> Tensor:
        """Return the loss of a head, given its outputs (cells, width) and the sampled targets (cells, POINTS^2)."""

    @abstractmethod
    def measure(self, prediction: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        """Return statistics of one test image in float64. The caller sums them over all test images.

        Args:
            prediction: The output of `predict`, resized to the size of the target, (width, H, W).
            target: The target, (H, W).
            classes: Names of the classes.
        """

    @abstractmethod
    def summarize(
        self, head: str, statistics: Tensor, classes: Sequence[str]
    ) -> tuple[Scores, dict]:
        """Return the scores and details of a head from the summed statistics."""

    def predict(self, head: str, outputs: Tensor) -> Tensor:
        """Convert the outputs of a head to predictions, (cells, width). By default, the outputs are the predictions."""
        return outputs

    def untrained_heads(self, cells: 'Cells', classes: Sequence[str]) -> dict[str, Head]:
        """Return the heads that need no training, such as k-NN on the stored features. By default, there are none."""
        return {}

    def prepared(self, target: Tensor) -> Tensor:
        """Return a target in which ignored pixels are marked as `unknown`."""
        return target

    @property
    def side(self) -> int:
        """Return the side of the windows that the backbone receives."""
        return self.crop or self.size

    def input_size(self, cfg: Config) -> int:
        return self.side

    def images_seen(self, cfg: Config, images: int | None, trials: int | None = None) -> int | None:
        return images and images * (self.epochs if self.random_crops else 1)

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        if subject == 'pixels':
            raise UserError(
                f'{self.name}: raw pixels cannot be a baseline, because they have no layers; use --init random',
                code='no-spatial-features',
            )
        backbone = load_backbone(cfg, None if subject == 'random' else subject)
        how = extraction(cfg, self.device, self.workers)
        features = CellFeatures(backbone, how, self)
        key = self._features_key(identity)
        return on_main_process(lambda: self._probe(features, sets, key))

    def _probe(self, features: 'CellFeatures', sets: Sets, key: str) -> Outcome:
        _, train = sets['train']
        _, test = sets['test']
        with ExitStack() as stack:
            folder = self.cache
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            cells = Cells(folder / f'dense_{key}', features, train, self)
            heads = self.trained_heads(train, features, cells)
            heads |= self.untrained_heads(cells, train.classes)
            statistics = self._test(heads, features, test)
            details = dict(train_images=len(train), test_images=len(test), stored_bytes=cells.bytes)
        scores: Scores = {}
        way = '' if self.random_crops else ' (stored features)'
        for head in self.heads:
            of_head, details[head] = self.summarize(head, statistics[head], test.classes)
            for name, value in of_head.items():
                scores[f'{self.name}, {head} {name}{way}'] = value
        if per_class := details[self.heads[0]].get('per_class'):
            details['per_class'] = per_class
        return scores, details, {}

    def _features_key(self, identity: Mapping[str, Any]) -> str:
        parts = {name: identity[name] for name in ('weights', 'network', 'input', 'code')}
        parts['data'] = identity['data']['train']
        parts['own'] = [list(self.layers), self.size, self.crop, self.permuted and self.seed]
        parts['source'] = room_source((*FEATURE_CODE, 'dense_protocol'))
        return key_of(parts)

    def trained_heads(
        self, train: DenseDataset, features: 'CellFeatures', cells: 'Cells'
    ) -> dict[str, Head]:
        """Train all heads on the same batches and return them.

        The heads share no parameters, so minimizing the sum of their losses minimizes the loss of each head.
        """
        widths = self.widths(train.classes)
        if not widths:
            return {}
        channels = features.shape[0]
        heads = nn.ModuleDict()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            for name, width in widths.items():
                norm = nn.BatchNorm1d(channels)
                linear = nn.Linear(channels, width)
                heads[name] = nn.Sequential(norm, linear)
        heads.to(self.device)
        batches = self._crops(train, features) if self.random_crops else cells.batches()
        steps = self.epochs * ceil(len(train) / self.batch)
        optimizer = torch.optim.AdamW(
            heads.parameters(), lr=self.lr, weight_decay=self.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for x, points in show_progress(batches, 'heads', steps):
            points = self.prepared(points)
            loss = sum(self.loss(name, head(x), points) for name, head in heads.items())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return dict(heads.eval())

    def _crops(self, train: DenseDataset, features: 'CellFeatures') -> Batches:
        """Yield the features and targets of random crops. Each crop depends only on the seed, the epoch and the image."""
        features.restart(self.seed)
        for epoch in range(self.epochs):
            order = self.order(epoch, len(train)).tolist()
            windows = Windows(train, self, epoch)
            loader = DataLoader(windows, self.batch, sampler=order, num_workers=self.workers)
            for images, targets in delivered(safe(loader)):
                x = features(images)
                points = points_of(targets.to(x.device), x.shape[2:])
                yield flat_cells(x), points.flatten(0, 1)

    def order(self, epoch: int, images: int) -> np.ndarray:
        """Return the order of the training images in an epoch."""
        return np.random.default_rng((self.seed, epoch)).permutation(images)

    @torch.inference_mode()
    def _test(
        self, heads: Mapping[str, Head], features: 'CellFeatures', test: DenseDataset
    ) -> dict[str, Tensor]:
        features.restart(self.seed + 1)
        statistics: dict[str, Tensor] = {}
        loader = DataLoader(test, batch_size=None, num_workers=self.workers)
        pairs = delivered(safe(loader))
        for image, target in show_progress(pairs, self.name, len(test)):
            image = self.resized(image)
            windows = self._windows(image)
            parts = [image[:, rows, columns] for rows, columns in windows]
            x = features(torch.stack(parts))
            target = self.prepared(target)
            if self.mask_size is not None:
                target = nearest_resized(target, (self.mask_size, self.mask_size))
            for name, head in heads.items():
                outputs = self.predict(name, head(flat_cells(x)))
                by_window = outputs.unflatten(0, (len(x), *x.shape[2:]))
                maps = self._upsampled(by_window.permute(0, 3, 1, 2), (self.side, self.side))
                joined = self._joined(maps, windows, image.shape[1:])
                [prediction] = self._upsampled(joined[None], target.shape)
                measured = self.measure(prediction, target.to(prediction.device), test.classes)
                statistics[name] = statistics.get(name, 0) + measured.cpu()
        return statistics

    def _joined(self, maps: Tensor, windows: Sequence[Window], size: Sequence[int]) -> Tensor:
        """Combine the maps of an image's windows into one map. Where windows overlap, their maps are averaged."""
        total = maps.new_zeros(maps.shape[1], *size)
        count = maps.new_zeros(size)
        for (rows, columns), of_window in zip(windows, maps):
            total[:, rows, columns] += of_window
            count[rows, columns] += 1
        return total / count

    def _upsampled(self, maps: Tensor, size: Sequence[int]) -> Tensor:
        return F.interpolate(maps, tuple(size), mode=self.upsample)

    def resized(self, image: Tensor, scale: float = 1.0) -> Tensor:
        """Resize an image so that its shorter side is `scale` times the protocol's `size`.

        If `crop` is None, the image is resized to size x size, and `scale` has no effect.
        """
        size = [self.size, self.size]
        if self.crop is not None:
            sides = image.shape[1:]
            factor = scale * self.size / min(sides)
            size = [round(factor * side) for side in sides]
        return T.resize(image, size, antialias=True)

    def _windows(self, image: Tensor) -> list[Window]:
        """Return windows that together cover an image. Their positions are the same as in mmseg."""
        stride = self.stride or max(1, 2 * self.side // 3)
        by_side = []
        for length in image.shape[1:]:
            last = length - self.side
            starts = [*range(0, last, stride), last]
            by_side.append([slice(start, start + self.side) for start in starts])
        return list(product(*by_side))


class Windows(Dataset):
    """A data set with one window per training image.

    Without `epoch`, the window is central. With `epoch`, the window is random, and it is flipped with probability 0.5.
    """

    def __init__(
        self, dataset: DenseDataset, protocol: DenseProtocol, epoch: int | None = None
    ) -> None:
        self.dataset = dataset
        self.protocol = protocol
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        protocol = self.protocol
        side = protocol.side
        image, target = self.dataset[index]
        random = None
        scale = 1.0
        if self.epoch is not None:
            random = np.random.default_rng((protocol.seed, self.epoch, index))
            scale = random.uniform(*SCALES)
        image = protocol.resized(image, scale)
        target = nearest_resized(target, image.shape[1:])
        height, width = target.shape
        padding = (0, max(0, side - width), 0, max(0, side - height))
        image = F.pad(image, padding)
        target = F.pad(target, padding, value=protocol.unknown)
        top, left = (start_of_window(length - side, random) for length in target.shape)
        rows = slice(top, top + side)
        columns = slice(left, left + side)
        image = image[:, rows, columns]
        target = target[rows, columns]
        if random and random.random() < 0.5:
            return image.flip(2), target.flip(1)
        return image, target


def start_of_window(spare: int, random: np.random.Generator | None) -> int:
    """Return the first row or column of a window whose side is `spare` pixels shorter than the image's side.

    Without `random`, the window is in the center of the image.
    """
    return spare // 2 if random is None else int(random.integers(spare + 1))


class CellFeatures:
    """Compute feature maps from batches of uint8 images. The maps of the protocol's layers are concatenated."""

    def __init__(self, backbone: nn.Module, how: Extraction, protocol: DenseProtocol) -> None:
        self.backbone = backbone.to(how.device)
        self.how = how
        self.protocol = protocol
        self.random = torch.Generator()

    def restart(self, seed: int) -> None:
        """Seed the random permutations of cells.

        Computing features advances the random generator, and stored features are not computed again. Without a new seed,
        later permutations would depend on whether features were already stored.
        """
        self.random.manual_seed(seed)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Return the concatenated feature maps of a batch of images, (B, C, rows, columns)."""
        how = self.how
        x = normalize(images.to(how.device), how.mean, how.std)
        with how.autocast():
            outputs = layer_outputs(self.backbone, x, self.protocol.layers)
            features = joined_map(outputs).float()
        if not features.isfinite().all():
            raise Diverged(
                'the features are NaN or infinite, because the pre-training diverged; use an earlier checkpoint',
                code='features-not-finite',
            )
        if self.protocol.permuted:
            flat = features.flatten(2)
            images, _, cells = flat.shape
            order = torch.rand(images, cells, generator=self.random).argsort(1)
            position = order.to(flat.device)[:, None].expand_as(flat)
            features = flat.gather(2, position).view_as(features)
        return features

    @cached_property
    def shape(self) -> tuple[int, int, int]:
        """Return the numbers of channels, rows and columns of a window's feature map."""
        channels = len(self.how.mean)
        side = self.protocol.side
        blank = torch.zeros(1, channels, side, side, dtype=torch.uint8)
        return tuple(self(blank).shape[1:])


class Cells:
    """The features and targets of the central window of each training image, stored in two files.

    The first access to `stored` writes the files, unless both exist and the protocol's `remeasure` is False.
    """

    def __init__(
        self, path: Path, features: CellFeatures, train: DenseDataset, protocol: DenseProtocol
    ) -> None:
        targets = path.with_name(f'{path.name}_targets.npy')
        self.paths = (path.with_suffix('.npy'), targets)
        self.features = features
        self.train = train
        self.protocol = protocol
        channels, rows, columns = features.shape
        size = (len(train), rows * columns)
        self.shapes = [(*size, channels), (*size, POINTS**2)]
        self.bytes = sum(2 * prod(shape) for shape in self.shapes)

    @cached_property
    def stored(self) -> tuple[np.ndarray, np.ndarray]:
        are_written = all(path.is_file() for path in self.paths)
        if self.protocol.remeasure or not are_written:
            self._write()
        mapped = [np.load(path, mmap_mode='r', allow_pickle=False) for path in self.paths]
        return tuple(mapped)

    def _write(self) -> None:
        folder = self.paths[0].parent
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        need = f'{self.bytes / 2**30:.2f} GiB'
        print_log(f'the features of {len(self.train)} images take {need}', logger='current')
        if self.bytes > free:
            raise UserError(
                f'{folder}: the features take {need}, but the disk has only {free / 2**30:.2f} GiB free; free space, use '
                'another folder (--cache), or set a smaller size, a smaller crop or fewer layers',
                code='disk-too-small',
            )
        self.features.restart(self.protocol.seed)
        loader = DataLoader(
            Windows(self.train, self.protocol),
            self.protocol.batch,
            num_workers=self.protocol.workers,
        )
        with ExitStack() as stack:
            files = []
            for path, shape in zip(self.paths, self.shapes):
                unfinished = stack.enter_context(replacing(path))
                files.append(stack.enter_context(unfinished.open('wb')))
                write_header(files[-1], shape, '<f2')
            batches = delivered(safe(loader))
            for images, targets in show_progress(batches, 'features', len(loader)):
                x = self.features(images)
                cells = x.flatten(2).transpose(1, 2)
                points = points_of(targets, x.shape[2:])
                for file, values in zip(files, (cells, points)):
                    stored = values.half().cpu().contiguous()
                    file.write(stored.numpy().tobytes())

    def batches(self) -> Batches:
        """Yield the features (cells, C) and targets (cells, POINTS^2) of each batch, over all epochs."""
        protocol = self.protocol
        for epoch in range(protocol.epochs):
            order = protocol.order(epoch, len(self.train))
            for start in range(0, len(order), protocol.batch):
                rows = np.sort(order[start : start + protocol.batch])
                batch = []
                for values in self.stored:
                    of_rows = torch.from_numpy(values[rows]).to(protocol.device)
                    batch.append(of_rows.flatten(0, 1).float())
                yield tuple(batch)


def flat_cells(features: Tensor) -> Tensor:
    """Return feature maps (B, C, rows, columns) as one row per cell, (B * rows * columns, C)."""
    return features.permute(0, 2, 3, 1).flatten(0, 2)


def points_of(targets: Tensor, shape: Sequence[int]) -> Tensor:
    """Sample targets (B, H, W) at POINTS x POINTS points per cell and return them as (B, cells, POINTS^2)."""
    rows, columns = shape
    size = (rows * POINTS, columns * POINTS)
    sampled = F.interpolate(targets[:, None], size, mode='nearest-exact')
    in_rows = sampled[:, 0].unflatten(1, (rows, POINTS))
    in_cells = in_rows.unflatten(3, (columns, POINTS)).transpose(2, 3)
    return in_cells.flatten(3).flatten(1, 2)


def nearest_resized(target: Tensor, size: Sequence[int]) -> Tensor:
    """Resize a target (H, W) by nearest-neighbor interpolation and return it in float32."""
    batch = target[None, None].float()
    return F.interpolate(batch, tuple(size), mode='nearest-exact')[0, 0]
