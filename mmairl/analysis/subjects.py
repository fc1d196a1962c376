"""The images that networks are looked at with, and the networks themselves."""

from collections.abc import Iterator

import torch
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmairl.checkpoints.formats import resnet_of
from mmairl.checkpoints.read import read_backbone
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import normalize
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.sets import with_views
from mmairl.models.backbones import pooled
from mmairl.registry import DATASETS, MODELS


class Images:
    """At most `count` test images of a config, as normalized batches; each iteration is one pass.

    They are drawn at random, the same each time, so that the first of them are of all classes too. With `part` they are
    training images of its evaluation.
    """

    def __init__(
        self, cfg: Config, count: int, batch_size: int = 64, workers: int = 0, device: str = 'cpu', part: str = 'test'
    ) -> None:
        if not cfg.get('evaluation'):
            raise UserError(f'{cfg.filename} names no images to look at; add evaluation = dict(train=..., test=...)')
        self.cfg, self.batch_size, self.workers, self.device = cfg, batch_size, workers, device
        self.described = cfg.evaluation[part]
        self.dataset: Dataset = DATASETS.build(self.described)
        chosen = torch.randperm(len(self.dataset), generator=torch.Generator().manual_seed(0))[:count]
        self.subset = Subset(self.dataset, chosen.tolist())
        self.normal = cfg.model.data_preprocessor

    def __len__(self) -> int:
        return len(self.subset)

    def __iter__(self) -> Iterator[Tensor]:
        return (self.normalise(images) for images in self.raw())

    def raw(self) -> Iterator[Tensor]:
        """Batches of floats in [0, 1] on the device."""
        loader = DataLoader(self.subset, self.batch_size, num_workers=self.workers)
        return (to_unit(batch['inputs'][0].to(self.device, non_blocking=True)) for batch in loader)

    def normalise(self, images: Tensor) -> Tensor:
        return normalize(images, self.normal.mean, self.normal.std).contiguous(memory_format=torch.channels_last)

    @property
    def labels(self) -> Tensor:
        return self.dataset.labels[self.subset.indices]

    @property
    def classes(self) -> list[str]:
        return list(self.dataset.classes)

    def picture(self, index: int) -> Tensor:
        """An image as stored."""
        return self.dataset.raw(self.subset.indices[index])

    def views(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Two augmented views of each image as the config's training makes them, normalized."""
        preprocessor = MODELS.build(self.cfg.model.data_preprocessor).to(self.device)
        views = self.cfg.train_dataloader.dataset.get('views')  # none where the preprocessor makes them
        dataset = DATASETS.build(self.described if views is None else with_views(self.described, views))
        loader = DataLoader(Subset(dataset, self.subset.indices), self.batch_size, num_workers=self.workers)
        for batch in loader:
            first, second, *_ = preprocessor(batch, training=True)['inputs']
            yield first, second

    @torch.inference_mode()
    def embed(self, network: nn.Module, images: Tensor) -> Tensor:
        """The pooled features of images in [0, 1]."""
        return pooled(network(self.normalise(images))).float()

    def network(self, checkpoint: str, part: str) -> nn.Module:
        """The backbone of a checkpoint on the device: a ResNet of whatever size, or else the config's."""
        backbone, cfg = read_backbone(checkpoint, part), self.cfg
        if 'layer1.0.conv1.weight' in backbone.weights:
            channels = cfg.model.backbone.get('in_channels', 3)
            cfg = Config(
                dict(model=dict(backbone={**resnet_of(backbone.weights, checkpoint), 'in_channels': channels}))
            )
        return load_backbone(cfg, backbone).to(self.device, memory_format=torch.channels_last)
