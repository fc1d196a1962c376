"""Describe a config by the factors in which MoCo, BYOL and related methods differ, and list the differences of two configs."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry

from mmairl.config import walk
from mmairl.data.view_sets import expand_named_views
from mmairl.evaluation.backbone import FEATURES
from mmairl.evaluation.identity import code_identity
from mmairl.registry import HOOKS, MODELS, OPTIMIZERS

Configs = Mapping[str, Config]  # the config of each row of a study, by the row's name

# The keys of a config that affect what a training run computes.
TRAINING = (
    'model', 'load_from', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'default_hooks',
    'total_batch_size', 'custom_hooks', 'fast',
)  # fmt: skip
MEASURING = ('evaluation', 'recipes', 'randomness')
TRANSFORMS = {
    'RandomResizedCrop': 'crop',
    'RandomFlip': 'flip',
    'ColorJitter': 'jitter',
    'RandomGrayscale': 'grey',
    'GaussianBlur': 'blur',
    'Solarize': 'solarize',
}
LOSSES = {'ContrastiveHead': 'InfoNCE', 'RegressionHead': '2 - 2 cos'}

# For each class of component, a function of its settings returns facts that papers seldom print and in which libraries
# differ. Subclasses use the function of their nearest base class.
FACTS: dict[str, Callable[..., dict[str, str]]] = {
    'PairwiseHead': lambda **_: {'directions of the loss': 'summed', 'clamps in the loss': 'none'},
    'PrototypeHead': lambda **_: {
        'directions of the loss': 'averaged',
        'clamps in the loss': 'none',
    },
    'LARS': lambda inside=True, **_: {
        'rate': f'{"inside" if inside else "outside"} of the momentum buffer'
    },
    'MomentumHook': lambda schedule='cosine', first_step=1, **_: {
        "teacher's update": f'each optimizer step k = {"1..K" if first_step else "0..K-1"}, {schedule}'
    },
}


def same_run(cfg: Config) -> str:
    """Return a text with all settings that affect a run.

    Runs of configs with equal texts are trained and evaluated in the same way.
    """
    measuring = {key: cfg.get(key) for key in MEASURING}
    return json.dumps({**_training_keys(cfg), **measuring}, sort_keys=True, default=str)


def changed(one: Config, two: Config) -> list[str]:
    """Return the dotted keys in which two configs differ, if the keys affect training."""
    return sorted(_differences(_training_keys(one), _training_keys(two), ''))


def _training_keys(cfg: Config) -> dict[str, Any]:
    keys = {}
    for key, value in cfg.to_dict().items():
        if key in TRAINING and value is not None:
            keys[key] = value
    for hook in ('checkpoint', 'logger'):  # These hooks do not affect what a run computes.
        keys.get('default_hooks', {}).pop(hook, None)
    for path, value in list(walk(keys)):
        if path[-1:] == ('views',) and isinstance(value, list | tuple):
            for view in value:
                view[:] = [step for step in view if step.get('p') != 0]
    return keys


def _differences(one: object, two: object, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() | two.keys():
            yield from _differences(one.get(key), two.get(key), f'{path}.{key}'.lstrip('.'))
    elif one != two:
        yield path


def factors_of(cfg: Config) -> dict[str, str]:
    """Return a config's values of the factors in which MoCo, BYOL and related methods differ.

    Example:
        >>> from mmairl.config import load_config
        >>> factors_of(load_config('configs/mocov2plus_r50_200e.py'))['student predictor']
        'yes'
    """
    model = cfg.model
    optimizer = cfg.optim_wrapper.optimizer
    return {
        'batch norm': _batch_norm(model),
        'projector': _projector(model.projector),
        'student predictor': 'yes' if model.get('predictor') else 'no',
        'teacher predictor': 'yes' if model.teacher_predictor else 'no',
        'momentum': _momentum(cfg.default_hooks.momentum),
        'loss': _loss(model),
        'negatives': f'queue {model.queue.length}' if model.get('queue') else 'none',
        'augmentation': _augmentation(cfg),
        'optimizer': f'{optimizer.type}, lr {optimizer.lr}, decay {optimizer.weight_decay}',
    }


def _batch_norm(model: Config) -> str:
    backbone = (model.backbone.get('norm_cfg') or {}).get('type', 'none')
    projector = (model.projector.get('norm_cfg') or {}).get('type')
    first = 'ShuffleBN' if model.shuffle_bn else backbone
    return f'{first}, {projector} in projector' if projector else first


def _projector(projector: Config) -> str:
    widths = filter(None, (projector.hidden_channels, projector.out_channels))
    bias = '' if projector.get('last_bias', True) else ', no last bias'
    return '-'.join(map(str, widths)) + bias


def _momentum(momentum: Config) -> str:
    if momentum.schedule == 'cosine':
        return f'{momentum.base} -> 1, cosine'
    return f'constant {momentum.base}'


def _loss(model: Config) -> str:
    loss = LOSSES.get(model.head.type, model.head.type)
    return f'{loss}, {"both directions" if model.symmetric else "one direction"}'


def _augmentation(cfg: Config) -> str:
    in_workers = expand_named_views(cfg.train_dataloader.dataset.get('views'))
    views = in_workers or cfg.model.data_preprocessor.get('views') or ()
    return ' / '.join(dict.fromkeys(', '.join(map(_transform, view)) for view in views))


def _transform(step: dict) -> str:
    """Return a short text for a transform: its name and its probability, or for a crop its smallest area."""
    name = TRANSFORMS.get(step['type'], step.get('transform', step['type']))
    return f'{name} {step["scale"][0]}' if name == 'crop' else f'{name} {step.get("p", 0.5)}'


def hidden_factors(cfg: Config) -> dict[str, str]:
    """Return a config's values of factors that papers seldom print and in which libraries differ.

    `projects/parity` compares mmairl with other libraries in some of these factors.
    """
    model = cfg.model
    momentum = cfg.default_hooks.get('momentum')
    rule = f'by the rule of {model.head.type}' if model.type == 'Siamese' else 'none'
    factors = {
        'rate': 'outside of the momentum buffer',
        **_facts(OPTIMIZERS, cfg.optim_wrapper.optimizer),
        'directions of the loss': rule,
        'clamps in the loss': rule,
        "teacher's update": 'none',
    }
    if model.type == 'Siamese':
        factors |= _facts(MODELS, model.head)
        if not model.get('symmetric', True):
            factors['directions of the loss'] = 'one'
        if momentum and model.get('target', 'teacher') == 'teacher':
            factors |= _facts(HOOKS, momentum)
    precision = (cfg.get('fast') or {}).get('precision') or cfg.optim_wrapper.get('dtype')
    default = "float32 (convolutions by torch's default, TF32 on GPUs that have it)"
    return factors | {
        'precision': precision or default,
        'image decoder': code_identity()['jpeg'],
        'features': FEATURES,
        'score': 'of the last checkpoint, not the best over epochs',
    }


def _facts(registry: Registry, part: dict) -> dict[str, str]:
    """Return the FACTS about a component, from the entry for its class or for the nearest base class with an entry."""
    settings = {key: value for key, value in part.items() if key != 'type'}
    for base in getattr(registry.get(part['type']), '__mro__', ()):
        if base.__name__ in FACTS:
            return FACTS[base.__name__](**settings)
    return {}
