"""The factors of the papers in a config, and the differences of two configs."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from mmengine.config import Config
from mmengine.registry import Registry

from mmairl.config import walk
from mmairl.data.decode import decoder
from mmairl.data.shards.cache import NodeCache
from mmairl.data.shards.index import index_of
from mmairl.data.shards.shard_paths import shards_at
from mmairl.evaluation.backbone import FEATURES
from mmairl.evaluation.identity import code_identity
from mmairl.evaluation.sets import innermost
from mmairl.registry import HOOKS, MODELS, OPTIMIZERS

# The parts of a config that decide what a training computes.
RUNS = (
    'model', 'load_from', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'default_hooks',
    'total_batch_size', 'custom_hooks', 'fast',
)  # fmt: skip
STEPS = {
    'RandomResizedCrop': 'crop',
    'RandomFlip': 'flip',
    'ColorJitter': 'jitter',
    'RandomGrayscale': 'grey',
    'GaussianBlur': 'blur',
    'Solarize': 'solarize',
}


def _directions(name: str) -> dict[str, str]:
    return {'directions of the loss': name, 'clamps in the loss': 'none'}


# Facts that libraries differ in and papers seldom print, by class, as functions of the class's settings in a config. A
# subclass inherits them.
FACTS: dict[str, Callable[..., dict[str, str]]] = {
    'PairwiseHead': lambda **_: _directions('summed'),
    'PrototypeHead': lambda **_: _directions('averaged'),
    'LARS': lambda inside=True, **_: {
        'rate': f'{"inside" if inside else "outside"} of the momentum buffer'
    },
    'MomentumHook': lambda schedule='cosine', **_: {
        "teacher's update": f'each optimizer step k = 1..K, {schedule}'
    },
}


def same_run(cfg: Config) -> str:
    """Return a text that is equal for configs that train and are measured alike."""
    beside = {key: cfg.get(key) for key in ('evaluation', 'recipes', 'randomness')}
    return json.dumps({**_runs(cfg), **beside}, sort_keys=True, default=str)


def changed(one: Config, two: Config) -> list[str]:
    """The keys, as dotted paths, under which two resolved configs differ in what runs; variables of the files do not."""
    return sorted(_differences(_runs(one), _runs(two), ''))


def _runs(cfg: Config) -> dict[str, Any]:
    found = {
        key: value for key, value in cfg.to_dict().items() if key in RUNS and value is not None
    }
    for hook in ('checkpoint', 'logger'):
        found.get('default_hooks', {}).pop(hook, None)  # an evaluation's config has none
    for keys, value in list(walk(found)):
        if keys[-1:] == ('views',) and isinstance(
            value, list | tuple
        ):  # what never acts is not there
            for view in value:
                view[:] = [step for step in view if step.get('p') != 0]
    return found


def _differences(one: object, two: object, path: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        for key in one.keys() | two.keys():
            yield from _differences(one.get(key), two.get(key), f'{path}.{key}'.lstrip('.'))
    elif one != two:
        yield path


def factors_of(cfg: Config) -> dict[str, str]:
    """The factors of the facts' table, in its words, read off a resolved config."""
    model, momentum = cfg.model, cfg.default_hooks.momentum
    hidden_norm = (model.projector.get('norm_cfg') or {}).get('type')
    optimizer = cfg.optim_wrapper.optimizer
    widths = [
        width for width in (model.projector.hidden_channels, model.projector.out_channels) if width
    ]
    views = cfg.train_dataloader.dataset.get('views') or model.data_preprocessor.get('views') or ()
    loss = {'ContrastiveHead': 'InfoNCE', 'RegressionHead': '2 - 2 cos'}.get(
        model.head.type, model.head.type
    )
    return {
        'batch norm': (
            'ShuffleBN'
            if model.shuffle_bn
            else (model.backbone.get('norm_cfg') or {}).get('type', 'none')
        )
        + (f', {hidden_norm} in projector' if hidden_norm else ''),
        'projector': '-'.join(map(str, widths))
        + ('' if model.projector.get('last_bias', True) else ', no last bias'),
        'student predictor': 'yes' if model.get('predictor') else 'no',
        'teacher predictor': 'yes' if model.teacher_predictor else 'no',
        'momentum': f'{momentum.base} -> 1, cosine'
        if momentum.schedule == 'cosine'
        else f'constant {momentum.base}',
        'loss': f'{loss}, {"both directions" if model.symmetric else "one direction"}',
        'negatives': f'queue {model.queue.length}' if model.get('queue') else 'none',
        'augmentation': ' / '.join(dict.fromkeys(', '.join(map(_step, view)) for view in views)),
        'optimizer': f'{optimizer.type}, lr {optimizer.lr}, decay {optimizer.weight_decay}',
    }


def _step(step: dict) -> str:
    """An operation of a view with the probability at which it acts."""
    name = STEPS.get(step['type'], step['type'])
    return f'{name} {step["scale"][0]}' if name == 'crop' else f'{name} {step.get("p", 0.5)}'


def hidden_factors(cfg: Config) -> dict[str, str]:
    """Return the factors that papers seldom print and libraries differ in (projects/parity), for a run of this config."""
    model, momentum = cfg.model, cfg.default_hooks.get('momentum')
    found = {
        'rate': 'outside of the momentum buffer',
        **_stated(OPTIMIZERS, cfg.optim_wrapper.optimizer),
    }
    found |= dict.fromkeys(
        ('directions of the loss', 'clamps in the loss', "teacher's update"), 'none'
    )
    if model.type == 'Siamese':
        own = f'by the rule of {model.head.type}'
        found |= {
            'directions of the loss': own,
            'clamps in the loss': own,
            **_stated(MODELS, model.head),
        }
        if not model.get('symmetric', True):
            found['directions of the loss'] = 'one'
        if momentum and model.get('target', 'teacher') == 'teacher':
            found |= _stated(HOOKS, momentum)
    precision = (cfg.get('fast') or {}).get('precision') or cfg.optim_wrapper.get('dtype')
    return found | {
        'precision': precision
        or "float32 (convolutions by torch's default, TF32 on GPUs that have it)",
        'image decoder': f'{decoder()}, {code_identity()["jpeg"]}',
        'images': images_of(cfg.train_dataloader.dataset),
        'features': FEATURES,
        'score': 'of the last checkpoint, not the best over epochs',
    }


def _stated(registry: Registry, part: dict) -> dict[str, str]:
    """Return the facts of a part's class, or else of the nearest base class that has some."""
    settings = {key: value for key, value in part.items() if key != 'type'}
    bases = getattr(registry.get(part['type']), '__mro__', ())
    known = [FACTS[base.__name__] for base in bases if base.__name__ in FACTS]
    return known[0](**settings) if known else {}


def images_of(described: dict) -> str:
    """Whether tools/pack.py has made them smaller."""
    described = innermost(described)
    if 'sets' in described:
        return '; '.join(sorted({images_of(one) for one in described['sets'].values()}))
    if described['type'] != 'Shards':
        return 'as they are'
    cache = described.get('cache')
    held = NodeCache(cache, described.get('cache_size', 2**40)) if cache else None
    about = index_of(shards_at(described['root']), held).about
    if not about.get('short_side'):
        return 'as they are'
    return f'packed with a short side of {about["short_side"]} pixels as JPEGs of quality {about["quality"]}'
