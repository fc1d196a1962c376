"""Pre-train on a folder of your own images, and embed them, in a line of Python each.

    import mmairl

    mmairl.pretrain('mocov2plus', data='images/', out='runs/a', epochs=100)
    names, features = mmairl.embed('runs/a/epoch_100.pth', 'images/')

`pretrain` writes a config of a few lines into `out` and trains it the way `tools/train.py` does, so that the same run can go on
from the command line.
"""

from pathlib import Path

import torch
from torch import Tensor

from mmairl.configs import load_config
from mmairl.data.folders import UnlabelledFolder
from mmairl.engine.launch import train
from mmairl.errors import UserError
from mmairl.evaluation.features import Extraction, extract
from mmairl.files import write_text
from mmairl.models.resnet import ResNet
from mmairl.weights.architecture import resnet_of
from mmairl.weights.read import read_backbone

IMAGENET = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
TEST_VIEW = [dict(type='Resize', size=256), dict(type='CenterCrop', size=224)]


def config_for(method: str, data: str | Path, images: int, epochs: int = 100, batch: int | None = None) -> str:
    """A config that pre-trains a ResNet-18 by `method` on a folder of so many images; each choice says its reason.

    >>> print(config_for('mocov2plus', 'images/', 5000).splitlines()[0])
    # mocov2plus on 5000 images of images/, 100 epochs
    """
    base = load_config(f'mmairl::{method}_r50_200e.py')
    if images < 64:
        raise UserError(f'{data} holds {images} images, too few to learn from; give a folder of hundreds or more')
    batch = batch or min(256, power_of_two(images // 16))
    rate = base.optim_wrapper.optimizer.lr * batch / base.total_batch_size
    steps, warm_up = images // batch * epochs, max(1, epochs // 20)
    teacher = min(base.default_hooks.momentum.base, round(1 - 50 / max(steps, 500), 4))
    lines = [
        f'# {method} on {images} images of {data}, {epochs} epochs',
        f"_base_ = 'mmairl::{method}_r50_200e.py'",
        '# Customary for small sets: a ResNet-18.',
        'model = dict(backbone=dict(depth=18), projector=dict(in_channels=512))',
        '# At least 16 steps an epoch; the rate follows the batch by the linear rule of the paper.',
        f'total_batch_size = {batch}',
        f'optim_wrapper = dict(optimizer=dict(lr={rate:g}))',
        f'auto_scale_lr = dict(base_batch_size={batch})',
        "# The teacher averages over at most a fiftieth of the run, else it stays near the random start.",
        f'default_hooks = dict(momentum=dict(base={teacher}), checkpoint=dict(interval={max(1, epochs // 10)}))',
        f"train_dataloader = dict(dataset=dict(type='UnlabelledFolder', root={str(data)!r}))",
        "# The paper's schedule: a twentieth of the run is warm-up, then a cosine to 0.",
        'param_scheduler = [',
        f"    dict(type='LinearLR', start_factor={1e-6 / rate:g}, by_epoch=True, begin=0, end={warm_up}, "
        'convert_to_iter_based=True),',
        f"    dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin={warm_up}, end={epochs}, "
        'convert_to_iter_based=True),',
        ']',
        f'train_cfg = dict(max_epochs={epochs})',
    ]
    if base.model.get('queue'):
        length = max(batch, min(base.model.queue.length, power_of_two(images // 4)))
        lines += [
            '# At most a quarter of the set: a key of the same image would count as a negative.',
            f"model['queue'] = dict(length={length})",
        ]
    return '\n'.join([*lines, ''])


def power_of_two(number: int) -> int:
    """The largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def pretrain(method: str, data: str | Path, out: str | Path, epochs: int = 100, batch: int | None = None, **options):
    """Pre-train by a method of this package on a folder of images, and return the finished runner.

    `options` are config keys, with `__` for a dot: `randomness__seed=0`. Called again with the same `out`, it goes on from the
    newest checkpoint there.
    """
    images = len(UnlabelledFolder(root=str(data), views=[]))
    file = Path(out) / 'config.py'
    if not file.is_file():
        write_text(file, config_for(method, data, images, epochs, batch))
    cfg = load_config(str(file), {key.replace('__', '.'): value for key, value in options.items()})
    cfg.work_dir, cfg.resume = str(out), True
    return train(cfg)


def embed(
    checkpoint: str | Path, images: str | Path, part: str = 'student', device: str | None = None, **statistics
) -> tuple[list[str], Tensor]:
    """File names of a folder and their features, one row each, from a ResNet's checkpoint of this or another project."""
    found = read_backbone(checkpoint, part)
    backbone = ResNet(**{key: value for key, value in resnet_of(found.weights, str(checkpoint)).items() if key != 'type'})
    backbone.load_state_dict(found.weights)
    dataset = UnlabelledFolder(root=str(images), views=[TEST_VIEW])
    how = Extraction(**{**IMAGENET, **statistics}, device=device or ('cuda' if torch.cuda.is_available() else 'cpu'))
    return [str(path) for path in dataset.paths], extract(backbone.requires_grad_(False), dataset, how).x
