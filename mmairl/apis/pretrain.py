"""Pre-train a network on a folder of custom images with one line of Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmengine.config import Config
from rich.console import Console
from torch import nn

from mmairl.apis.continuation import guarded
from mmairl.apis.suggest import config_for
from mmairl.config import override
from mmairl.data.datasets import UnlabelledFolder
from mmairl.data.preprocess import channel_statistics
from mmairl.data.transforms import as_configs
from mmairl.engine.logging import log_to
from mmairl.engine.run import train
from mmairl.hardware import cores
from mmairl.io import read_json, read_text

SAMPLED = 5000  # number of images from which the mean and standard deviation of each channel are estimated


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
    teacher: str | Path | None = None,
    labels: str | Path | None = None,
    views: str | Sequence[Sequence[Any]] | None = None,
    seed: int | None = None,
    resume: bool = False,
    log: str | Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> Path:
    """Pre-train a network on all images below a folder, in this process and on one device.

    The default network is a ResNet-18. The config is written to the folder `out`, so that `tools/train.py` can resume or
    repeat the run. Notebooks show only a progress bar and warnings. To see the log, pass `options={'log_level': 'INFO'}`.

    Args:
        method: Short name of a method, such as 'byol'. The error for an unknown name lists all names.
        data: A folder of images at any depth. Labels are not used.
        out: Folder for logs and checkpoints.
        epochs: Number of passes over the images.
        size: Side of the crops in pixels. Choose a smaller size for small images.
        batch: Images per step. Default: about a sixteenth of the images, at least 16 and at most 256.
        workers: Number of processes that load images. Default: one per core, at most 16.
        channels: Number of channels of the images. If it is set, images (TIFF, PNG or NPY; 8 bits, 16 bits or floats) are
            used as stored instead of being converted to 8-bit RGB, and their mean and standard deviation are measured. If
            `channels` is not 3, the augmentations that require RGB are skipped.
        weights: A checkpoint in any format that mmairl reads, or a released model such as 'torchvision:resnet50', to
            initialize student and teacher. The learning rate is then divided by 10, and prototypes stay frozen at first,
            because the learned features would otherwise be destroyed.
        network: A module to train instead of the ResNet-18. It maps images to pooled features, a feature map or tokens.
        teacher: The network that the method 'distill' distills, given like `weights`. Default: DINOv2's ViT-S/14.
        labels: A folder of labeled images, as in `mmairl.evaluate`, that guards the run: the k-NN accuracy is measured before
            the first step and during the run, and the initial weights are kept unless later ones are better by more than
            chance (see `GuardHook`).
        views: Augmentations of each view. Default: those of the method. For images that are not photographs, choose
            'satellite', 'microscopy', 'medical_gray' or 'documents' (configs/_base_/views explains these choices). For
            custom augmentations, pass one list of transforms per view. A transform is a config, an object of torchvision v2
            or albumentations, or a function of a tensor of shape (C, H, W).
        seed: Random seed. Runs with the same seed are bit-identical on a CPU.
        resume: Whether to resume from the newest checkpoint in `out`.
        log: Experiment trackers that also receive the training curves: 'wandb', 'mlflow', or a list of both.
        options: Config keys to override, as in `--cfg-options`, such as {'model.head.temperature': 0.1}.

    Returns:
        Absolute path of the last checkpoint or, with `labels`, of the checkpoint to use.

    Raises:
        UserError: If an argument is invalid, images cannot be read, or training fails.

    Example:
        >>> mmairl.pretrain('mocov2plus', data='images/', out='runs/a', epochs=100)  # doctest: +SKIP
        PosixPath('/home/user/runs/a/epoch_100.pth')
    """
    request = dict(epochs=epochs, size=size, batch=batch, workers=workers, channels=channels)
    request |= dict(weights=weights, network=network, views=views, teacher=teacher)
    cfg = _config(method, data, {'randomness.seed': seed, **(options or {})}, request)
    if labels is not None:
        override(cfg, guarded(labels, cfg), str(labels))
    cfg.work_dir = str(out)
    cfg.resume = resume
    log_to(cfg, log)
    train(cfg)
    checkpoint = read_text(Path(out) / 'last_checkpoint').strip()
    if labels is not None:
        checkpoint = read_json(Path(out) / 'guard.json')['checkpoint']
    images, page = str(data), str(Path(out) / 'map.html')
    # Without a config, the network is recognized by its weights.
    config = f', config={str(Path(out) / cfg.filename)!r}' if network is not None else ''
    hint = '  # if labels/CLASS has labeled images' if labels is None else ''
    print(f'checkpoint: {checkpoint}')
    print(f'next: mmairl.evaluate({checkpoint!r}, {str(labels or "labels")!r}{config}){hint}')
    print(f'next: features, names = mmairl.embed({checkpoint!r}, {images!r}{config})')
    print(f'next: mmairl.map_images({checkpoint!r}, {images!r}, {page!r}{config})')
    return Path(checkpoint)


def _config(
    method: str, data: str | Path, options: Mapping[str, Any], request: dict[str, Any]
) -> Config:
    """Return the config of the run. If images are used as stored, measure their mean and standard deviation."""
    dataset = UnlabelledFolder(data, channels=request['channels'])
    # In a notebook, persistent workers would outlive the run.
    defaults: dict[str, Any] = {'train_dataloader.persistent_workers': False}
    if Console().is_jupyter:
        defaults['log_level'] = 'WARNING'
    if request['channels']:
        workers = cores() if request['workers'] is None else request['workers']
        measured = channel_statistics(dataset, workers, SAMPLED)
        defaults['model.data_preprocessor.mean'] = measured.mean
        defaults['model.data_preprocessor.std'] = measured.std
    views = request['views']
    if views is not None and not isinstance(views, str):
        request['views'] = None
        defaults['train_dataloader.dataset.views'] = list(map(as_configs, views))
        # The size of the crops is unknown, because any function can be a transform.
        defaults['preprocessing.size'] = request['size']
    cfg = config_for(method, len(dataset), data, defaults | options, **request)
    # Logs and tables show the name of the config, so it states the method, the network and the data.
    backbone = cfg.model.backbone
    kind = backbone.get('name') or backbone.type.split('.')[-1]
    network = f'{kind}{backbone.get("depth", "")}'.lower()
    name = f'{method}_{network}_{Path(data).resolve().name}.py'
    object.__setattr__(cfg, '_filename', name)
    return cfg
