"""Define the size of a row at a scale for the code of other libraries, and the command line that trains several seeds."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from mmairl.data.preprocess import normalize
from mmairl.engine.run import register
from mmairl.evaluation.sets import innermost
from mmairl.registry import DATASETS, MODELS
from mmairl.study.scale import read_scale, resolve
from mmairl.study.spec import Row
from projects.benchmark.step import quiet

View = Callable[[Image], Image]


class Sizes:
    """Settings of mmairl's BYOL with LARS at a scale: network, images, views, batch, schedule and teacher momentum."""

    def __init__(self, scale: str) -> None:
        register()
        self.cfg = cfg = resolve(Row('ours', 'byol_lars_r50_200e.py'), read_scale(scale))
        projector, prepared = cfg.model.projector, cfg.model.data_preprocessor
        self.batch, self.epochs = cfg.total_batch_size, cfg.train_cfg.max_epochs
        self.rate, self.tau = cfg.optim_wrapper.optimizer.lr, cfg.default_hooks.momentum.base
        self.warm_up = next(part.end for part in cfg.param_scheduler if part.type == 'WarmUpLR')
        self.network = {**cfg.model.backbone, 'norm_cfg': dict(type='BN')}
        self.widths = projector.in_channels, projector.hidden_channels, projector.out_channels
        self.views = prepared.get('views') or innermost(cfg.train_dataloader.dataset).views
        self.mean, self.std = prepared.mean, prepared.std

    def view_step(self, name: str) -> dict[str, Any]:
        """Return the settings that the first view gives to a transform."""
        return next(step for step in self.views[0] if step['type'] == name)

    @quiet()
    def backbone(self) -> nn.Module:
        """Return the backbone with torchvision's initialization."""
        backbone = MODELS.build(self.network)
        backbone.init_weights()
        return backbone

    def images(self) -> Tensor:
        """Return the training images, which are drawn once."""
        data = DATASETS.build({**innermost(self.cfg.train_dataloader.dataset), 'views': None})
        return torch.stack([data.raw(index) for index in range(len(data))])

    def per_epoch(self, images: Tensor) -> int:
        return len(images) // self.batch

    def batches(self, images: Tensor, views: Sequence[View], epochs: int) -> Iterator[list[Tensor]]:
        """Yield the normalized views of each batch, in a new order in each epoch, without an incomplete last batch.

        To save time, Pillow images are created once, and whole batches are normalized.
        """
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        pictures = [to_pil_image(image) for image in images]
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(self.batch)[: self.per_epoch(images)]:
                seen = zip(*([view(pictures[row]) for view in views] for row in rows))
                stacked = (
                    torch.from_numpy(np.stack([np.asarray(image) for image in side]))
                    for side in seen
                )
                # Stacked images have their channels last.
                yield [normalize(side.permute(0, 3, 1, 2), mean, std) for side in stacked]


Train = Callable[[int, Sizes, Tensor, int], dict]  # (seed, sizes, images, epochs) -> checkpoint


def lightning(
    state: dict, optimizer: torch.optim.Optimizer, epochs: int, steps: int, settings: dict
) -> dict:
    """Return a checkpoint with the keys that Lightning writes."""
    return {
        'pytorch-lightning_version': '2.5.0',
        'epoch': epochs - 1,
        'global_step': steps,
        'state_dict': state,
        'optimizer_states': [optimizer.state_dict()],
        'hyper_parameters': settings,
    }


def main(train: Train, about: str, out: str, epochs: int | None = None) -> None:
    """Train from each seed and write one checkpoint each. By default, the number of epochs is the scale's."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--scale', default='demo', help='of drawn images: demo, or the path of your own YAML'
    )
    parser.add_argument(
        '--seeds',
        type=int,
        nargs='+',
        default=[0, 1, 2],
        help='start one process each to use more cores',
    )
    parser.add_argument(
        '--epochs',
        type=int,
        default=epochs,
        help=f'default: {epochs or "those of our rows at the scale"}',
    )
    parser.add_argument('--out', type=Path, default=Path(out))
    args = parser.parse_args()
    sizes = Sizes(args.scale)
    images = sizes.images()
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        torch.save(
            train(seed, sizes, images, args.epochs or sizes.epochs), args.out / f'seed_{seed}.ckpt'
        )
        print(args.out / f'seed_{seed}.ckpt', flush=True)
