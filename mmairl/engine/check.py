"""The check of a training config for what no class of it would refuse when it is built: keys that nothing reads."""

from typing import Any

from mmengine.config import Config

from mmairl.configs import refuse_secrets
from mmairl.errors import UserError, closest

REQUIRED = ('model', 'train_dataloader', 'train_cfg', 'optim_wrapper')
COUNTS = ('total_batch_size', 'train_cfg.max_epochs', 'train_cfg.max_iters', 'evaluation.batch_size')
# The keys of sections that have no class.
SECTIONS = {
    'env_cfg': ('cudnn_benchmark', 'mp_cfg', 'dist_cfg', 'resource_limit'),
    'env_cfg.dist_cfg': ('backend', 'init_backend', 'timeout'),
    'env_cfg.mp_cfg': ('mp_start_method', 'opencv_num_threads'),
    'auto_scale_lr': ('base_batch_size', 'enable'),
    'evaluation': ('train', 'val', 'test', 'batch_size', 'held_out', 'views', 'sweep', 'ks', 'precision', 'groups'),
    'recipes': ('linear', 'finetune'),
    'fast': ('precision', 'channels_last', 'checkpointing', 'compile', 'fused'),
    'strategy': ('type', 'zero_optimization', 'bf16'),
    'strategy.zero_optimization': ('stage', 'offload_optimizer', 'offload_param'),
}


def check_config(cfg: Config) -> None:
    """Refuse a training config that lacks a section or has a secret, and what `check_sections` refuses."""
    refuse_secrets(cfg)
    for name in REQUIRED:
        if not isinstance(cfg.get(name), dict):
            raise UserError(
                f'the config sets {name}={cfg.get(name)}, so there is nothing to train; give a training config'
            )
    check_sections(cfg)


def check_sections(cfg: Config) -> None:
    """Refuse counts below 1, and a key of a section without a class that nothing reads."""
    for path in COUNTS:
        value = _at(cfg, path)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UserError(f'{path}={value!r} is not a whole number of 1 or more; set one')
    for path, known in SECTIONS.items():
        section = _at(cfg, path)
        if section is not None and not isinstance(section, dict):
            raise UserError(f'{path}={section!r} is not a section with keys; set {path}=dict({known[0]}=...)')
        for key in section or {}:
            if key not in (*known, '_scope_'):
                raise UserError(f"{path} has no key '{key}'{closest(key, known)}")


def _at(cfg: Config, path: str) -> Any:
    value = cfg
    for key in path.split('.'):
        value = value.get(key) if isinstance(value, (dict, Config)) else None
    return value
