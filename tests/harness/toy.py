"""The repository's configs at toy size: the same networks and recipes with a narrow ResNet-18, fixed random views and few
steps.
"""

import contextlib
import multiprocessing
from itertools import count
from pathlib import Path

import torch
from mmengine.config import Config
from mmengine.config import config as config_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmairl.config import load_config
from mmairl.models.norm import SyncBN
from mmairl.registry import DATASETS, MODELS

# mmengine's formatter is skipped, because it takes longer than all steps of a toy run.
config_file.FormatCode = lambda text, **_: (text, True)
# These options make a config of `suggest` small.
NARROW = {
    'model.backbone.stem_channels': 8,
    'model.backbone.base_channels': 8,
    'model.projector.in_channels': 64,
    'model.projector.hidden_channels': 32,
    'model.predictor.hidden_channels': 32,
}
# The online k-NN uses these images instead of those in a config's `evaluation`.
KNN = {
    part: dict(type='Shapes', split='val', count=count, size=32)
    for part, count in (('train', 49), ('test', 24))
}
KNN['_delete_'] = True
RUNS = count()
CONFIGS = Path(__file__).parents[2] / 'configs'


def end_workers() -> None:
    """End the data workers of interrupted runs, since torch would wait five seconds for each."""
    for worker in multiprocessing.active_children():
        # torch raises this error when it notices that a worker has ended.
        with contextlib.suppress(RuntimeError):
            worker.terminate()
            worker.join()


@DATASETS.register_module(force=True)
class FixedViews(Dataset):
    """A data set with `count` images, whose random views are always the same."""

    def __init__(
        self, count: int = 32, size: int = 32, views: int = 2, dtype: str = 'float32'
    ) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.randn(
            count, views, 3, size, size, generator=generator, dtype=getattr(torch, dtype)
        )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict:
        return dict(
            inputs=list(self.images[index]), data_samples=dict(label=index % 4, index=index)
        )


@MODELS.register_module(force=True)
class Small(nn.Module):
    """A backbone with two blocks and SyncBN. A parameter outside the blocks is frozen."""

    def __init__(self, width: int = 11) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(0, 1, 3).view(3, 1, 1), requires_grad=False)
        self.blocks = nn.Sequential(Block(3, width), Block(width, 2 * width))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.blocks(x + self.shift),)


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm = SyncBN(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


def config(
    name: str,
    work_dir: str,
    *,
    steps: int = 3,
    batch: int = 8,
    queue: int = 20,
    dtype: str = 'float32',
    width: int = 16,
    **options,
) -> Config:
    """Return a config with a ResNet-18 of this width (64 in the original), or with a ViT of one layer."""
    cfg = load_config(str(CONFIGS / name))
    views = len(cfg.train_dataloader.dataset.get('views') or [None, None])
    features = 8 * width
    if any(name in cfg.model.backbone.type for name in ('VisionTransformer', 'MoCoV3ViT')):
        arch = dict(embed_dims=features, num_layers=1, num_heads=8, feedforward_channels=64)
        cfg.model.backbone.update(arch=arch, img_size=32, patch_size=8)
    elif cfg.model.backbone.type == 'TimmBackbone':
        cfg.model.backbone.update(
            embed_dim=features, depth=1, num_heads=8, img_size=32, patch_size=8
        )
    else:
        cfg.model.backbone.update(depth=18, stem_channels=width, base_channels=width)
    if cfg.model.type == 'Classifier':
        cfg.model.update(in_channels=features, classes=4)
    else:
        cfg.model.projector.update(in_channels=features, out_channels=16)
    if cfg.model.get('teacher'):
        tiny = dict(
            type='TimmBackbone', name='vit_tiny_patch16_224', embed_dim=16, depth=1, num_heads=2
        )
        cfg.model.teacher.backbone = dict(tiny, img_size=32, patch_size=8, dynamic_img_size=True)
    if cfg.model.get('patch_projector'):
        cfg.model.patch_projector.update(in_channels=features, hidden_channels=64, out_channels=16)
    if cfg.model.get('projector', {}).get('hidden_channels'):
        cfg.model.projector.hidden_channels = 64
    if cfg.model.get('predictor'):
        cfg.model.predictor.update(in_channels=16, hidden_channels=64, out_channels=16)
    if cfg.model.get('head', {}).get('channels'):
        cfg.model.head.channels = 16
    if cfg.model.get('queue'):
        cfg.model.queue.length = queue
    cfg.model.data_preprocessor = dict(type='BaseDataPreprocessor')
    cfg.train_dataloader = dict(
        num_workers=0,
        drop_last=True,
        sampler=dict(type='ResumableSampler', shuffle=False),
        collate_fn=dict(type='default_collate'),
        dataset=dict(type='FixedViews', count=steps * batch, views=views, dtype=dtype),
    )
    cfg.total_batch_size = batch
    # The recipes scale the rate linearly with the batch.
    cfg.optim_wrapper.optimizer.lr *= batch / 1024
    cfg.train_cfg = dict(by_epoch=False, max_iters=steps)
    cfg.param_scheduler = [
        dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=False, begin=0, end=steps)
    ]
    cfg.default_hooks.checkpoint = dict(type='ExactCheckpointHook', by_epoch=False, interval=1)
    cfg.default_hooks.pop('progress')
    cfg.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    cfg.work_dir = work_dir
    # mmengine keeps one logger, hub and visualizer per experiment name. The default name is the time in
    # seconds, so two runs could share these objects.
    cfg.experiment_name = f'toy{next(RUNS)}'
    cfg.randomness.seed = 3
    cfg.env_cfg.mp_cfg.mp_start_method = 'fork'
    cfg.merge_from_dict(options)
    return cfg
