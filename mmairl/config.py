"""Read configs from Python, YAML or JSON, change them by `--cfg-options`, and write them as Python, YAML or JSON.

A config is a program in any format, because a YAML file, too, names classes and modules that are imported and called.

`mmairl::NAME.py` is a config of this package; see `config_names.py`.
"""

import json
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

WIDTH = 88  # characters in a line of a written config
# The top-level keys that mmengine's runner or this package reads. Other keys are variables of the config's author.
KNOWN = (
    'model', 'data_preprocessor', 'model_wrapper_cfg', 'work_dir', 'load_from', 'resume', 'train_dataloader',
    'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler',
    'auto_scale_lr', 'val_evaluator', 'test_evaluator', 'default_hooks', 'custom_hooks', 'launcher', 'env_cfg',
    'log_processor', 'log_level', 'visualizer', 'default_scope', 'randomness', 'experiment_name', 'custom_imports',
    'runner_type', 'strategy', 'total_batch_size', 'fast', 'evaluation', 'recipes',
)  # fmt: skip

# Modules that stored configs name in `custom_imports`, and their current names.
MOVED_MODULES = yaml.safe_load(Path(__file__).with_name('moved_modules.yaml').read_text())


class PlainDumper(yaml.SafeDumper):
    """The counterpart of PlainLoader. It keeps tuples and writes repeated parts in full instead of as aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Quote text with braces, so that `literal_braces` can escape them."""
    return dumper.represent_scalar(
        'tag:yaml.org,2002:str', text, style='"' if '{{' in text else None
    )


class PlainYaml(YamlHandler):
    """mmengine's YAML handler with PlainLoader. The original reads 1e-3 as text and runs code in annotation files."""

    def load_from_fileobj(self, file: IO[str], **_: Any) -> Any:
        text = file.read()
        values = yaml.load(text, Loader=PlainLoader)
        refuse_expansion(values, max(LARGEST, len(text)))
        return {} if values is None else values  # None = an empty file


PlainDumper.add_representer(tuple, lambda dumper, values: dumper.represent_sequence(TUPLE, values))
PlainDumper.add_representer(str, represent_text)
PlainDumper.add_implicit_resolver(*NUMBER)


def load_config(path: str | Path, options: dict | None = None) -> Config:
    """Return a config with `--cfg-options` merged in.

    Args:
        path: A .py, .yaml, .yml or .json file, or `mmairl::NAME.py` for a config of this package.
        options: Values by dotted key.

    Raises:
        UserError: If the config is missing or fails, or if a key is misspelled.

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
    # A config is a program and can fail in any way.
    with explained(f'the config {path} cannot be read', 'correct it'):
        cfg = Config.fromfile(path, import_custom_modules=False)  # noqa: TID251  the user's own program
        import_custom_modules(cfg)
    override(cfg, options or {}, path)
    return cfg


def override(cfg: Config, options: Mapping[str, Any], path: str) -> None:
    """Merge `--cfg-options` into the config read from `path`.

    Raises:
        UserError: If a key is misspelled, an option does not fit, or a URL contains a secret.
    """
    for key in options:
        name = key.split('.')[0]
        if name in KNOWN:
            continue
        if name in cfg:
            raise UserError(
                f"--cfg-options {key}: '{name}' is a variable that the config has used already; override the keys derived "
                'from it',
                code='config-variable',
            )
        raise UserError(
            f"--cfg-options {key}: unknown key ('{name}'){closest(name, KNOWN)}",
            code='unknown-key',
        )
    with explained(f'--cfg-options do not fit the config {path}', 'correct them'):
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
    """Import the modules in `custom_imports`. Former names are replaced by the current ones."""
    custom = cfg.get('custom_imports')
    if not custom:
        return
    names = [custom.imports] if isinstance(custom.imports, str) else custom.imports
    custom.imports = [MOVED_MODULES.get(name, name) for name in names]
    import_modules_from_strings(**custom)


def refuse_secrets(cfg: Config) -> None:
    """Raise if a URL in the config may hold a secret, before it reaches a log, a checkpoint or a result."""
    for key, value in by_key(cfg).items():
        if isinstance(value, str):
            refuse_secret(value, f'config key {key}')


def read_plain_yaml() -> None:
    """Make mmengine read YAML files (configs and annotations) with PlainLoader."""
    register_handler(['yml', 'yaml'])(PlainYaml)


def write_config(cfg: Config, path: str | Path) -> None:
    """Write a config, with its bases and options, as YAML or JSON.

    YAML keeps tuples, so the config is equal when it is read again. JSON has lists instead, which parts of mmdet reject.
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
    with explained(what, 'write it as Python', kinds):
        if suffix == '.json':
            return literal_braces(json.dumps(cfg.to_dict(), indent=2), r'\u007b')
        return literal_braces(yaml.dump(cfg.to_dict(), Dumper=PlainDumper, sort_keys=False))


def same_config(stored: str, current: str) -> bool:
    """Return whether two configs in YAML are equal, apart from parts that have no effect.

    These are `assumptions`, which only documents a config, QueueHook, and imports of modules that now belong to the package.
    """
    if stored == current:
        return True
    try:
        return _settings(stored) == _settings(current)
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):  # not a config of this package
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
    """Return a config as Python assignments that evaluate to exactly its values.

    mmengine's `pretty_text` does not escape keys, and its formatter takes as long as a short run.
    """
    lines = [f'{key} = {_expression(value)}\n' for key, value in sorted(cfg.to_dict().items())]
    return literal_braces(''.join(lines))


def _expression(value: Any, indent: str = '') -> str:
    """Return a value as a Python expression, on one line if it fits."""
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
        # A name that mmengine's registries import.
        return repr(f'{value.__module__}.{value.__qualname__}')
    else:
        return repr(value) if isinstance(value, str) else str(value)
    line = start + ', '.join(parts) + (',)' if start == '(' and len(parts) == 1 else end)
    if len(indent + line) <= WIDTH and '\n' not in line:
        return line
    return f'{start}\n' + ''.join(f'{inner}{part},\n' for part in parts) + indent + end


def literal_braces(text: str, brace: str = r'\x7b') -> str:
    """Escape the braces of `{{ ... }}`, which mmengine would replace before it parses the text of a config.

    They may be in comments and quoted strings only.
    """
    return text.replace('{{', '{' + brace)


def walk(values: Any, keys: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Yield every value at any depth with the keys that lead to it."""
    yield keys, values
    items: Iterable = ()
    if isinstance(values, dict):
        items = dict.items(values)  # ConfigDict.items copies all values
    elif isinstance(values, list | tuple | set):
        items = enumerate(values)
    for key, value in items:
        yield from walk(value, (*keys, key))


def by_key(cfg: Config) -> dict[str, Any]:
    """Return every value at any depth, including the parts themselves, by dotted key."""
    return {'.'.join(map(str, keys)): value for keys, value in walk(cfg.to_dict())}


def flat(value: Any, key: str = '') -> dict[str, Any]:
    """Return the leaves of a config by dotted key."""
    value = list(value) if isinstance(value, tuple) else value
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {key: value}
    leaves = {}
    for name, part in value.items():
        leaves.update(flat(part, f'{key}.{name}'.lstrip('.')))
    return leaves
