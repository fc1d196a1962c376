"""What can be known to be wrong in a training config before anything is built from it, said with the key that is meant."""

import inspect
from typing import Any

from mmengine.config import Config
from mmengine.runner import set_random_seed
from torch.utils.data import DataLoader

from mmairl.errors import UserError, closest
from mmairl.registry import DATA_SAMPLERS, DATASETS, HOOKS, OPTIM_WRAPPERS, OPTIMIZERS, PARAM_SCHEDULERS, Registry

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
}
# The keys of sections that have no class, as mmengine's runner reads them.
SECTIONS = {
    'train_cfg': ('type', 'by_epoch', 'max_epochs', 'max_iters', 'val_begin', 'val_interval', 'dynamic_intervals'),
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'randomness': tuple(inspect.signature(set_random_seed).parameters),
    'evaluation': ('train', 'val', 'test', 'batch_size', 'held_out', 'views', 'sweep'),
    'train_dataloader': (*inspect.signature(DataLoader).parameters, 'num_batch_per_epoch'),
}
LOADED = dict(dataset=DATASETS, sampler=DATA_SAMPLERS)
# Keys that are taken out before a class is called.
BESIDE = ('type', '_scope_', 'priority', 'constructor', 'paramwise_cfg', 'convert_to_iter_based', 'optimizer')


def check_config(cfg: Config) -> None:
    """Refuse misspelt keys, unknown types and impossible numbers of a training config."""
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f'the config sets {name}={cfg.get(name)}, so there is nothing to train; give a training config'
            )
    for path, least in COUNTS.items():
        value = _at(cfg, path)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise UserError(f'{path}={value!r} is not a whole number of {least} or more; set one')
    for path, known in SECTIONS.items():
        _check_keys(path, _at(cfg, path) or {}, known)
    for path, entry, box in _registered_parts(cfg) if cfg.get('default_scope') == 'mmairl' else ():
        _check_part(path, entry, box)


def _at(cfg: Config, path: str) -> Any:
    value = cfg
    for key in path.split('.'):
        value = value.get(key) if isinstance(value, (dict, Config)) else None
    return value


def _registered_parts(cfg: Config) -> list[tuple[str, Any, Registry]]:
    hooks = {
        f'default_hooks.{name}': hook for name, hook in (cfg.get('default_hooks') or {}).items() if hook is not None
    }
    hooks |= {f'custom_hooks[{at}]': hook for at, hook in enumerate(cfg.get('custom_hooks') or [])}
    schedules = cfg.get('param_scheduler') or []
    schedules = enumerate(schedules if isinstance(schedules, list) else [schedules])
    parts = [(path, hook, HOOKS) for path, hook in hooks.items()]
    parts += [(f'param_scheduler[{at}]', schedule, PARAM_SCHEDULERS) for at, schedule in schedules]
    parts += [('optim_wrapper', {'type': 'AutocastOptimWrapper', **cfg.optim_wrapper}, OPTIM_WRAPPERS)]
    if isinstance(optimizer := cfg.optim_wrapper.get('optimizer'), dict):
        parts += [('optim_wrapper.optimizer', optimizer, OPTIMIZERS)]
    loader = cfg.train_dataloader
    parts += [(f'train_dataloader.{name}', loader.get(name), box) for name, box in LOADED.items() if loader.get(name)]
    return parts


def _check_part(path: str, entry: Any, box: Registry) -> None:
    if not isinstance(entry, dict):
        return  # an object, which a config made in Python may hold
    if 'type' not in entry:
        raise UserError(
            f'{path} has no type; set {path}.type to a registered {box.name}, or {path}=None to leave it out'
        )
    kind = box.get(entry['type']) if isinstance(entry['type'], str) else entry['type']
    if kind is None:
        raise UserError(
            f"the config names '{entry['type']}', which is not a registered {box.name}; check {path}.type"
            f'{closest(entry["type"], box.module_dict)}'
        )
    keys, passes_on = _keys_of(kind)
    known = (*keys, *BESIDE)
    for key in entry:
        if key not in known and (not passes_on or closest(key, known)):
            raise UserError(f"{path} has no key '{key}'{closest(key, known)}")


def _keys_of(kind: type) -> tuple[list[str], bool]:
    """The keys that a class takes, and whether it passes others on to code that is not its bases'."""
    keys: list[str] = []
    for base in inspect.getmro(kind) if inspect.isclass(kind) else (kind,):
        method = vars(base).get('__init__') if inspect.isclass(base) else base
        if method is None or base is object:
            continue
        parameters = inspect.signature(method).parameters.values()
        keys += [parameter.name for parameter in parameters]
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            return keys, False
    return keys, True


def _check_keys(path: str, section: dict, known: tuple[str, ...]) -> None:
    for key in section:
        if key not in (*known, '_scope_'):
            raise UserError(f"{path} has no key '{key}'{closest(key, known)}")
