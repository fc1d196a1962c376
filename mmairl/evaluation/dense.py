"""Linear probes that predict a class or a depth per pixel from the patches of a frozen backbone."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from mmairl.evaluation.features import on_main_process, show_progress
from mmairl.evaluation.protocol import Outcome, Protocol, Scores, Sets
from mmairl.models.layers import joined_map, layer_outputs, patch_size
from mmairl.registry import PROTOCOLS

Maps = Callable[[Tensor], Tensor]  # returns the feature maps of a batch of images
Pixels = tuple[Tensor, Tensor]  # the predictions (N, C) and targets (N,) of all pixels that count


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
    def score(self, images: Iterable[Pixels], classes: Sequence[str]) -> tuple[Scores, dict]:
        """Return the scores and details from the pixels of each test image."""

    def run(
        self, cfg: Config, subject: Backbone | str, sets: Sets, identity: dict[str, Any]
    ) -> Outcome:
        backbone = load_backbone(cfg, None if subject == 'random' else subject).to(self.device)
        normal = cfg.model.data_preprocessor
        test = sets['test'][1]

        @torch.no_grad()
        def maps(images: Tensor) -> Tensor:
            x = normalize(images.to(self.device), normal.mean, normal.std)
            return joined_map(layer_outputs(backbone, x, self.layers))

        def probe() -> tuple[Scores, dict]:
            head = self._trained(sets['train'][1], maps)
            return self.score(self._tested(head, test, maps, patch_size(backbone)), test.classes)

        scores, details = on_main_process(probe)
        scores = {f'{self.name}, {name}': value for name, value in scores.items()}
        return scores, {**details, 'image_size': [self.size] * 2}, {}

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
        for images, targets in show_progress(loader, f'{self.name} head'):
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
    def _tested(self, head: nn.Module, test: Dataset, maps: Maps, step: int) -> Iterator[Pixels]:
        loader = DataLoader(test, batch_size=None, num_workers=self.workers)
        for item in show_progress(loader, self.name):
            target = item['data_samples']['target']
            factor = self.size / min(target.shape) / step
            sides = [step * round(factor * side) for side in target.shape]
            image = v2.functional.resize(item['inputs'][0], sides, antialias=True)
            pixels = self._pixels(head(maps(image[None])), target[None], testing=True)
            if len(pixels[1]):
                yield pixels

    def _pixels(self, outputs: Tensor, target: Tensor, testing: bool) -> Pixels:
        predicted = F.interpolate(self.predict(outputs), target.shape[-2:], mode='bilinear')
        target = target.to(self.device)
        counted = self.counted(target, testing)
        return predicted.movedim(1, -1)[counted], target[counted]


class RandomCrops(Dataset):
    """Random crops and flips of images and their targets, in random order.

    A crop depends only on the seed and its number, which counts the crops of all epochs.
    """

    def __init__(self, dataset: Dataset, size: int, epochs: int, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        random = np.random.default_rng(seed)
        self.order = np.concatenate([random.permutation(len(dataset)) for _ in range(epochs)])
        crop = v2.RandomResizedCrop(size, scale=(0.25, 1.0), antialias=True)
        self.change = v2.Compose([crop, v2.RandomHorizontalFlip()])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        item = self.dataset[int(self.order[number])]
        target = tv_tensors.Mask(item['data_samples']['target'])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hash((self.seed, number)))
            image, target = self.change(item['inputs'][0], target)
        return image, target.as_subclass(Tensor)


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

    def score(self, images: Iterable[Pixels], classes: Sequence[str]) -> tuple[Scores, dict]:
        count = len(classes)
        confusion = torch.zeros(count * count)  # true classes in rows, predicted ones in columns
        for predicted, target in images:
            cells = target * count + predicted.argmax(1)
            confusion = confusion + cells.bincount(minlength=count * count).cpu().double()
        confusion = confusion.view(count, count)
        right = confusion.diagonal()
        areas = confusion.sum(1)
        iou = 100 * right / (areas + confusion.sum(0) - right)
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
        known = (target > 1e-3) & (target < self.max_depth)
        if testing:
            top, bottom, left, right = self.scored
            inside = torch.zeros_like(known)
            inside[..., top:bottom, left:right] = True
            known &= inside
        return known

    def loss(self, predicted: Tensor, target: Tensor) -> Tensor:
        """Return the scale-invariant log loss of AdaBins without its factor of 10."""
        error = predicted[:, 0].log() - target.log()
        return (error.var(correction=0) + 0.15 * error.mean().square() + 1e-9).sqrt()

    def score(self, images: Iterable[Pixels], classes: Sequence[str]) -> tuple[Scores, dict]:
        found = []
        for predicted, target in images:
            depth = predicted[:, 0].double()
            truth = target.double()
            within = torch.maximum(depth / truth, truth / depth) < 1.25
            error = (depth - truth).abs()
            rmse = error.square().mean().sqrt()
            found.append(torch.stack([within.double().mean(), rmse, (error / truth).mean()]).cpu())
        within, rmse, relative = torch.stack(found).mean(0).tolist()
        return {'delta < 1.25': 100 * within, 'RMSE (m)': rmse, 'AbsRel': relative}, {}
