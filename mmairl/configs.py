"""Configs: found by name or path, read from Python, YAML or JSON, changed by `--cfg-options`, and written as data.

`mmairl::NAME.py` is a config of this package, from a wheel and from a checkout, also where mmengine reads configs. mmengine
itself keeps a closed list of packages, wants a folder before the name, and looks in `.mim`, which a checkout does not have.
Such a base behaves exactly like a relative `_base_`.
"""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.config import utils as by_mmengine
from mmengine.utils import import_modules_from_strings

from mmairl.data_configs import SUFFIXES, PlainDumper, check, is_data, parsed, read_plain_yaml_only, scopes_of
from mmairl.errors import UserError, closest
from mmairl.files import replacing

PREFIX = 'mmairl::'
PACKAGE = Path(__file__).resolve().parent
# A wheel's configs lie inside of the package, a checkout's beside it.
HOMES = (PACKAGE / '.mim', PACKAGE.parent)
# The top-level keys that mmengine's runner or this package reads; others are the config author's own variables.
KNOWN = (
    'model', 'data_preprocessor', 'model_wrapper_cfg', 'work_dir', 'load_from', 'resume', 'train_dataloader',
    'val_dataloader', 'test_dataloader', 'train_cfg', 'val_cfg', 'test_cfg', 'optim_wrapper', 'param_scheduler',
    'auto_scale_lr', 'val_evaluator', 'test_evaluator', 'default_hooks', 'custom_hooks', 'launcher', 'env_cfg',
    'log_processor', 'log_level', 'visualizer', 'default_scope', 'randomness', 'experiment_name', 'custom_imports',
    'runner_type', 'strategy', 'total_batch_size', 'fast', 'evaluation', 'recipes',
)  # fmt: skip
IMPORT_KEYS = {'imports', 'allow_failed_imports'}


def home() -> Path:
    """The folder that holds our `configs`, `tools` and `projects`."""
    return next(folder for folder in HOMES if (folder / 'configs' / '_base_').is_dir())


def config_path(name: str) -> Path:
    """The file that `mmairl::NAME.py` or `mmairl::projects/PROJECT/configs/NAME.py` names.

    >>> config_path('mmairl::mocov2plus_r50_200e.py').name
    'mocov2plus_r50_200e.py'
    """
    inner = name.removeprefix(PREFIX)
    root = home() if inner.startswith('projects/') else home() / 'configs'
    path = (root / inner).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        known = [PREFIX + file.relative_to(root).as_posix() for file in root.rglob('*.py')]
        raise UserError(f"there is no config '{name}'{closest(name, known, 0.6)}")
    if root == home():
        _import_from(root)
    return path


def load_config(path: str | Path, options: dict | None = None) -> Config:
    """The config with `--cfg-options` merged in; a misspelt key is an error, not a key that nothing reads.

    `mmairl::NAME.py` is one that comes with mmairl, wherever that is installed.

    >>> load_config('mmairl::mocov2plus_r50_200e.py', {'optim_wrapper.optimizer.lr': 0.06}).optim_wrapper.optimizer.lr
    0.06
    """
    path = str(config_path(path) if str(path).startswith(PREFIX) else path)
    if not os.path.isfile(path):
        raise UserError(f'there is no config at {path}; see configs/ for those that come with mmairl')
    read_plain_yaml_only()  # a Python config may have a YAML base
    try:
        cfg = read_config(path) if is_data(path) else _run_config(path)
    except UserError:
        raise
    except Exception as error:  # a config in Python can fail in any way
        raise UserError(f'the config {path} cannot be read ({type(error).__name__}: {error}); correct it') from error
    for key in options or {}:
        name = key.split('.')[0]
        if name in KNOWN:
            continue
        if name in cfg:
            raise UserError(
                f"--cfg-options {key}: '{name}' is a variable that the config has used by now; override the keys set by it"
            )
        raise UserError(f"--cfg-options {key}: the config has no '{name}'{closest(name, KNOWN)}")
    try:
        cfg.merge_from_dict(options or {})
        if any(key.startswith('custom_imports') for key in options or {}):
            import_modules_from_strings(**cfg.custom_imports)
    except (KeyError, TypeError, AttributeError, IndexError, ImportError) as error:
        raise UserError(f'--cfg-options do not fit the config {path}: {error}') from error
    for name in cfg:
        if name not in KNOWN and closest(name, KNOWN):
            raise UserError(f"the config {path} sets '{name}', which nothing reads{closest(name, KNOWN)}")
    return cfg


def _run_config(path: str) -> Config:
    """A Python config: code that runs, by OpenMMLab's design. A folder of YAML must not be able to bring such code."""
    for folder in Path(path).resolve().parents:
        if (folder / 'projects').is_dir():
            _import_from(folder)
    return Config.fromfile(path)  # noqa: TID251  the user's own config


def _import_from(folder: Path) -> None:
    """Where a project's config finds its own parts."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def read_config(path: str | Path) -> Config:
    """The config in a YAML or JSON file with its bases, from the one reading in which it was checked."""
    return Config(_read(Path(path), ())._cfg_dict, filename=str(path))


def write_config(cfg: Config, path: str | Path) -> None:
    """Write a config, with its bases and options, as the YAML or JSON file that is read as data.

    YAML keeps tuples and is equal when read again; JSON has lists for them, which some parts of mmdet do not take.
    """
    if not is_data(path):
        raise UserError(f'a config is written as data to NAME.yaml or NAME.json, not to {path}')
    values = cfg.to_dict()
    try:
        if Path(path).suffix.lower() == '.json':
            text = json.dumps(values, indent=2)
        else:
            text = yaml.dump(values, Dumper=PlainDumper, sort_keys=False)
    except (TypeError, yaml.YAMLError) as error:
        raise UserError(f'the config holds a value that is not plain data ({error}); it stays a Python file') from error
    if 'custom_imports' in values:
        _require_own(values['custom_imports'], Path(path))
    check(values, Path(path), scopes_of(values))
    with replacing(path) as beside:
        beside.write_text(text)


def _read(path: Path, above: tuple[Path, ...]) -> Config:
    path = path.resolve()
    if path in above:
        raise UserError(f'the config {path} is its own _base_; take one of the two out')
    if path.suffix == '.py':
        return _trusted(path, above[-1])
    own = parsed(path)
    bases = own.pop('_base_', [])
    bases = bases if isinstance(bases, list) else [bases]
    whole = Config()
    for base in (_read(_base(path, name), (*above, path)) for name in bases):
        if doubled := whole._cfg_dict.keys() & base._cfg_dict.keys():
            raise UserError(f'two bases of {path} both set {sorted(doubled)[0]}; leave one of them out')
        whole.merge_from_dict(base._cfg_dict, allow_list_keys=False)
    imports = {**whole._cfg_dict, **own}.get('custom_imports')
    if imports is not None:
        _require_own(imports, path)
        import_modules_from_strings(**imports)
    check(own, path, scopes_of(whole._cfg_dict) | scopes_of(own))
    whole.merge_from_dict(own, allow_list_keys=False)
    return whole


def _base(path: Path, name: Any) -> Path:
    if isinstance(name, str) and name.startswith(PREFIX):
        return config_path(name)
    if not isinstance(name, str) or '::' in name or Path(name).suffix not in (*SUFFIXES, '.py'):
        raise UserError(f'the _base_ {name!r} of {path} is not a path to a .yaml, .json or .py config; give one')
    base = path.parent / name
    if not os.path.isfile(base):  # unlike Path's, it takes any name, however long
        raise UserError(
            f'the _base_ {name[:200]} of {path} is not there; correct the path, which begins at {path.parent}'
        )
    return base


def _trusted(path: Path, user: Path) -> Config:
    """A Python base, which is run: one of those that come with mmairl and no other."""
    roots = [home() / 'configs', *home().glob('projects/*/configs')]
    if not any(path.is_relative_to(root.resolve()) for root in roots):
        raise UserError(
            f'{user} has the _base_ {path}, which is Python code and does not come with mmairl; '
            'give a base in YAML or JSON, or write the config in Python if you mean to run that code'
        )
    _import_from(home())
    return Config.fromfile(path, import_custom_modules=False)  # noqa: TID251  it comes with mmairl


def _require_own(imports: Any, path: Path) -> None:
    """Refuse `custom_imports` that name other modules than those of this package and of the projects beside it."""
    names = imports.get('imports') if isinstance(imports, dict) and imports.keys() <= IMPORT_KEYS else None
    names = [names] if isinstance(names, str) else names
    strings = isinstance(names, list) and all(isinstance(name, str) for name in names)
    tops = {name.partition('.')[0] for name in names} if strings else {None}
    ours = {'mmairl': PACKAGE, 'projects': home() / 'projects'}
    if not tops <= ours.keys() or any(_folder(top) != ours[top] for top in tops):
        raise UserError(
            f'{path} sets custom_imports to {names or imports}, which are Python modules that do not come with mmairl; '
            'a YAML or JSON config is data, only Python may do that'
        )


def _folder(package: str) -> Path | None:
    """Where a top-level package would be imported from; looking runs none of it."""
    spec = find_spec(package)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def flat(value: Any, key: str = '') -> dict[str, Any]:
    """The values of a config by their dotted keys."""
    value = list(value) if isinstance(value, tuple) else value
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {key: value}
    return {at: leaf for name, one in value.items() for at, leaf in flat(one, f'{key}.{name}'.lstrip('.')).items()}


def teach_mmengine() -> None:
    """Make mmengine know `mmairl::` names: in a `_base_`, and in `mmengine.hub.get_config`, which may be imported by now."""
    if hasattr(by_mmengine, 'knows_mmairl'):
        return
    by_mmengine.knows_mmairl = True
    path_of_base = Config._get_cfg_path
    package_and_path, metainfo = by_mmengine._get_package_and_cfg_path, by_mmengine._get_cfg_metainfo

    def our_base(base: str, filename: str) -> tuple[str, str | None]:
        return (str(config_path(base)), None) if base.startswith(PREFIX) else path_of_base(base, filename)

    def our_path(name: str) -> tuple[str, str]:
        """Joined to the package's folder, an absolute path stays as it is."""
        return ('mmairl', str(config_path(name))) if name.startswith(PREFIX) else package_and_path(name)

    def no_metainfo(package: str, path: str) -> dict[str, Any]:
        if Path(path).is_absolute():
            raise ValueError(f'{path} is a file, not the name of a model')  # which mmengine takes as an answer
        return metainfo(package, path)

    Config._get_cfg_path = staticmethod(our_base)
    for module in (by_mmengine, sys.modules.get('mmengine.hub.hub')):
        if module is not None:
            module._get_package_and_cfg_path, module._get_cfg_metainfo = our_path, no_metainfo
