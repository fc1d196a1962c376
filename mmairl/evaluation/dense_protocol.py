"""Base class of linear probes that predict a value per pixel from the patches of a frozen backbone."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms.v2 import functional as T

from mmairl.checkpoints.read import Backbone
from mmairl.data.preprocess import normalize
from mmairl.data.workers import delivered, safe
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.dense_images import IGNORED
from mmairl.evaluation.features import extraction, on_main_process, show_progress
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.models.layers import joined_map, layer_outputs

# Before a random crop, an image is resized by a random factor from this range, as in mmseg.
SCALES = (0.5, 2.0)


@dataclass(frozen=True)
class DenseProtocol(Protocol):
    """Base class of linear probes for dense tasks. Subclasses define the loss and the scores.

    The backbone is frozen. Batch norm and a linear layer predict the target of each patch from its
    features. The head is trained on random crops and flips, as in DINOv2, and tested on whole
    images.

    Args:
        layers: Layers whose feature maps are concatenated: stages of a ResNet or blocks of a ViT.
            Negative numbers count from the end.
        size: Length in pixels to which the shorter side of each image is resized.
        crop: Side of the random crops. The sides of test images are rounded to a multiple of 14 or
            16 if it is such a multiple.
        epochs: Number of passes over the training images.
        batch: Training images per step.
        lr: Initial learning rate of AdamW, which decreases to 0 along a half cosine.
        weight_decay: Weight decay of AdamW.
        seed: Seed of the head, the order of the images and the crops.

    Class attributes:
        unknown: Target value that marks pixels without a target.
    """

    layers: Sequence[int] = (-1,)
    size: int = 512
    crop: int = 512
    epochs: int = 10
    batch: int = 16
    lr: float = 1e-3
    weight_decay: float = 1e-4
    seed: int = 0

    labels: ClassVar = ('dense',)
    null_rows: ClassVar = ('random',)
    unknown: ClassVar[int] = IGNORED

    @abstractmethod
    def width(self, classes: Sequence[str]) -> int:
        """Return how many outputs per patch the head has."""

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predictions for patches, which are then resized to pixels."""
        return outputs

    @abstractmethod
    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the loss of predictions (B, C, H, W) for targets (B, H, W)."""

    @abstractmethod
    def measure(self, predicted: Tensor, target: Tensor, classes: Sequence[str]) -> Tensor:
        """Return statistics of one image in float64. The caller adds those of all images."""

    @abstractmethod
    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        """Return the scores and details from the added statistics."""

    def prepared(self, target: Tensor) -> Tensor:
        """Return a target in which pixels that do not count are `unknown`."""
        return target

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        if subject == 'pixels':
            raise UserError(
                f'{self.name}: raw pixels have no patches; use --init random', code='no-patches'
            )
        backbone = load_backbone(cfg, None if subject == 'random' else subject).to(self.device)
        how = extraction(cfg, self.device, self.workers)

        @torch.no_grad()
        def maps(images: Tensor) -> Tensor:
            x = normalize(images.to(self.device), how.mean, how.std)
            with how.autocast():
                return joined_map(layer_outputs(backbone, x, self.layers)).float()

        def probe() -> tuple[Scores, dict]:
            head = self.trained_head(sets['train'][1], maps)
            return self.test(head, sets['test'][1], maps)

        scores, details = on_main_process(probe)
        named = {f'{self.name}, {name}': value for name, value in scores.items()}
        return named, {**details, 'image_size': [self.size] * 2}, {}

    def trained_head(self, train: Dataset, maps: Any) -> nn.Module:
        """Train batch norm and a linear layer on random crops."""
        steps = self.epochs * ceil(len(train) / self.batch)
        head: nn.Module | None = None
        for images, targets in show_progress(self._crops(train), f'{self.name} head', steps):
            x = maps(images)
            if head is None:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    linear = nn.Conv2d(x.shape[1], self.width(train.classes), 1)
                head = nn.Sequential(nn.BatchNorm2d(x.shape[1]), linear).to(self.device)
                optimizer = torch.optim.AdamW(
                    head.parameters(), lr=self.lr, weight_decay=self.weight_decay
                )
                schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
            predicted = resized(self.predict(head(x)), targets.shape[1:])
            loss = self.loss(predicted, self.prepared(targets.to(self.device)))
            if not loss.isfinite():
                raise Diverged(f'{self.name}: the loss is not finite; reduce lr', code='no-loss')
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return head.eval()

    def _crops(self, train: Dataset) -> Iterator[list[Tensor]]:
        """Yield batches of random crops, which depend only on the seed, the epoch and the image."""
        for epoch in range(self.epochs):
            order = np.random.default_rng((self.seed, epoch)).permutation(len(train)).tolist()
            crops = RandomCrops(train, self, epoch)
            loader = DataLoader(crops, self.batch, sampler=order, num_workers=self.workers)
            yield from delivered(safe(loader))

    @torch.inference_mode()
    def test(self, head: nn.Module, test: Dataset, maps: Any) -> tuple[Scores, dict]:
        total: Tensor | float = 0.0
        loader = DataLoader(test, batch_size=None, num_workers=self.workers)
        for item in show_progress(delivered(safe(loader)), self.name, len(test)):
            target = self.prepared(item['data_samples']['target']).to(self.device)
            step = next((step for step in (16, 14) if self.crop % step == 0), 1)
            image = shorter_side(item['inputs'][0], self.size, step)
            [predicted] = resized(self.predict(head(maps(image[None]))), target.shape)
            total += self.measure(predicted, target, test.classes).cpu()
        return self.summarize(total, test.classes)


class RandomCrops(Dataset):
    """The random crops of one epoch."""

    def __init__(self, dataset: Dataset, protocol: DenseProtocol, epoch: int) -> None:
        self.dataset = dataset
        self.protocol = protocol
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        side = self.protocol.crop
        random = np.random.default_rng((self.protocol.seed, self.epoch, index))
        item = self.dataset[index]
        image = shorter_side(item['inputs'][0], random.uniform(*SCALES) * self.protocol.size)
        target = item['data_samples']['target'][None, None].float()
        target = F.interpolate(target, image.shape[1:], mode='nearest-exact')[0, 0]
        height, width = target.shape
        padding = (0, max(0, side - width), 0, max(0, side - height))
        image = F.pad(image, padding)
        target = F.pad(target, padding, value=self.protocol.unknown)
        top, left = (int(random.integers(length - side + 1)) for length in target.shape)
        image = image[:, top : top + side, left : left + side]
        target = target[top : top + side, left : left + side]
        return (image.flip(2), target.flip(1)) if random.random() < 0.5 else (image, target)


def shorter_side(image: Tensor, size: float, step: int = 1) -> Tensor:
    """Resize an image so that its shorter side has this length, and round both sides to `step`."""
    factor = size / min(image.shape[1:]) / step
    sides = [step * round(factor * side) for side in image.shape[1:]]
    return T.resize(image, sides, antialias=True)


def resized(maps: Tensor, size: Sequence[int]) -> Tensor:
    return F.interpolate(maps, tuple(size), mode='bilinear', align_corners=False)
