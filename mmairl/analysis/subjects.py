"""The images and networks on which an analysis is run."""

from collections.abc import Iterator
from itertools import islice
from math import ceil

import torch
from mmengine import Config
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from mmairl.checkpoints.architecture import resnet_of
from mmairl.checkpoints.load import load_checkpoint, require_same_keys
from mmairl.checkpoints.read import read_backbone
from mmairl.data.decode import to_unit
from mmairl.data.preprocess import normalize
from mmairl.errors import UserError
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.sets import evaluation_data, with_views
from mmairl.models.backbones import pooled
from mmairl.registry import DATASETS, MODELS


class Images:
    """A random sample of the images of a config's `evaluation`.

    Each iteration yields the images once, in normalized batches. The sample is random so that all classes occur early, but
    it is always the same.

    Args:
        cfg: A config with `evaluation`.
        count: The largest number of images in the sample.
        batch_size: Number of images in a batch.
        workers: Number of processes that load images.
        device: The device of the batches.
        part: The part of `evaluation` from which the images come: 'test' or 'train'.

    Raises:
        UserError: If the config has no `evaluation`.
    """

    def __init__(
        self,
        cfg: Config,
        count: int,
        batch_size: int = 64,
        workers: int = 0,
        device: str = 'cpu',
        part: str = 'test',
    ) -> None:
        if not cfg.get('evaluation'):
            raise UserError(
                f'{cfg.filename}: the config has no evaluation data; add evaluation = dict(train=..., test=...)',
                code='no-evaluation',
            )
        self.cfg = cfg
        self.batch_size = batch_size
        self.workers = workers
        self.device = device
        self.dataset_config = evaluation_data(cfg)[part]
        self.dataset: Dataset = DATASETS.build(self.dataset_config)
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(self.dataset), generator=generator)
        self.subset = Subset(self.dataset, order[:count].tolist())
        self.statistics = cfg.model.data_preprocessor

    def __len__(self) -> int:
        return len(self.subset)

    def __iter__(self) -> Iterator[Tensor]:
        return (self.normalize(images) for images in self.raw())

    def raw(self) -> Iterator[Tensor]:
        """Yield batches of images on the device, as floats in [0, 1] without normalization."""
        for batch in self._loader(self.subset):
            images = batch['inputs'][0].to(self.device, non_blocking=True)
            yield to_unit(images)

    def first(self, count: int) -> Tensor:
        """Return the first `count` images of the sample, as floats in [0, 1] without normalization."""
        batches = islice(self.raw(), ceil(count / self.batch_size))
        return torch.cat(list(batches))[:count]

    def normalize(self, images: Tensor) -> Tensor:
        normalized = normalize(images, self.statistics.mean, self.statistics.std)
        return normalized.contiguous(memory_format=torch.channels_last)

    @property
    def labels(self) -> Tensor:
        return self.dataset.labels[self.subset.indices]

    @property
    def classes(self) -> list[str]:
        return list(self.dataset.classes)

    def picture(self, index: int) -> Tensor:
        """Return an image of the sample as its file stores it."""
        return self.dataset.raw(self.subset.indices[index])

    def views(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of two augmented views of each image, normalized, as they are created in training."""
        preprocessor = MODELS.build(self.cfg.model.data_preprocessor).to(self.device)
        config = self.dataset_config
        views = self.cfg.train_dataloader.dataset.get('views')
        # If the dataset creates no views, the preprocessor creates them.
        if views is not None:
            config = with_views(config, views)
        dataset = DATASETS.build(config)
        for batch in self._loader(Subset(dataset, self.subset.indices)):
            first, second, *_ = preprocessor(batch, training=True)['inputs']
            yield first, second

    def _loader(self, dataset: Dataset) -> DataLoader:
        return DataLoader(dataset, self.batch_size, num_workers=self.workers)

    @torch.inference_mode()
    def embed(self, network: nn.Module, images: Tensor) -> Tensor:
        """Return the pooled features of images in [0, 1]."""
        return pooled(network(self.normalize(images))).float()

    def network(
        self, checkpoint: str, part: str, layer: str = 'backbone', head_config: Config | None = None
    ) -> nn.Module:
        """Load the network of a checkpoint up to a layer.

        Args:
            checkpoint: The path of the checkpoint. Its backbone must be a ResNet, or the backbone of the sample's `cfg`.
            part: The part of the checkpoint: 'student' or 'teacher'.
            layer: The last layer: 'backbone', 'projector' or 'predictor'.
            head_config: The config of the projector and the predictor. Default: the sample's `cfg`.
        """
        backbone = read_backbone(checkpoint, part)
        cfg = self.cfg
        if 'layer1.0.conv1.weight' in backbone.weights:
            resnet = resnet_of(backbone.weights, checkpoint)
            resnet['in_channels'] = cfg.model.backbone.get('in_channels', 3)
            cfg = Config(dict(model=dict(backbone=resnet)))
        network = load_backbone(cfg, backbone)
        if layer != 'backbone':
            network = WithHeads(network, heads_of(head_config or self.cfg, checkpoint, part, layer))
        return network.to(self.device, memory_format=torch.channels_last)


class WithHeads(nn.Module):
    """A backbone followed by heads, which take its pooled features."""

    def __init__(self, backbone: nn.Module, heads: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.heads = heads

    def forward(self, images: Tensor) -> Tensor:
        return self.heads(pooled(self.backbone(images)))


def heads_of(cfg: Config, checkpoint: str, part: str, layer: str) -> nn.Sequential:
    """Return the projector of a checkpoint in eval mode, followed by the predictor if `layer` is 'predictor'."""
    state = load_checkpoint(checkpoint).get('state_dict', {})
    heads = nn.Sequential()
    for name in ('projector', 'predictor')[: 1 if layer == 'projector' else 2]:
        prefix = f'{name}.' if part == 'student' else f'teacher.{name}.'
        weights = {
            key.removeprefix(prefix): value
            for key, value in state.items()
            if key.startswith(prefix)
        }
        if not weights or not cfg.model.get(name):
            raise UserError(
                f'{checkpoint}: the {part} has no {name}; choose another layer or part',
                code='no-such-head',
            )
        head = MODELS.build(cfg.model[name])
        require_same_keys(weights, head.state_dict(), checkpoint)
        head.load_state_dict(weights)
        heads.append(head)
    return heads.eval()
