"""Pre-training on a folder of your own images, in a line of Python."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from mmairl.configs import home, load_config
from mmairl.data.folders import UnlabelledFolder
from mmairl.data.statistics import statistics
from mmairl.engine.launch import train
from mmairl.engine.loggers import log_to
from mmairl.errors import UserError, as_user_errors, closest
from mmairl.machine import cores

FEWEST, LARGEST_BATCH, LONGEST_QUEUE = 64, 256, 16_384
MEASURED = 5000  # images whose statistics are taken for those of all


@as_user_errors()
def pretrain(
    method: str,
    data: str | Path,
    out: str | Path,
    epochs: int = 100,
    *,
    size: int = 224,
    batch: int | None = None,
    workers: int | None = None,
    channels: int | None = None,
    seed: int | None = None,
    resume: bool = False,
    log: str | Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Pre-train a ResNet-18 on all images below a folder, and return the last checkpoint.

    It runs as `tools/train.py` does, in this process and on one device, and what goes wrong is a `UserError`. `out` also gets
    the config, by which `tools/train.py` goes on or starts anew.

    Args:
        method: a framework by the short name of its config, such as 'mocov2plus', 'smocov2plus', 'byol' or 'byol_lars'.
        data: a folder of images at any depth, without labels.
        out: where logs and checkpoints go.
        epochs: how often each image is seen.
        size: the side of the crops in pixels; less for small images.
        batch: images in a step; by default a sixteenth of the images, 16 at least and 256 at most.
        workers: processes that load images; by default one a core, 8 at most.
        channels: of images that are to be read as they are stored (TIFF, PNG, NPY of 8 or 16 bits or floats). Mean and std are
            measured, and where it is not 3, the views lose what only RGB has: grey, saturation and hue.
        seed: a CPU run with one repeats bit for bit.
        resume: go on from the newest checkpoint in `out`.
        log: 'wandb', 'mlflow' or both in a list: where curves go as well.
        options: config keys as `--cfg-options` has them, such as {'model.head.temperature': 0.1}.

    >>> mmairl.pretrain('mocov2plus', data='images/', out='runs/a', epochs=100)  # doctest: +SKIP
    PosixPath('runs/a/epoch_100.pth')
    """
    if not Path(data).is_dir():
        raise UserError(f'there is no folder of images at {Path(data).resolve()}; check the path')
    dataset, workers = UnlabelledFolder(data, channels=channels), min(8, cores()) if workers is None else workers
    chosen = {'train_dataloader.num_workers': workers, 'randomness.seed': seed}
    if channels is not None:
        found = statistics(dataset, workers, MEASURED)
        normal = {'model.data_preprocessor.mean': found.mean, 'model.data_preprocessor.std': found.std}
        chosen |= {'train_dataloader.dataset.channels': channels, 'model.backbone.in_channels': channels, **normal}
    cfg = config_for(method, data, len(dataset), epochs, size, batch, {**chosen, **(options or {})})
    if channels not in (None, 3):
        cfg.train_dataloader.dataset.views = [without_rgb(view) for view in cfg.train_dataloader.dataset.views]
    cfg.work_dir, cfg.resume = str(out), resume
    log_to(cfg, log)
    if not torch.cuda.is_available():
        said = 'there is no GPU here, so the CPU trains, far slower; fewer epochs, fewer images and a smaller size help'
        warnings.warn(said, stacklevel=3)
    train(cfg)
    return Path((Path(out) / 'last_checkpoint').read_text().strip())


def config_for(
    method: str,
    data: str | Path,
    images: int,
    epochs: int,
    size: int = 224,
    batch: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Config:
    """The framework's config for a ResNet-18 on so many images; on a large set, that of mocov2plus_r18_folder_100e.py."""
    base = load_config(full_size(method))
    if images < FEWEST:
        raise UserError(f'{data} holds {images} images, too few to learn from; give a folder of at least {FEWEST}')
    batch = batch or batch_for(images)
    steps, model, views = images // batch * epochs, base.model, base.train_dataloader.dataset.views
    views = [[{**step, 'size': size} if 'size' in step else step for step in view] for view in views]
    # the papers' ten epochs, and a tenth of a shorter run
    warm_up = min(base.param_scheduler[0].end, max(1, epochs // 10))
    chosen = {
        'train_dataloader.dataset': dict(_delete_=True, type='UnlabelledFolder', root=str(data), views=views),
        'train_dataloader.persistent_workers': False,  # none is left behind in a notebook
        'model.backbone.depth': 18,
        'model.projector.in_channels': 512,
        'total_batch_size': batch,
        # The linear rule of the papers.
        'optim_wrapper.optimizer.lr': base.optim_wrapper.optimizer.lr * batch / base.total_batch_size,
        'auto_scale_lr.base_batch_size': batch,
        'train_cfg.max_epochs': epochs,
        'param_scheduler.0.end': warm_up,
        'param_scheduler.1.begin': warm_up,
        'default_hooks.momentum.base': min(base.default_hooks.momentum.base, highest_momentum(steps)),
        'default_hooks.checkpoint.interval': max(1, epochs // 10),
    }
    if model.projector.hidden_channels == model.projector.in_channels:  # as wide as the features, in MoCo v2
        chosen['model.projector.hidden_channels'] = 512
    if model.get('queue'):
        chosen['model.queue.length'] = queue_for(images, batch)
    return load_config(full_size(method), {**chosen, **(options or {})})


def full_size(method: str) -> str:
    """The config of a framework, at full size."""
    known = {path.name.removesuffix('_r50_200e.py') for path in (home() / 'configs').glob('*_r50_200e.py')}
    if method not in known:
        raise UserError(
            f"there is no framework '{method}'{closest(method, known, 0.6)}; say one of {', '.join(sorted(known))}"
        )
    return f'mmairl::{method}_r50_200e.py'


def without_rgb(view: list[dict]) -> list[dict]:
    """The view without what only RGB has."""
    kept = [step for step in view if step['type'] != 'RandomGrayscale']
    return [{**step, 'saturation': 0, 'hue': 0} if step['type'] == 'ColorJitter' else step for step in kept]


def batch_for(images: int) -> int:
    """Sixteen steps an epoch, where there are images enough; a smaller batch says little about its statistics."""
    return max(16, min(LARGEST_BATCH, power_of_two(images // 16)))


def queue_for(images: int, batch: int) -> int:
    """A quarter of the images at most: the key of the same image would be a negative."""
    return max(batch, min(LONGEST_QUEUE, power_of_two(images // 4)))


def highest_momentum(steps: int) -> float:
    """The teacher averages over a fiftieth of the run at most: else it stays near its random start."""
    return 1 - 50 / max(steps, 500)


def power_of_two(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)
