"""Pre-training on a folder of your own images, in a line of Python."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mmairl.apis.suggest import config_for
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.foreign_transforms import as_configs
from mmairl.data.statistics import channel_statistics
from mmairl.engine.logging import log_to
from mmairl.engine.run import train
from mmairl.errors import UserError, cleared_frames
from mmairl.io import read_text

MEASURED = 5000  # images whose statistics are taken for those of all


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
    views: str | Sequence[Sequence[Any]] | None = None,
    seed: int | None = None,
    resume: bool = False,
    log: str | Sequence[str] = (),
    stop: str = '',
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Pre-train a ResNet-18, or the network of `weights`, on all images below a folder, and return the last checkpoint.

    It runs as `tools/train.py` does, in this process and on one device, and what goes wrong is a `UserError`. `out` also gets
    the config, by which `tools/train.py` goes on or starts anew. In a notebook it shows a progress bar and warnings;
    options={'log_level': 'INFO'} shows the log.

    Args:
        method: by the short name of its config: 'mocov2plus', 'byol', 'byol_lars', ..., or of another paper 'simclr', 'swav',
            'lejepa', ...; a wrong name lists them.
        data: a folder of images at any depth, without labels.
        out: where logs and checkpoints go.
        epochs: how often each image is seen.
        size: the side of the crops in pixels; less for small images.
        batch: images in a step; by default a sixteenth of the images, 16 at least and 256 at most.
        workers: processes that load images; by default one a core, 16 at most.
        channels: of images that are to be read as they are stored (TIFF, PNG, NPY of 8 or 16 bits or floats). Mean and std are
            measured, and where it is not 3, the views lose what only RGB has: grey, saturation and hue.
        weights: a checkpoint of any known project, or 'torchvision:resnet50', that student and teacher start from, with its
            network and a tenth of the learning rate: a full one first undoes what the weights know.
        views: 'satellite', 'microscopy', 'medical_grey' or 'documents': what is done to crops of images that are no photographs
            (mmairl/data/view_sets.yaml has the lists, with reasons). Or a list of steps for each view: configs, transforms
            of torchvision v2 or albumentations, and functions of a tensor C x H x W.
        seed: a CPU run with one repeats bit for bit.
        resume: go on from the newest checkpoint in `out`.
        log: 'wandb', 'mlflow' or both in a list: where curves go as well.
        stop: removed; `python -m projects.label_free.choose checkpoints` chooses a checkpoint without labels.
        options: config keys as `--cfg-options` has them, such as {'model.head.temperature': 0.1}.

    >>> mmairl.pretrain('mocov2plus', data='images/', out='runs/a', epochs=100)  # doctest: +SKIP
    PosixPath('runs/a/epoch_100.pth')
    """
    if stop:
        raise UserError(
            f"stop: pretrain no longer chooses a checkpoint ('{stop}'); leave it out, or choose one afterwards with "
            '`python -m projects.label_free.choose checkpoints`',
            code='label-free-moved',
        )
    if not Path(data).is_dir():
        raise UserError(f'there is no folder of images at {Path(data).resolve()}; check the path')
    dataset = UnlabelledFolder(data, channels=channels)
    # No worker is left behind in a notebook.
    chosen = {
        'train_dataloader.persistent_workers': False,
        'randomness.seed': seed,
        **(options or {}),
    }
    if views is not None and not isinstance(views, str):
        chosen['train_dataloader.dataset.views'] = list(map(as_configs, views))
        views = None
    how = dict(
        epochs=epochs,
        size=size,
        batch=batch,
        workers=workers,
        channels=channels,
        weights=weights,
        views=views,
    )
    cfg = config_for(method, len(dataset), data, chosen, **how)
    if channels is not None:
        measured = channel_statistics(dataset, cfg.train_dataloader.num_workers, MEASURED)
        normal = {
            'model.data_preprocessor.mean': measured.mean,
            'model.data_preprocessor.std': measured.std,
        }
        cfg.merge_from_dict({**normal, **chosen})
    if (
        Console().is_jupyter and 'log_level' not in chosen
    ):  # a cell shows the bar, and what is wrong
        cfg.log_level = 'WARNING'
    cfg.work_dir, cfg.resume = str(out), resume
    log_to(cfg, log)
    if not torch.cuda.is_available():
        said = 'there is no GPU here, so the CPU trains, far slower; fewer epochs, fewer images and a smaller size help'
        warnings.warn(said, stacklevel=3)
    train(cfg)
    return Path(read_text(Path(out) / 'last_checkpoint').strip())
