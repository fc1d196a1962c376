"""Settings and command line of the scripts that train BYOL with other libraries, for comparison with mmairl's BYOL.

A scale is a size of the data, networks and schedules of mmairl's studies. `Sizes` reads the settings at a scale.
"""

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
        """Return the settings of the transform of this type in the first view."""
        return next(step for step in self.views[0] if step['type'] == name)

    @quiet()
    def backbone(self) -> nn.Module:
        """Return the backbone with torchvision's initialization."""
        backbone = MODELS.build(self.network)
        backbone.init_weights()
        return backbone

    def images(self) -> Tensor:
        """Return all training images of the scale as one tensor."""
        data = DATASETS.build({**innermost(self.cfg.train_dataloader.dataset), 'views': None})
        return torch.stack([data.raw(index) for index in range(len(data))])

    def per_epoch(self, images: Tensor) -> int:
        return len(images) // self.batch

    def batches(self, images: Tensor, views: Sequence[View], epochs: int) -> Iterator[list[Tensor]]:
        """Yield the normalized views of each batch, in a new order in each epoch. An incomplete last batch is left out.

        To save time, Pillow images are created only once, and normalization acts on whole batches.
        """
        mean, std = (torch.tensor(values).view(3, 1, 1) for values in (self.mean, self.std))
        pictures = [to_pil_image(image) for image in images]
        for _ in range(epochs):
            for rows in torch.randperm(len(images)).split(self.batch)[: self.per_epoch(images)]:
                view_images = zip(*([view(pictures[row]) for view in views] for row in rows))
                arrays = (
                    torch.from_numpy(np.stack([np.asarray(image) for image in side]))
                    for side in view_images
                )
                # The channels are the last dimension of stacked images.
                yield [normalize(side.permute(0, 3, 1, 2), mean, std) for side in arrays]


# A training function. It receives seed, sizes, images and number of epochs, and returns a checkpoint.
Train = Callable[[int, Sizes, Tensor, int], dict]


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
    """Run the command line: train with each seed and write one checkpoint per seed.

    `epochs` is the default of --epochs. If it is None, the scale determines the number of epochs.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        '--scale',
        default='demo',
        help='use this scale: demo or a YAML file; its images must have one size and fit in memory (default: demo)',
    )
    parser.add_argument(
        '--seeds',
        type=int,
        nargs='+',
        default=[0, 1, 2],
        help='train with these seeds, one after the other (default: 0 1 2); to use more cores, start several commands',
    )
    parser.add_argument(
        '--epochs',
        type=int,
        default=epochs,
        help=f'train this many epochs (default: {epochs or "the number of epochs of the scale"})',
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
