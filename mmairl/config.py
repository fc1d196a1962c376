"""Read configs from Python, YAML or JSON, change them by `--cfg-options`, and write them.

A config is a program, whatever its format: a YAML file also names classes and modules, which are imported and called.

The name `mmairl::NAME.py` refers to a config of this package.
"""

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml
from mmengine.config import Config
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import YamlHandler

from mmairl.errors import UserError, closest, explained
from mmairl.io import NUMBER, TUPLE, PlainLoader

PREFIX = 'mmairl::'
PACKAGE = Path(__file__).resolve().parent
# A wheel contains the configs inside the package. A checkout contains them next to the package.
HOMES = (PACKAGE / '.mim', PACKAGE.parent)
# The top-level keys that mmengine's runner or this package reads. Other keys are
# variables that the author of a config defines for use within it.
KNOWN = (
    'model', 'data_preprocessor', 'model_wrapper_cfg', 'work_dir', 'load_from', 'resume', 'train_dataloader',
    'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler',
    'auto_scale_lr', 'val_evaluator', 'test_evaluator', 'default_hooks', 'custom_hooks', 'launcher', 'env_cfg',
    'log_processor', 'log_level', 'visualizer', 'default_scope', 'randomness', 'experiment_name', 'custom_imports',
    'runner_type', 'strategy', 'total_batch_size', 'fast', 'evaluation', 'recipes', 'preprocessing',
)  # fmt: skip


class PlainDumper(yaml.SafeDumper):
    """A YAML dumper whose output PlainLoader reads. It keeps tuples, and writes repeated values in full, not as aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class PlainYaml(YamlHandler):
    """mmengine's handler for YAML files, but with PlainLoader.

    mmengine's own loader reads 1e-3 as text, and runs code that an annotation file contains.
    """

    def load_from_fileobj(self, file: IO[str], **_: Any) -> Any:
        values = yaml.load(file, Loader=PlainLoader)
        # PyYAML returns None for an empty file, which is a valid config.
        return {} if values is None else values


PlainDumper.add_representer(tuple, lambda dumper, values: dumper.represent_sequence(TUPLE, values))
PlainDumper.add_implicit_resolver(*NUMBER)


def home() -> Path:
    """Return the folder that contains `configs` and `tools`. In a checkout, it also contains `projects`."""
    return next(folder for folder in HOMES if (folder / 'configs' / '_base_').is_dir())


def config_path(name: str | Path) -> Path:
    """Return the path of a config. The name may be a path or `mmairl::NAME`.

    >>> config_path('mmairl::mocov2plus_r50_200e.py').name
    'mocov2plus_r50_200e.py'
    """
    name = str(name)
    path = Path(name)
    configs = home() / 'configs'
    if name.startswith(PREFIX):
        inner = name.removeprefix(PREFIX)
        path = (home() if inner.startswith('projects/') else configs) / inner
    if not path.is_file():
        known = [file.relative_to(configs).as_posix() for file in configs.rglob('*.py')]
        near = closest(name.removeprefix(PREFIX), known)
        raise UserError(
            f"'{name}': no such config{near}; see configs/ for the configs of mmairl",
            code='no-config',
        )
    return path


@functools.cache
def resolve_names_in_bases() -> None:
    """Make mmengine resolve `mmairl::NAME.py` in a `_base_`. mmengine has no extension point for other packages."""
    path_of_base = Config._get_cfg_path

    def resolve(base: str, filename: str) -> tuple[str, str | None]:
        if base.startswith(PREFIX):
            return str(config_path(base)), None
        return path_of_base(base, filename)

    Config._get_cfg_path = staticmethod(resolve)


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """Load a config, and merge the options of `--cfg-options` into it.

    The modules in `custom_imports` may be in the folder of the config.

    Args:
        path: A .py, .yaml, .yml or .json file, or `mmairl::NAME.py` for a config of this package.
        options: The new values, by dotted key.

    Raises:
        UserError: If the config is missing, if loading it fails, or if a key is misspelled.

    >>> load_config('mmairl::mocov2plus_r50_200e.py', {'optim_wrapper.optimizer.lr': 0.06}).optim_wrapper.optimizer.lr
    0.06
    """
    path = config_path(path)
    resolve_names_in_bases()
    register_handler(['yml', 'yaml'])(PlainYaml)
    for folder in (path.resolve().parent, home()):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    # A config is a program, so loading it can raise any exception.
    with explained(f'the config {path} cannot be read', 'correct the config'):
        cfg = Config.fromfile(path)
    if cfg.get('custom_imports'):  # The processes that this one starts import the same modules.
        places = os.environ.get('PYTHONPATH', '').split(os.pathsep)
        places.append(str(path.resolve().parent))
        os.environ['PYTHONPATH'] = os.pathsep.join(dict.fromkeys(filter(None, places)))
    override(cfg, options or {}, path)
    return cfg


def override(cfg: Config, options: Mapping[str, Any], path: str | Path) -> None:
    """Merge `--cfg-options` into the config read from `path`.

    Raises:
        UserError: If a key is misspelled, or an option does not fit the config.
    """
    for key in options:
        name = key.split('.')[0]
        if name in KNOWN:
            continue
        if name in cfg:
            raise UserError(
                f"--cfg-options {key}: '{name}' is a variable from which the config has already computed other keys; "
                'override these keys instead',
                code='config-variable',
            )
        raise UserError(
            f"--cfg-options {key}: unknown key ('{name}'){closest(name, KNOWN) or '; correct the name'}",
            code='unknown-key',
        )
    with explained(f'--cfg-options do not fit the config {path}', 'correct the options'):
        cfg.merge_from_dict(dict(options))
    require_known_keys(cfg)


def require_known_keys(cfg: Config) -> None:
    """Raise if a top-level key resembles a known key. Other unknown keys are variables of the config."""
    for name in cfg.keys() - set(KNOWN):
        if advice := closest(name, KNOWN):
            raise UserError(f"the config has an unknown key ('{name}'){advice}", code='unknown-key')


def config_text(cfg: Config) -> str:
    """Return a config as YAML. YAML keeps tuples, so reading the text returns an equal config."""
    with explained(
        'the config has a value that YAML cannot store',
        'replace this value with text, numbers, lists or dictionaries',
    ):
        return yaml.dump(cfg.to_dict(), Dumper=PlainDumper, sort_keys=False)


def walk(values: Any, keys: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield every value in nested dictionaries and lists, together with the sequence of keys that leads to it."""
    yield keys, values
    items: Iterable = ()
    if isinstance(values, dict):
        # `values.items` is slow for a ConfigDict, because it copies every value
        items = dict.items(values)
    elif isinstance(values, list | tuple | set):
        items = enumerate(values)
    for key, value in items:
        yield from walk(value, (*keys, key))


def flat(value: Any, key: str = '') -> dict[str, Any]:
    """Return the innermost values of a config by dotted key. A list that contains no dictionary counts as one value."""
    value = list(value) if isinstance(value, tuple) else value
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {key: value}
    leaves = {}
    for name, part in value.items():
        leaves.update(flat(part, f'{key}.{name}'.lstrip('.')))
    return leaves
