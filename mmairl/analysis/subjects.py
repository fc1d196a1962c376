"""The images and networks on which an analysis is run."""

from collections.abc import Iterator

import torch
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmairl.checkpoints.read import read_backbone
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import normalize
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.sets import evaluation_data, with_views
from mmairl.models.backbones import features
from mmairl.registry import DATASETS, MODELS


class Images:
    """A random sample of the images of a config's `evaluation`.

    Each iteration yields the images once, in normalized batches. The sample is random so that all
    classes occur early, but it is always the same.

    Args:
        cfg: A config with `evaluation`.
        count: The largest number of images in the sample.
        batch_size: Number of images in a batch.
        device: The device of the batches.
    """

    def __init__(
        self,
        cfg: Config,
        count: int,
        batch_size: int = 64,
        device: str = 'cpu',
    ) -> None:
        self.cfg = cfg
        self.batch_size = batch_size
        self.device = device
        self.described = evaluation_data(cfg).test
        self.dataset = DATASETS.build(self.described)
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randperm(len(self.dataset), generator=generator)[:count].tolist()

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        return map(self.normalize, self.raw())

    def raw(self, size: int | None = None) -> Iterator[Tensor]:
        """Yield batches of images on the device, as floats in [0, 1] without normalization."""
        for batch in self._loader(self.dataset, size):
            images = batch['inputs'][0]
            yield to_unit(images.to(self.device, non_blocking=True))

    def first(self, count: int) -> Tensor:
        """Return the first `count` images, as floats in [0, 1] without normalization."""
        return next(self.raw(count))

    def normalize(self, images: Tensor) -> Tensor:
        normal = self.cfg.model.data_preprocessor
        images = normalize(images, normal.mean, normal.std)
        return images.contiguous(memory_format=torch.channels_last)

    def views(self) -> Iterator[list[Tensor]]:
        """Yield batches of two augmented views of each image, normalized, as in training."""
        preprocessor = MODELS.build(self.cfg.model.data_preprocessor).to(self.device)
        described = self.described
        # If the data set creates no views, the preprocessor creates them.
        if views := self.cfg.train_dataloader.dataset.get('views'):
            described = with_views(described, views)
        for batch in self._loader(DATASETS.build(described)):
            yield preprocessor(batch, training=True)['inputs'][:2]

    def _loader(self, dataset: Dataset, size: int | None = None) -> DataLoader:
        return DataLoader(Subset(dataset, self.rows), size or self.batch_size)

    @torch.inference_mode()
    def embed(self, network: nn.Module, images: Tensor) -> Tensor:
        """Return the pooled features of images in [0, 1]."""
        return features(network, self.normalize(images)).pooled.float()

    def network(self, checkpoint: str, part: str = 'student') -> nn.Module:
        """Load the network of a checkpoint: that of the weights, or else that of the config."""
        backbone = read_backbone(checkpoint, part)
        cfg = self.cfg
        if 'layer1.0.conv1.weight' in backbone.weights:
            cfg = Config(dict(model=dict(backbone=backbone.network)))
        network = load_backbone(cfg, backbone)
        return network.to(self.device, memory_format=torch.channels_last)
