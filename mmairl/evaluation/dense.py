"""Linear probes that predict a class or a depth per pixel from the patches of a frozen backbone."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import tv_tensors
from torchvision.transforms import v2

from mmairl.checkpoints.read import Backbone
from mmairl.data.preprocess import normalize
from mmairl.errors import Diverged
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.dense_images import IGNORED
from mmairl.evaluation.features import extraction, on_main_process, show_progress
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.models.layers import joined_map, layer_outputs, patch_size
from mmairl.registry import PROTOCOLS

Maps = Callable[[Tensor], Tensor]  # returns the feature maps of a batch of images


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
    bins: ClassVar[int | None] = None  # outputs of the head per patch; by default, one per class

    def predict(self, outputs: Tensor) -> Tensor:
        """Return predictions for patches, which are then resized to pixels."""
        return outputs

    @abstractmethod
    def counted(self, target: Tensor, testing: bool) -> Tensor:
        """Return which pixels of targets (..., H, W) are learned or tested."""

    @abstractmethod
    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the loss of predictions (N, C) for the targets (N,) of pixels."""

    @abstractmethod
    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return statistics of the pixels of one image. The caller adds those of all images."""

    @abstractmethod
    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        """Return the scores and details from the added statistics."""

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
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

    def _trained(self, train: Dataset, maps: Maps) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            outputs = self.bins or len(train.classes)
            head = nn.Sequential(nn.LazyBatchNorm2d(), nn.LazyConv2d(outputs, 1))
            head.to(self.device)(maps(train[0]['inputs'][0][None]))
        crops = RandomCrops(train, self.size, self.epochs, self.seed)
        loader = DataLoader(crops, self.batch, num_workers=self.workers)
        optimizer = torch.optim.AdamW(head.parameters(), lr=self.lr, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader))
        for images, targets in show_progress(loader, f'{self.name} head', len(loader)):
            predicted, targets = self._pixels(head(maps(images)), targets, testing=False)
            # Without any counted pixel, the sum is 0, and the step only decays the weights.
            loss = self.loss(predicted, targets) if len(targets) else predicted.sum()
            if not loss.isfinite():
                raise Diverged(f'{self.name}: the loss is not finite; reduce lr', code='no-loss')
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        return head.eval()

    @torch.inference_mode()
    def _tested(self, head: nn.Module, test: Dataset, maps: Maps, step: int) -> tuple[Scores, dict]:
        total: Tensor | float = 0.0
        loader = DataLoader(test, batch_size=None, num_workers=self.workers)
        for item in show_progress(loader, self.name, len(test)):
            image, target = item['inputs'][0], item['data_samples']['target']
            factor = self.size / min(target.shape) / step
            sides = [step * round(factor * side) for side in target.shape]
            image = v2.functional.resize(image, sides, antialias=True)
            pixels = self._pixels(head(maps(image[None])), target[None], testing=True)
            if len(pixels[1]):
                total += self.measure(*pixels).cpu()
        return self.summarize(total, test.classes)

    def _pixels(self, outputs: Tensor, target: Tensor, testing: bool) -> tuple[Tensor, Tensor]:
        """Return the predictions (N, C) and targets (N,) of all pixels that count."""
        predicted = F.interpolate(self.predict(outputs), target.shape[-2:], mode='bilinear')
        target = target.to(self.device)
        counted = self.counted(target, testing)
        return predicted.movedim(1, -1)[counted], target[counted]


class RandomCrops(Dataset):
    """Random crops and flips of the images and targets of a data set, in random order.

    They depend only on the seed, the epoch and the image.
    """

    def __init__(self, dataset: Dataset, size: int, epochs: int, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        crop = v2.RandomResizedCrop(size, scale=(0.25, 1.0), antialias=True)
        self.change = v2.Compose([crop, v2.RandomHorizontalFlip()])
        random = np.random.default_rng(seed)
        self.order = np.concatenate([random.permutation(len(dataset)) for _ in range(epochs)])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        item = self.dataset[int(self.order[number])]
        image = tv_tensors.Image(item['inputs'][0])
        target = tv_tensors.Mask(item['data_samples']['target'])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((self.seed, number)))
            image, target = self.change(image, target)
        return image.as_subclass(Tensor), target.as_subclass(Tensor)


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

    def counted(self, target: Tensor, testing: bool) -> Tensor:
        return ~torch.isin(target, target.new_tensor([IGNORED, *self.ignore]))

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(predicted, target)

    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the confusion matrix of pixels: true classes in rows, predicted in columns."""
        count = predicted.shape[1]
        cells = target * count + predicted.argmax(1)
        return cells.bincount(minlength=count**2).view(count, count).double()

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        right, areas = statistics.diagonal(), statistics.sum(1)
        iou = 100 * right / (areas + statistics.sum(0) - right)
        per_class = {name: value for name, value in zip(classes, iou.tolist()) if value == value}
        accuracy = 100 * (right.sum() / areas.sum()).item()
        return {'mIoU': iou[areas > 0].mean().item()}, dict(per_class=per_class, accuracy=accuracy)


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
    bins: ClassVar = 256

    def predict(self, outputs: Tensor) -> Tensor:
        weights = outputs.relu() + 0.1
        centers = torch.linspace(1e-3, self.max_depth, self.bins, device=outputs.device)
        return torch.einsum('bchw,c->bhw', weights, centers)[:, None] / weights.sum(1, True)

    def counted(self, target: Tensor, testing: bool) -> Tensor:
        top, bottom, left, right = self.scored if testing else (0, None, 0, None)
        inside = torch.zeros_like(target, dtype=torch.bool)
        inside[..., top:bottom, left:right] = True
        return inside & (target > 1e-3) & (target < self.max_depth)

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the scale-invariant log loss of AdaBins without its factor of 10."""
        error = predicted[:, 0].log() - target.log()
        return (error.var(correction=0) + 0.15 * error.mean().square() + 1e-9).sqrt()

    def measure(self, predicted: Tensor, target: Tensor) -> Tensor:
        depth, truth = predicted[:, 0].double(), target.double()
        within = (torch.maximum(depth / truth, truth / depth) < 1.25).double().mean()
        error = (depth - truth).abs()
        rmse = error.square().mean().sqrt()
        return torch.stack([within, rmse, (error / truth).mean(), torch.ones_like(rmse)])

    def summarize(self, statistics: Tensor, classes: Sequence[str]) -> tuple[Scores, dict]:
        within, rmse, relative = (statistics[:-1] / statistics[-1]).tolist()
        return {'delta < 1.25': 100 * within, 'RMSE (m)': rmse, 'AbsRel': relative}, {}
