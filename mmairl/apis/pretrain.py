"""Pre-train on a folder of custom images with one line of Python."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from rich.console import Console
from torch import nn

from mmairl.apis.suggest import config_for
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.foreign_transforms import as_configs
from mmairl.data.statistics import channel_statistics
from mmairl.engine.logging import log_to
from mmairl.engine.run import train
from mmairl.errors import UserError, cleared_frames
from mmairl.io import read_text

SAMPLED = 5000  # images from which mean and standard deviation are estimated
NO_GPU = 'no GPU is available, and training on the CPU is slow; use fewer epochs, fewer images or a smaller size'


@cleared_frames()
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
    weights: str | Path | None = None,
    network: nn.Module | None = None,
    views: str | Sequence[Sequence[Any]] | None = None,
    seed: int | None = None,
    resume: bool = False,
    log: str | Sequence[str] = (),
    stop: str = '',
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Pre-train a network on all images below a folder, in this process and on one device.

    The default network is a ResNet-18. `out` also gets the config, with which `tools/train.py` resumes or repeats the run.
    A notebook shows a progress bar and warnings; `options={'log_level': 'INFO'}` shows the log.

    Args:
        method: Short name of a method, such as 'mocov2plus', 'byol' or 'dino'. The error for an unknown name lists all.
        data: A folder of images at any depth. Labels are not used.
        out: Folder for logs and checkpoints.
        epochs: How often each image is seen.
        size: Side of the crops in pixels. Choose a smaller one for small images.
        batch: Images per step. Default: a sixteenth of the images, at least 16 and at most 256.
        workers: Processes that load images. Default: one per core, at most 16.
        channels: Channels of images that are read as stored (TIFF, PNG or NPY of 8 or 16 bits or floats). Their mean and
            standard deviation are measured. Views of images without three channels skip steps that only RGB has.
        weights: A checkpoint of any known project, or a released model such as 'torchvision:resnet50', to start student and
            teacher from. The learning rate is a tenth, because a full rate undoes what the weights know.
        network: A module to train, from images to features, either pooled or a map. Exclusive with `weights`.
        views: 'satellite', 'microscopy', 'medical_grey' or 'documents': augmentations for images that are not photographs
            (mmairl/data/view_sets.yaml lists them with reasons). Or a list of steps for each view: configs, transforms of
            torchvision v2 or albumentations, and functions of a tensor C x H x W.
        seed: Seed. A CPU run with a seed repeats bit for bit.
        resume: Whether to resume from the newest checkpoint in `out`.
        log: 'wandb', 'mlflow', or a list of loggers that also receive the curves.
        stop: Removed; `python -m projects.label_free.choose checkpoints` chooses a checkpoint without labels.
        options: Config keys, as in `--cfg-options`, such as {'model.head.temperature': 0.1}.

    Returns:
        The last checkpoint.

    Raises:
        UserError: If an argument is invalid, images cannot be read, or training fails.

    Example:
        >>> mmairl.pretrain('mocov2plus', data='images/', out='runs/a', epochs=100)  # doctest: +SKIP
        PosixPath('runs/a/epoch_100.pth')
    """
    _check_arguments(data, stop)
    request = dict(
        epochs=epochs,
        size=size,
        batch=batch,
        workers=workers,
        channels=channels,
        weights=weights,
        network=network,
        views=views,
    )
    options = dict(options or {})
    if views is not None and not isinstance(views, str):
        options['train_dataloader.dataset.views'] = list(map(as_configs, views))
        request['views'] = None
    cfg = _config(method, data, seed, options, request)
    cfg.work_dir = str(out)
    cfg.resume = resume
    log_to(cfg, log)
    if not torch.cuda.is_available():
        warnings.warn(NO_GPU, stacklevel=3)
    train(cfg)
    return Path(read_text(Path(out) / 'last_checkpoint').strip())


def _check_arguments(data: str | Path, stop: str) -> None:
    if stop:
        raise UserError(
            f"stop: pretrain no longer chooses a checkpoint ('{stop}'); leave it out, or choose one afterwards with "
            '`python -m projects.label_free.choose checkpoints`',
            code='label-free-moved',
        )
    if not Path(data).is_dir():
        raise UserError(
            f"data: no such folder ('{Path(data).resolve()}'); check the path", code='no-folder'
        )


def _config(
    method: str,
    data: str | Path,
    seed: int | None,
    options: Mapping[str, Any],
    request: Mapping[str, Any],
) -> Config:
    """Return the config of the run, with measured statistics for images that are read as stored."""
    channels = request['channels']
    dataset = UnlabelledFolder(data, channels=channels)
    # A notebook keeps the process, and with it persistent workers.
    overrides = {'train_dataloader.persistent_workers': False, 'randomness.seed': seed, **options}
    cfg = config_for(method, len(dataset), data, overrides, **request)
    if channels is not None:
        measured = channel_statistics(dataset, cfg.train_dataloader.num_workers, SAMPLED)
        normalization = {
            'model.data_preprocessor.mean': measured.mean,
            'model.data_preprocessor.std': measured.std,
        }
        cfg.merge_from_dict({**normalization, **overrides})
    if Console().is_jupyter and 'log_level' not in overrides:
        cfg.log_level = 'WARNING'  # a cell shows the progress bar and warnings only
    return cfg
