"""The check of a training config before anything is built from it: each mistake is said with its key."""

import inspect
import math
from collections.abc import Callable

from mmengine.config import Config
from mmengine.runner import set_random_seed
from torch.utils.data import DataLoader

from mmairl.config import by_key, refuse_secrets, walk
from mmairl.errors import UserError, closest
from mmairl.registry import (
    BOXES,
    DATA_SAMPLERS,
    DATASETS,
    HOOKS,
    MODELS,
    OPTIM_WRAPPERS,
    OPTIMIZERS,
    PARAM_SCHEDULERS,
    PROTOCOLS,
    Registry,
)

REQUIRED = ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
# The least value of each key that counts something.
COUNTS = {
    'total_batch_size': 1,
    'train_cfg.max_epochs': 1,
    'train_cfg.max_iters': 1,
    'train_dataloader.batch_size': 1,
    'train_dataloader.num_workers': 0,
    'optim_wrapper.accumulative_counts': 1,
    'randomness.seed': 0,
    'evaluation.batch_size': 1,
}
# The least and the largest number of each key.
RANGES = {
    'optim_wrapper.optimizer.lr': (0, math.inf),
    'optim_wrapper.optimizer.momentum': (0, 1),
    'optim_wrapper.optimizer.weight_decay': (0, math.inf),
    'optim_wrapper.clip_grad.max_norm': (0, math.inf),
}
# The keys of sections that have no class, as mmengine's runner reads them.
SECTIONS = {
    'train_cfg': ('type', 'by_epoch', 'max_epochs', 'max_iters', 'val_begin', 'val_interval', 'dynamic_intervals'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.dist_cfg': ('backend', 'init_backend', 'timeout'),
    'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'randomness': tuple(inspect.signature(set_random_seed).parameters),
    'evaluation': ('train', 'val', 'test', 'batch_size', 'held_out', 'views', 'sweep', 'ks', 'precision', 'groups'),
    'recipes': tuple(PROTOCOLS.names()),
    'fast': ('precision', 'channels_last', 'checkpointing', 'compile', 'fused'),
    'strategy': ('type', 'zero_optimization', 'bf16'),
    'strategy.zero_optimization': ('stage', 'offload_optimizer', 'offload_param'),
    'train_dataloader': (*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'),
}
# Where a part of a certain kind stands; one below these may be of any kind, or of none.
PLACES = {
    'model': MODELS,
    'model.backbone': MODELS,
    'model.projector': MODELS,
    'model.head': MODELS,
    'train_dataloader.dataset': DATASETS,
    'train_dataloader.sampler': DATA_SAMPLERS,
    'optim_wrapper': OPTIM_WRAPPERS,
    'optim_wrapper.optimizer': OPTIMIZERS,
    'param_scheduler.*': PARAM_SCHEDULERS,
    'default_hooks.*': HOOKS,
    'custom_hooks.*': HOOKS,
}
BUILT = ('model', 'data_preprocessor', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'default_hooks',
         'custom_hooks', 'visualizer')  # fmt: skip
OTHERS = '**'
# Keys that are taken out before a class is called.
BESIDE = ('type', '_scope_', 'priority', 'constructor', 'paramwise_cfg', 'convert_to_iter_based', 'optimizer',
          'init_cfg', 'requires_grad')  # fmt: skip


def check_config(cfg: Config) -> None:
    """Refuse misspelt keys, unknown types, impossible numbers and secrets of a training config."""
    refuse_secrets(cfg)
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f'the config sets {name}={cfg.get(name)}, so there is nothing to train; give a training config'
            )
    check_parts(cfg, BUILT)


def check_parts(cfg: Config, sections: tuple[str, ...]) -> None:
    """Refuse a key, at any depth, that the class of its part does not take, and a class that is not registered."""
    values = by_key(cfg)
    for path, least in COUNTS.items():
        value = values.get(path)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UserError(f'{path}={value!r} is not a whole number of {least} or more; set one')
    for path, (least, most) in RANGES.items():
        value = values.get(path)
        if isinstance(value, (int, float)) and not (least <= value <= most and value < math.inf):
            raise UserError(f'{path}={value} is not a number from {least} to {most}; set one')
    for path, known in SECTIONS.items():
        section = values.get(path)
        if section is not None and not isinstance(section, dict):
            raise UserError(f'{path}={section!r} is not a section with keys; set {path}=dict({known[0]}=...)')
        for key in section or {}:
            if key not in (*known, '_scope_'):
                raise UserError(f"{path} has no key '{key}'{closest(key, known)}")
    for section in sections if cfg.get('default_scope') == 'mmairl' else ():
        for keys, entry in walk(cfg.get(section), (section,)):
            path = '.'.join(map(str, keys))
            place = path if len(keys) != 2 or path in PLACES else f'{section}.*'
            if isinstance(entry, dict) and (place in PLACES or isinstance(entry.get('type'), str)):
                default = {'type': 'AutocastOptimWrapper'} if path == 'optim_wrapper' else {}
                _check_part(path, {**default, **entry}, PLACES.get(place))


def _check_part(path: str, entry: dict, box: Registry | None) -> None:
    if 'type' not in entry:
        raise UserError(
            f'{path} has no type; set {path}.type to a registered {box.name}, or {path}=None to leave it out'
        )
    name, boxes = entry['type'], BOXES if box is None else [box]
    kinds = [kind for place in boxes if (kind := place.peek(name))] if isinstance(name, str) else [name]
    if not kinds and box is not None and (kind := box.get(name)):
        kinds = [kind]  # of a package that is not imported yet
    if not kinds:
        near = closest(name, [known for place in boxes for known in place.names()], 0.8 if box is None else 0.6)
        if box is None and not near:
            return  # a type that the platform chooses by itself, or one that is built later
        raise UserError(
            f"the config names '{name}', which is not a registered {'part' if box is None else box.name}; "
            f'check {path}.type{near}'
        )
    known: dict[str, inspect.Parameter] = {}
    for kind in kinds:
        known |= _parameters(kind)
    strict = (box is not None or kinds[0].__module__.startswith('mmairl.')) and OTHERS not in known
    for key, value in entry.items():
        if key not in known and key not in BESIDE and (strict or closest(key, known)):
            raise UserError(f"{path} has no key '{key}'{closest(key, (*known, *BESIDE), 0.6)}")
        if key.endswith('channels') and isinstance(value, int) and value < 1:
            raise UserError(f'{path}.{key}={value} is not a whole number of 1 or more; set one')
        wanted = known[key].annotation if key in known else None
        if isinstance(value, str) and wanted in (int, float, bool):
            raise UserError(f'{path}.{key}={value!r} is text; set {"True or False" if wanted is bool else "a number"}')


def _parameters(kind: Callable) -> dict[str, inspect.Parameter]:
    """The arguments that a class takes; OTHERS is among them if it passes any on to code that is not its bases'."""
    arguments: dict[str, inspect.Parameter] = {}
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        method = vars(base).get('__init__') if inspect.isclass(base) else base
        if method is None or base is object:
            continue
        own = inspect.signature(method).parameters
        arguments = {**own, **arguments}
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
            return arguments
    return {**arguments, OTHERS: None}
