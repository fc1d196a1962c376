"""The images and networks on which an analysis is run."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import torch
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset

from mmairl.checkpoints.read import read_backbone
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import normalize
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import extraction, pooled
from mmairl.evaluation.sets import evaluation_data, innermost, with_views
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
        self.described = evaluation_data(cfg).test
        self.how = replace(extraction(cfg, device), batch_size=batch_size)
        dataset = DATASETS.build(self.described)
        generator = torch.Generator().manual_seed(0)
        rows = torch.randperm(len(dataset), generator=generator)[:count]
        self.dataset = Subset(dataset, rows.tolist())

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[Tensor]:
        for images, *_ in self.how.images(self.dataset):
            yield images

    def first(self, count: int) -> Tensor:
        """Return the first `count` images, as floats in [0, 1] without normalization."""
        images = [to_unit(item['inputs'][0]) for item in islice(self.dataset, count)]
        return torch.stack(images).to(self.how.device)

    def views(self) -> Iterator[list[Tensor]]:
        """Yield batches of augmented views of each image, normalized, as in training: two, or one."""
        preprocessor = MODELS.build(self.cfg.model.data_preprocessor).to(self.how.device)
        described = self.described
        # If the data set creates no views, the preprocessor creates them.
        if views := innermost(self.cfg.train_dataloader.dataset).get('views'):
            described = with_views(described, views)
        images = Subset(DATASETS.build(described), self.dataset.indices)
        for batch in DataLoader(images, self.how.batch_size):
            views = preprocessor(batch, training=True)['inputs']
            yield [views] if isinstance(views, Tensor) else views[:2]

    @torch.inference_mode()
    def embed(self, network: nn.Module, images: Tensor) -> Tensor:
        """Return the pooled features of images in [0, 1]."""
        return pooled(network, normalize(images, self.how.mean, self.how.std))

    def network(self, checkpoint: str, part: str = 'student') -> nn.Module:
        """Load the network of a checkpoint: that of the weights, or else that of the config."""
        backbone = read_backbone(checkpoint, part)
        cfg = self.cfg
        if 'layer1.0.conv1.weight' in backbone.weights:
            cfg = Config(dict(model=dict(backbone=backbone.network)))
        network = load_backbone(cfg, backbone)
        return network.to(self.how.device, memory_format=torch.channels_last)
