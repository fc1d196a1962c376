"""Read configs from Python, YAML or JSON, change them by `--cfg-options`, and write them as Python, YAML or JSON.

A config is a program, whatever its format: a YAML file also names classes and modules, which are imported and called.

The name `mmairl::NAME.py` refers to a config of this package; see `config_names.py`.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from keyword import iskeyword
from pathlib import Path
from typing import IO, Any

import yaml
from mmengine.config import Config
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import YamlHandler
from mmengine.utils import import_modules_from_strings

from mmairl.config_names import PREFIX, config_path, current_name, home, import_from
from mmairl.errors import UserError, closest, explained, refuse_secret
from mmairl.io import (
    LARGEST,
    NUMBER,
    TUPLE,
    PlainLoader,
    parse_yaml,
    refuse_expansion,
    write_text,
)

WIDTH = 88  # maximum number of characters in a line of a config that is written as Python
# The top-level keys that mmengine's runner or this package reads. Other keys are
# variables that the author of a config defines for use within it.
KNOWN = (
    'model', 'data_preprocessor', 'model_wrapper_cfg', 'work_dir', 'load_from', 'resume', 'train_dataloader',
    'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler',
    'auto_scale_lr', 'val_evaluator', 'test_evaluator', 'default_hooks', 'custom_hooks', 'launcher', 'env_cfg',
    'log_processor', 'log_level', 'visualizer', 'default_scope', 'randomness', 'experiment_name', 'custom_imports',
    'runner_type', 'strategy', 'total_batch_size', 'fast', 'evaluation', 'recipes',
)  # fmt: skip

# Stored configs may list modules in `custom_imports` that have moved. This table maps each former name to the current name.
MOVED_MODULES = yaml.safe_load(Path(__file__).with_name('moved_modules.yaml').read_text())


class PlainDumper(yaml.SafeDumper):
    """A YAML dumper whose output PlainLoader reads. It keeps tuples, and writes repeated values in full, not as aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Put a text in double quotes if it contains `{{`, because `literal_braces` can escape braces only in double quotes."""
    return dumper.represent_scalar(
        'tag:yaml.org,2002:str', text, style='"' if '{{' in text else None
    )


class PlainYaml(YamlHandler):
    """mmengine's handler for YAML files, but with PlainLoader.

    mmengine's own loader reads 1e-3 as text, and runs code that an annotation file contains.
    """

    def load_from_fileobj(self, file: IO[str], **_: Any) -> Any:
        text = file.read()
        values = yaml.load(text, Loader=PlainLoader)
        refuse_expansion(values, max(LARGEST, len(text)))
        # PyYAML returns None for an empty file, which is a valid config.
        return {} if values is None else values


PlainDumper.add_representer(tuple, lambda dumper, values: dumper.represent_sequence(TUPLE, values))
PlainDumper.add_representer(str, represent_text)
PlainDumper.add_implicit_resolver(*NUMBER)


def load_config(path: str | Path, options: dict | None = None) -> Config:
    """Load a config, and merge the options of `--cfg-options` into it.

    Args:
        path: A .py, .yaml, .yml or .json file, or `mmairl::NAME.py` for a config of this package.
        options: The new values, by dotted key.

    Raises:
        UserError: If the config is missing, if loading it fails, or if a key is misspelled.

    >>> load_config('mmairl::mocov2plus_r50_200e.py', {'optim_wrapper.optimizer.lr': 0.06}).optim_wrapper.optimizer.lr
    0.06
    """
    path = current_name(str(path))
    path = str(config_path(path)) if path.startswith(PREFIX) else path
    if not os.path.isfile(path):
        known = [file.name for file in (home() / 'configs').rglob('*.py')]
        near = closest(os.path.basename(path), known)
        raise UserError(
            f"'{path}': no such config{near}; see configs/ for the configs of mmairl",
            code='no-config',
        )
    if Path(path).suffix not in ('.py', '.yaml', '.yml', '.json'):
        raise UserError(
            f"'{path}': unsupported config type; expected .py, .yaml or .json",
            code='unknown-config-type',
        )
    read_plain_yaml()
    for folder in (*Path(path).resolve().parents, home()):
        if (folder / 'projects').is_dir():
            import_from(folder)
    # A config is a program, so loading it can raise any exception.
    with explained(f'the config {path} cannot be read', 'correct the config'):
        cfg = Config.fromfile(path, import_custom_modules=False)  # noqa: TID251  the user's own program
        import_custom_modules(cfg)
    override(cfg, options or {}, path)
    return cfg


def override(cfg: Config, options: Mapping[str, Any], path: str) -> None:
    """Merge `--cfg-options` into the config read from `path`.

    Raises:
        UserError: If a key is misspelled, an option does not fit the config, or a URL contains a secret.
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
        cfg.merge_from_dict(options)
        if any(key.startswith('custom_imports') for key in options):
            import_custom_modules(cfg)
    for name in cfg:
        if name not in KNOWN and closest(name, KNOWN):
            raise UserError(
                f"{path}: unknown key '{name}'{closest(name, KNOWN)}",
                code='unknown-key',
            )
    refuse_secrets(cfg)


def import_custom_modules(cfg: Config) -> None:
    """Import the modules that the config lists in `custom_imports`. If a module has moved, import it by its current name."""
    custom = cfg.get('custom_imports')
    if not custom:
        return
    names = [custom.imports] if isinstance(custom.imports, str) else custom.imports
    custom.imports = [MOVED_MODULES.get(name, name) for name in names]
    import_modules_from_strings(**custom)


def refuse_secrets(cfg: Config) -> None:
    """Raise if a URL in the config may contain a secret, because logs, checkpoints and results store the config."""
    for key, value in by_key(cfg).items():
        if isinstance(value, str):
            refuse_secret(value, f'config key {key}')


def read_plain_yaml() -> None:
    """Make mmengine read YAML files (configs and annotations) with PlainLoader."""
    register_handler(['yml', 'yaml'])(PlainYaml)


def write_config(cfg: Config, path: str | Path) -> None:
    """Write a complete config, with its bases and options merged, to a YAML or JSON file.

    YAML keeps tuples, so reading the file returns an equal config. JSON turns tuples into lists, which some classes of
    mmdet reject.
    """
    suffix = Path(path).suffix
    if suffix not in ('.yaml', '.yml', '.json'):
        raise UserError(
            f"'{path}': unsupported config type; expected .yaml or .json",
            code='unknown-config-type',
        )
    write_text(path, config_text(cfg, suffix))


def config_text(cfg: Config, suffix: str = '.yaml') -> str:
    refuse_secrets(cfg)
    kinds = (TypeError, yaml.YAMLError)
    what = 'the config has a value that YAML and JSON cannot store'
    with explained(what, 'replace this value with text, numbers, lists or dictionaries', kinds):
        if suffix == '.json':
            return literal_braces(json.dumps(cfg.to_dict(), indent=2), r'\u007b')
        return literal_braces(yaml.dump(cfg.to_dict(), Dumper=PlainDumper, sort_keys=False))


def same_config(stored: str, current: str) -> bool:
    """Return whether two configs, given as YAML text, are equal except for parts that do not affect a run.

    Three parts are ignored: the key `assumptions`, which only documents a config; the obsolete QueueHook, which does nothing;
    and imports of modules that are part of mmairl today.
    """
    if stored == current:
        return True
    try:
        return _settings(stored) == _settings(current)
    # These errors mean that one of the texts is not a config of this package.
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        return False


def _settings(text: str) -> tuple[dict[str, Any], list[str]]:
    values = parse_yaml(text, PlainLoader)
    values.pop('assumptions', None)
    hooks = values.get('default_hooks') or {}
    if hooks.get('queue') == {'type': 'QueueHook'}:
        del hooks['queue']
    imports = (values.pop('custom_imports', None) or {}).get('imports', [])
    current = [MOVED_MODULES.get(name, name) for name in imports]
    return values, [name for name in current if not name.startswith('mmairl.')]


def python_text(cfg: Config) -> str:
    """Return a config as Python code with an assignment for each top-level key. Running the code gives exactly the same values.

    This function replaces mmengine's `pretty_text`, which does not escape keys and whose code formatter takes as long as a
    short training run.
    """
    lines = [f'{key} = {_expression(value)}\n' for key, value in sorted(cfg.to_dict().items())]
    return literal_braces(''.join(lines))


def _expression(value: Any, indent: str = '') -> str:
    """Return a Python expression for a value, on one line if the line is not too long."""
    inner = indent + '    '
    if isinstance(value, dict):
        named = all(
            isinstance(key, str) and key.isidentifier() and not iskeyword(key) for key in value
        )
        start, end = ('dict(', ')') if named else ('{', '}')
        parts = []
        for key, part in sorted(value.items(), key=lambda item: str(item[0])):
            parts.append((f'{key}=' if named else f'{key!r}: ') + _expression(part, inner))
    elif isinstance(value, list | tuple):
        start, end = '[]' if isinstance(value, list) else '()'
        parts = [_expression(part, inner) for part in value]
    elif callable(value):
        # Write a class or function as its import path, which mmengine's registries can resolve.
        return repr(f'{value.__module__}.{value.__qualname__}')
    elif isinstance(value, float) and not math.isfinite(value):
        # 1e999 is infinity. Unlike a call of `float`, `read_run_config` can read this literal.
        return "float('nan')" if math.isnan(value) else str(value).replace('inf', '1e999')
    else:
        return repr(value) if isinstance(value, str) else str(value)
    line = start + ', '.join(parts) + (',)' if start == '(' and len(parts) == 1 else end)
    if len(indent + line) <= WIDTH and '\n' not in line:
        return line
    return f'{start}\n' + ''.join(f'{inner}{part},\n' for part in parts) + indent + end


def literal_braces(text: str, brace: str = r'\x7b') -> str:
    """Escape each `{{` in the text of a config, because mmengine would replace `{{ ... }}` as a template variable.

    The text may contain `{{` only in comments and quoted strings. In other places, the escaped text would be invalid.
    """
    return text.replace('{{', '{' + brace)


def walk(values: Any, keys: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield every value in nested dictionaries and lists, together with the sequence of keys that leads to it."""
    yield keys, values
    items: Iterable = ()
    if isinstance(values, dict):
        items = dict.items(
            values
        )  # `values.items` is slow for a ConfigDict, because it copies every value
    elif isinstance(values, list | tuple | set):
        items = enumerate(values)
    for key, value in items:
        yield from walk(value, (*keys, key))


def by_key(cfg: Config) -> dict[str, Any]:
    """Return every value of a config by dotted key. Nested dictionaries and lists are included, in addition to their items."""
    return {'.'.join(map(str, keys)): value for keys, value in walk(cfg.to_dict())}


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
