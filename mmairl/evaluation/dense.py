"""Linear probes that predict a class or a depth per pixel from the patches of a frozen backbone."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmairl.checkpoints.read import Backbone
from mmairl.data.preprocess import normalize
from mmairl.errors import Diverged, UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.dense_images import IGNORED
from mmairl.evaluation.features import extraction, on_main_process, show_progress
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.models.backbones import patch_size
from mmairl.models.layers import joined_map, layer_outputs
from mmairl.registry import PROTOCOLS


@dataclass(frozen=True)
class DenseProtocol(Protocol):
    """Base class of linear probes for dense tasks. Subclasses define the loss and the scores.

    The backbone is frozen. Batch norm and a linear layer predict the target of each patch from its
    features. The head is trained on random crops and flips, and tested on whole images.

    Args:
        layers: Layers whose feature maps are concatenated: stages of a ResNet or blocks of a ViT.
            Negative numbers count from the end.
        size: Length of the shorter side of test images, and side of the random crops, in pixels.
        epochs: Number of passes over the training images.
        batch: Training images per step.
        lr: Initial learning rate of AdamW, which decreases to 0 along a half cosine.
        seed: Seed of the head, the order of the images and the crops.
    """

    layers: Sequence[int] = (-1,)
    size: int = 512
    epochs: int = 10
    batch: int = 16
    lr: float = 1e-3
    seed: int = 0

    labels: ClassVar = ('dense',)
    null_rows: ClassVar = ('random',)
    unknown: ClassVar[int] = IGNORED  # target value of pixels that do not count

    @abstractmethod
    def width(self, classes: Sequence[str]) -> int:
        """Return how many outputs per patch the head has."""

    @abstractmethod
    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the loss of predictions (B, C, H, W) for targets (B, H, W)."""

    @abstractmethod
    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return statistics of one image in float64. The caller adds those of all images."""

    @abstractmethod
    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        """Return the scores and details from the added statistics."""

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predictions for patches, which are then resized to pixels."""
        return outputs

    def prepared(self, target: Tensor) -> Tensor:
        """Return a target in which pixels that do not count are `unknown`."""
        return target

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        if subject == 'pixels':
            text = f'{self.name}: raw pixels have no patches; use --init random'
            raise UserError(text, code='no-patches')
        backbone = load_backbone(cfg, None if subject == 'random' else subject).to(self.device)
        how = extraction(cfg, self.device)

        @torch.no_grad()
        def maps(images: Tensor) -> Tensor:
            x = normalize(images.to(self.device), how.mean, how.std)
            return joined_map(layer_outputs(backbone, x, self.layers))

        def probe() -> tuple[Scores, dict]:
            head = self._trained(sets['train'][1], maps)
            return self._tested(head, sets['test'][1], maps, patch_size(backbone))

        scores, details = on_main_process(probe)
        named = {f'{self.name}, {name}': value for name, value in scores.items()}
        return named, {**details, 'image_size': [self.size] * 2}, {}

    def _trained(self, train: Dataset, maps: Callable[[Tensor], Tensor]) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            head = nn.Sequential(nn.LazyBatchNorm2d(), nn.LazyConv2d(self.width(train.classes), 1))
            head.to(self.device)(maps(train[0]['inputs'][0][None]))
        steps = self.epochs * ceil(len(train) / self.batch)
        optimizer = torch.optim.AdamW(head.parameters(), lr=self.lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for images, targets in show_progress(self._crops(train), f'{self.name} head', steps):
            predicted = resized(self.predict(head(maps(images))), targets)
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
            generator = torch.Generator().manual_seed(hash((self.seed, epoch)))
            order = torch.randperm(len(train), generator=generator).tolist()
            crops = RandomCrops(train, self.size, (self.seed, epoch))
            yield from DataLoader(crops, self.batch, sampler=order, num_workers=self.workers)

    @torch.inference_mode()
    def _tested(
        self, head: nn.Module, test: Dataset, maps: Callable[[Tensor], Tensor], step: int
    ) -> tuple[Scores, dict]:
        total: Tensor | float = 0.0
        loader = DataLoader(test, batch_size=None, num_workers=self.workers)
        for item in show_progress(loader, self.name, len(test)):
            image = item['inputs'][0]
            target = self.prepared(item['data_samples']['target']).to(self.device)
            factor = self.size / min(target.shape) / step
            sides = [step * round(factor * side) for side in target.shape]
            image = v2.functional.resize(image, sides, antialias=True)
            [predicted] = resized(self.predict(head(maps(image[None]))), target)
            total += self.measure(predicted, target).cpu()
        return self.summarize(total, test.classes)


class RandomCrops(Dataset):
    """Random crops and flips of the images and targets of a data set."""

    def __init__(self, dataset: Dataset, size: int, seed: tuple[int, int]) -> None:
        self.dataset = dataset
        self.seed = seed
        crop = v2.RandomResizedCrop(size, scale=(0.25, 1.0), antialias=True)
        self.change = v2.Compose([crop, v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        item = self.dataset[index]
        image = tv_tensors.Image(item['inputs'][0])
        target = tv_tensors.Mask(item['data_samples']['target'])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((*self.seed, index)))
            image, target = self.change(image, target)
        return image.as_subclass(Tensor), target.as_subclass(Tensor)


def resized(maps: Tensor, target: Tensor) -> Tensor:
    return F.interpolate(maps, target.shape[-2:], mode='bilinear')


@PROTOCOLS.register_module('segment')
@dataclass(frozen=True)
class Segmentation(DenseProtocol):
    """Segment images by a linear classifier of patches.

    The score is mIoU, the mean over classes of intersection over union, of the pixels of all test
    images. The details contain the IoU of each class and the pixel accuracy.

    Args:
        ignore: Classes that are neither learned nor scored. Default: none.
    """

    ignore: Sequence[int] = ()

    metric: ClassVar = 'mIoU'

    def width(self, classes: Sequence[str]) -> int:
        return len(classes)

    def prepared(self, target: Tensor) -> Tensor:
        return target.masked_fill(torch.isin(target, target.new_tensor(self.ignore)), IGNORED)

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        total = F.cross_entropy(predicted, target, ignore_index=IGNORED, reduction='sum')
        return total / (target != IGNORED).sum().clamp_min(1)

    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the confusion matrix of pixels: true classes in rows, predicted in columns."""
        count = len(predicted)
        counted = target != IGNORED
        cells = target[counted] * count + predicted.argmax(0)[counted]
        return cells.bincount(minlength=count**2).view(count, count).double()

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        right = statistics.diagonal()
        areas = statistics.sum(1)
        iou = 100 * right / (areas + statistics.sum(0) - right)
        scored = areas > 0
        per_class = {name: value for name, value in zip(classes, iou.tolist()) if value == value}
        accuracy = 100 * (right.sum() / areas.sum()).item()
        return {'mIoU': iou[scored].mean().item()}, dict(per_class=per_class, accuracy=accuracy)


@PROTOCOLS.register_module('depth_probe')
@dataclass(frozen=True)
class DepthProbe(DenseProtocol):
    """Predict depth by a linear head on patches, as in DINOv2.

    The head predicts a weight for each of 256 depth bins, and the depth is the weighted mean of
    their centers. The scores are the percentage of pixels whose predicted depth is within a factor
    of 1.25 of the target, the RMSE in meters, and the absolute relative error. As in mmseg, they are
    means over images.

    Args:
        max_depth: Upper limit of scored depths in meters.
        scored: Top, bottom, left and right of the scored pixels, such as (45, 471, 41, 601) for the
            Eigen crop of NYUv2. Default: all pixels.
    """

    max_depth: float = 10.0
    scored: Sequence[int] = (0, None, 0, None)

    metric: ClassVar = 'delta'
    unknown: ClassVar = 0

    def width(self, classes: Sequence[str]) -> int:
        return 256

    def predict(self, outputs: Tensor) -> Tensor:
        weights = outputs.relu() + 0.1
        centers = torch.linspace(1e-3, self.max_depth, 256, device=outputs.device)
        return torch.einsum('bchw,c->bhw', weights, centers)[:, None] / weights.sum(1, True)

    def prepared(self, target: Tensor) -> Tensor:
        return torch.where((target > 1e-3) & (target < self.max_depth), target, 0)

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the scale-invariant log loss of AdaBins without its factor of 10."""
        counted = target > 0
        error = predicted[:, 0][counted].log() - target[counted].log()
        if not len(error):
            return 0 * predicted.sum()
        return (error.var(correction=0) + 0.15 * error.mean().square() + 1e-9).sqrt()

    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        top, bottom, left, right = self.scored
        depth, truth = (part[top:bottom, left:right].double() for part in (predicted[0], target))
        counted = truth > 0
        depth, truth = depth[counted], truth[counted]
        if not len(truth):
            return torch.zeros(4, dtype=torch.float64)
        within = (torch.maximum(depth / truth, truth / depth) < 1.25).double().mean()
        error = (depth - truth).abs()
        means = [within, error.square().mean().sqrt(), (error / truth).mean()]
        return torch.stack([*means, torch.ones_like(within)])

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        within, rmse, relative = (statistics[:-1] / statistics[-1]).tolist()
        return {'delta < 1.25': 100 * within, 'RMSE (m)': rmse, 'AbsRel': relative}, {}
