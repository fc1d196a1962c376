"""A framework's config for one's own images and hardware: each number has its reason, which `suggest` prints beside it."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmairl.configs import home, load_config
from mmairl.errors import UserError, closest
from mmairl.machine import cores
from mmairl.weights.formats import backbone_of
from mmairl.weights.load import is_released
from mmairl.weights.read import read_backbone

FEWEST, LARGE = 64, 1_000_000  # images
LOWER = 10  # the rate's divisor where a run goes on from weights
# The configs of the paper's frameworks, and of other methods, whose names begin with the method's.
PAPERS = ('configs/*_r50_200e.py',)
OTHERS = ('projects/more_methods/configs/*_r50_*e.py', 'projects/byol_variants/configs/simclr_r50_300e.py')
SHARE, LARGEST_BATCH, LONGEST_QUEUE, MOST_WORKERS = 256, 1024, 65_536, 16


@dataclass(frozen=True)
class Choice:
    """Settings by their dotted keys, and why they are so: `known` from a paper, or merely `customary`."""

    settings: Mapping[str, Any]
    sort: str
    reason: str


def config_for(
    method: str, images: int, data: str | Path, options: Mapping[str, Any] | None = None, **how: Any
) -> Config:
    """Return the framework's config for so many images in the folder `data`; `how` is passed on to `choices`."""
    return load_config(full_size(method), {**_settings(choices(method, images, data, **how)), **(options or {})})


def choices(
    method: str,
    images: int,
    data: str | Path,
    *,
    gpus: int = 1,
    epochs: int | None = None,
    size: int = 224,
    batch: int | None = None,
    workers: int | None = None,
    channels: int | None = None,
    weights: str | Path | None = None,
) -> list[Choice]:
    """Return what differs from the framework's full-size config, for so many images on so many GPUs.

    With `weights`, a checkpoint of any known project, student and teacher start from its backbone.
    """
    base = load_config(full_size(method))
    if images < FEWEST:
        raise UserError(
            f'{images} images are too few to learn from; give at least {FEWEST}, or start from published weights'
        )
    large, momentum = images >= LARGE, base.default_hooks.momentum
    batch = batch or max(1, (min(LARGEST_BATCH, SHARE * gpus) if large else batch_for(images)) // gpus) * gpus
    epochs = epochs or (200 if large else 400 if images >= 100_000 else 800)
    steps = images // batch * epochs
    start = min(momentum.base, round(1 - 50 / max(steps, 500), 4))
    workers = max(1, min(MOST_WORKERS, cores() // gpus)) if workers is None else workers
    schedule = {'train_cfg.max_epochs': epochs, 'default_hooks.checkpoint.interval': max(1, epochs // 10)}
    if len(base.param_scheduler) > 1:
        warm_up = min(base.param_scheduler[0].end, max(1, epochs // 10))
        schedule |= {'param_scheduler.0.end': warm_up, 'param_scheduler.1.begin': warm_up}
    network, rate = begun_from(weights, base, batch) if weights else begun_anew(base, batch)
    made = [
        network,
        Choice(
            {'total_batch_size': batch},
            'known' if batch in (SHARE, LARGEST_BATCH) else 'customary',
            "256 is MoCo's and 1024 the benchmark's; smaller ones give a small set 16 steps an epoch or more.",
        ),
        rate,
        Choice(
            {'default_hooks.momentum.base': start},
            'known' if start == momentum.base else 'customary',
            f"the benchmark's is {momentum.base:g}; short runs have less. The teacher first averages over "
            f'{1 / (1 - start):.0f} of the {steps:,} steps, a fiftieth at most: else it stays near its random start.',
        ),
        Choice(
            schedule,
            'known' if epochs == 200 else 'customary',
            "200 is the papers' on 1.28 million images, ten of them for the warm-up. Small sets are given more: others give "
            '400 to ImageNet-100 and 800 to Imagenette. Start with a tenth, and look at the health page.',
        ),
        Choice(
            {'train_dataloader.num_workers': workers},
            'customary',
            f'a data worker for each of the {cores()} cores here, shared by the GPUs, and at most {MOST_WORKERS}. If the '
            'health page shows time spent waiting for data, give more.',
        ),
    ]
    if base.model.get('queue'):
        length = LONGEST_QUEUE if large else queue_for(images, batch)
        made.append(
            Choice(
                {'model.queue.length': length},
                'customary',
                f'{100 * length / images:.0f} % of the images; the oldest key is {-(-length // batch)} steps old. MoCo found '
                'that more negatives do better, and has 65536 of 1.28 million images (5 %); beyond a quarter, too many images '
                'meet their own old keys.',
            )
        )
    dataset, views = dict(type='UnlabelledFolder', root=str(data)), base.train_dataloader.dataset.to_dict()['views']
    reason = "a folder of images at any depth, with the framework's views."
    if size != 224:
        largest = max(step['size'] for view in views for step in view if 'size' in step)
        dataset['views'] = views = [
            [{**step, 'size': round(step['size'] * size / largest)} if 'size' in step else step for step in view]
            for view in views
        ]
    if channels:
        normal = {f'model.data_preprocessor.{key}': [value] * channels for key, value in (('mean', 0.5), ('std', 0.25))}
        made.append(
            Choice(
                {'model.backbone.in_channels': channels, **normal},
                'customary',
                f'images of {channels} channels are read as they are stored. Put your own mean and std in place of 0.5 and '
                f'0.25: tools/pack.py DIR --statistics --channels {channels} prints them.',
            )
        )
        dataset['channels'] = channels
    if channels not in (None, 3):
        dataset['views'] = [without_rgb(view) for view in views]
        reason = 'a folder of images at any depth. The views have no grey, saturation and hue, which only RGB has.'
    of_data = {f'train_dataloader.dataset.{key}': value for key, value in dataset.items()}
    return [*made, Choice(of_data, 'customary', reason)]


def begun_anew(base: Config, batch: int) -> tuple[Choice, Choice]:
    """Return the network and the learning rate of a run from random weights."""
    optimizer, projector = base.optim_wrapper.optimizer, base.model.projector
    rate = optimizer.lr / base.total_batch_size
    network = {'model.backbone.depth': 18, 'model.projector.in_channels': 512}
    if projector.hidden_channels == projector.in_channels:  # as wide as the features, in MoCo v2
        network['model.projector.hidden_channels'] = 512
    return (
        Choice(network, 'customary', 'a small network. For a ResNet-50, set depth=50 and in_channels=2048.'),
        Choice(
            {'optim_wrapper.optimizer.lr': rate * batch, 'auto_scale_lr.base_batch_size': batch},
            'known',
            f'{optimizer.type} at {rate * 256:g} per 256 images, in proportion to the batch (the benchmark).',
        ),
    )


def begun_from(weights: str | Path, base: Config, batch: int) -> tuple[Choice, Choice]:
    """Return the network that a checkpoint holds, begun from it, and a lower learning rate."""
    read, optimizer = read_backbone(weights), base.optim_wrapper.optimizer
    backbone, rate = backbone_of(read.weights, read.path), optimizer.lr / base.total_batch_size / LOWER
    file = str(weights) if is_released(weights) else str(Path(weights).absolute())
    backbone['init_cfg'] = dict(type='PretrainedBackbone', checkpoint=file)
    optimize = {'optim_wrapper.optimizer.lr': rate * batch}
    if backbone.pop('type') == 'ResNet':
        width = backbone['base_channels'] * (8 if backbone['depth'] < 50 else 32)
        network = {f'model.backbone.{key}': value for key, value in backbone.items()}
    else:
        width = backbone['arch']['embed_dims']
        network = {'model.backbone': dict(_delete_=True, type='VisionTransformer', **backbone)}
        if optimizer.type != 'AdamW':  # those of configs/vit
            rate, optimizer = 1.5e-4 / 256 / LOWER, Config(dict(type='AdamW'))
            adam = dict(_delete_=True, type='AdamW', lr=rate * batch, weight_decay=0.1)
            optimize = {'optim_wrapper.optimizer': adam}
    return (
        Choice({**network, 'model.projector.in_channels': width}, 'known', f'the network of {Path(file).name}.'),
        Choice(
            {**optimize, 'auto_scale_lr.base_batch_size': batch},
            'customary',
            f'{optimizer.type} at {rate * 256:g} per 256 images, a tenth of what a random start has: a full rate first undoes '
            'what the weights know. If the k-NN score of the health page falls, give less.',
        ),
    )


def suggest(
    method: str, images: int, gpus: int = 1, channels: int | None = None, weights: str | Path | None = None
) -> str:
    """Return the text of a config that trains the framework on so many unlabelled images, with the reasons.

    With `channels` the images are read as they are stored, with `weights` the network starts from them.
    """
    made = choices(method, images, 'data/images', gpus=gpus, channels=channels, weights=weights)
    values = _nested(made, load_config(full_size(method), _settings(made)).to_dict())
    title = f'{method} on {images:,} images without labels, for {gpus} GPU{"s" * (gpus > 1)}, as mmairl suggests.'
    blocks = [f"# {title}\n_base_ = '{full_size(method)}'"]
    for key, value in values.items():
        why = [choice for choice in made if next(iter(choice.settings)).partition('.')[0] == key]
        lines = [line for choice in why for line in textwrap.wrap(f'{choice.sort}: {choice.reason}', 118)]
        blocks.append('\n'.join([*(f'# {line}' for line in lines), Config({key: value}).pretty_text.strip()]))
    return '\n\n'.join(blocks)


def _settings(made: Sequence[Choice]) -> dict[str, Any]:
    return {key: value for choice in made for key, value in choice.settings.items()}


def _nested(made: Sequence[Choice], whole: dict[str, Any]) -> dict[str, Any]:
    """Return the settings as nested dictionaries; a list, which a config cannot change in part, as in the `whole` config."""
    values: dict[str, Any] = {}
    for key, value in _settings(made).items():
        *above, last = key.split('.')
        if above and above[-1].isdigit():
            (last, *_), above = above, []
            value = whole[last]
        node = values
        for name in above:
            node = node.setdefault(name, {})
        node[last] = value
    return values


def full_size(method: str) -> str:
    """Return the name of a method's config, at full size."""
    paths = [[path for of in patterns for path in home().glob(of)] for patterns in (PAPERS, OTHERS)]
    papers, others = ({path.name.partition('_r50_')[0]: path for path in of} for of in paths)
    if method not in papers | others:
        raise UserError(
            f"there is no method '{method}'{closest(method, papers | others, 0.6)}; say one of {', '.join(sorted(papers))}, or "
            f'of other papers {", ".join(sorted(others))}'
        )
    return f'mmairl::{(papers | others)[method].relative_to(home()).as_posix().removeprefix("configs/")}'


def without_rgb(view: Sequence[dict]) -> list[dict]:
    """Return the view without what only RGB has."""
    kept = [step for step in view if step['type'] != 'RandomGrayscale']
    return [{**step, 'saturation': 0, 'hue': 0} if step['type'] == 'ColorJitter' else step for step in kept]


def batch_for(images: int) -> int:
    """Return a batch of sixteen steps an epoch, where there are images enough: statistics over less than 16 say little."""
    return max(16, min(SHARE, power_of_two(images // 16)))


def queue_for(images: int, batch: int) -> int:
    """Return a queue of a quarter of the images at most: the key of the same image would be a negative."""
    return max(batch, min(LONGEST_QUEUE // 4, power_of_two(images // 4)))


def power_of_two(number: int) -> int:
    """Return the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)
