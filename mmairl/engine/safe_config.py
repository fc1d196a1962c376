"""Configs as data: YAML and JSON files that may choose among what is registered and nothing else.

mmengine reads them with a loader that builds Python objects, follows `_base_` to any Python file, imports what
`custom_imports` names, and takes a `type` that it does not know for something to import and call. Here a file is parsed
once, as plain values; what would reach beyond the registries and beyond mmairl's own modules is refused; and the run gets
those very values.
"""

import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from mmengine.config import Config
from mmengine.config.config import RESERVED_KEYS
from mmengine.registry import Registry
from mmengine.utils import import_modules_from_strings

from mmairl.configs import PREFIX, config_path, home
from mmairl.engine.plain_files import PlainDumper, PlainLoader
from mmairl.errors import UserError
from mmairl.files import replacing

SUFFIXES = ('.yml', '.yaml', '.json')
PACKAGE = Path(__file__).resolve().parent.parent
SCOPES = ('mmengine', 'mmairl', 'mmpretrain', 'mmdet', 'mmseg')
LARGEST = 100_000  # values in a file; a few lines of YAML can refer to themselves a billion times over
DEEPEST = 50

# Strings that the platform looks up as it does a `type`.
NAMES = ('type', 'constructor', 'runner_type', 'ema_type', 'auto_wrap_policy', 'param_init_fn', 'check_fn')
# A `type` that is no registered name: the platform chooses among these by itself.
CHOICES = {
    'nms': ('nms', 'soft_nms', 'nms_match', 'nms_quadri', 'nms_rotated'),  # anything else would be evaluated as Python
    'clip_grad': ('norm', 'value'),
    'roi_layer': ('RoIAlign', 'RoIPool', 'DeformRoIPool'),
}
IMPORT_KEYS = {'imports', 'allow_failed_imports'}
FORBIDDEN = {
    'trust_remote_code': "runs a downloaded model's own code",
    'sys_path': 'says where Python looks for modules',
}
# Registered classes that themselves read code out of what a config gives them.
CODE_IN_DATA = {
    'mmcv.cnn.rfsearch.search': 'evaluates its ops as Python',
    'mmdet.models.task_modules.tracking.camera_motion_compensation': 'evaluates its warp_mode as Python',
    'mmdet.models.detectors.kd_one_stage': 'runs its teacher_config as Python',
    'mmdet.datasets.openimages': 'unpickles its hierarchy_file',
    'mmpretrain.models.multimodal.ram.ram': 'unpickles its tags',
    'mmpretrain.models.classifiers.hugging_face': 'downloads models by name',
    'transformers': 'downloads models by name',
}


def is_data(path: str | Path) -> bool:
    """Whether a config is one of those that are read as data, by its name."""
    return Path(path).suffix.lower() in SUFFIXES


def require_safe(path: str | Path) -> None:
    """Refuse a YAML or JSON config that asks for more than values and registered parts."""
    read_config(path)


def read_config(path: str | Path) -> Config:
    """The config in a YAML or JSON file with its bases, from the one reading in which it was checked."""
    if not is_data(path):
        raise UserError(f'the config {path} is not read as data by its name; give a .yaml or .json file')
    return Config(_read(Path(path), ())._cfg_dict, filename=str(path))


def write_config(cfg: Config, path: str | Path) -> None:
    """Write a config, with its bases and options, as the YAML or JSON file that is read as data.

    YAML keeps tuples and is equal when read again; JSON has lists for them, which some parts of mmdet do not take.
    """
    if not is_data(path):
        raise UserError(f'a config is written as data to NAME.yaml or NAME.json, not to {path}')
    values = cfg.to_dict()
    try:
        is_json = Path(path).suffix.lower() == '.json'
        text = json.dumps(values, indent=2) if is_json else yaml.dump(values, Dumper=PlainDumper, sort_keys=False)
    except (TypeError, yaml.YAMLError) as error:
        raise UserError(f'the config holds a value that is not plain data ({error}); it stays a Python file') from error
    if 'custom_imports' in values:
        _require_own(values['custom_imports'], Path(path))
    _check(values, Path(path), _scopes(values))
    with replacing(path) as beside:
        beside.write_text(text)


def _read(path: Path, above: tuple[Path, ...]) -> Config:
    path = path.resolve()
    if path in above:
        raise UserError(f'the config {path} is its own _base_; take one of the two out')
    if path.suffix == '.py':
        return _trusted(path, above[-1])
    own = _parsed(path)
    bases = own.pop('_base_', [])
    bases = bases if isinstance(bases, list) else [bases]
    whole = Config()
    for base in (_read(_base(path, name), (*above, path)) for name in bases):
        if doubled := whole._cfg_dict.keys() & base._cfg_dict.keys():
            raise UserError(f'two bases of {path} both set {sorted(doubled)[0]}; leave one of them out')
        whole.merge_from_dict(base._cfg_dict, allow_list_keys=False)
    _import({**whole._cfg_dict, **own}.get('custom_imports'), path)
    _check(own, path, _scopes(whole._cfg_dict) | _scopes(own))
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
    if str(home()) not in sys.path:
        sys.path.append(str(home()))  # where a project's config imports its own parts from
    return Config.fromfile(path, import_custom_modules=False)


def _parsed(path: Path) -> dict:
    """The values in a file, of which nothing has been looked up or called."""
    try:
        text = path.read_text('utf-8')
        values = json.loads(text) if path.suffix.lower() == '.json' else yaml.load(text, Loader=PlainLoader)
    except yaml.constructor.ConstructorError as error:
        where = f'{path}, line {error.problem_mark.line + 1}'
        raise UserError(f'{where}, asks for a Python object ({error.problem}); write plain values') from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, LookupError, OSError) as error:
        said = ' '.join(str(error).split())
        raise UserError(f'the config {path} is not {path.suffix[1:].upper()}: {said}; correct it there') from error
    if not isinstance(values, dict) or not all(isinstance(key, str) and '.' not in key for key in values):
        raise UserError(f'the config {path} is not a mapping from plain keys such as model to values; make it one')
    if taken := [key for key in RESERVED_KEYS if key in values]:
        raise UserError(f'the config {path} sets {taken[0]}, which mmengine keeps for itself; give it another name')
    for count, (keys, _) in enumerate(_walk(values)):
        if count > LARGEST or len(keys) > DEEPEST:
            raise UserError(f'the config {path} is larger or deeper than any run needs; take out what repeats in it')
    return values


def _walk(values: Any, keys: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every value at any depth with the keys that lead to it."""
    yield keys, values
    if isinstance(values, dict):
        items = list(dict.items(values))
    else:
        items = list(enumerate(values)) if isinstance(values, (list, tuple, set)) else []
    for key, value in items if len(keys) < DEEPEST else [(None, None)]:
        yield from _walk(value, (*keys, key))


def _scopes(values: dict) -> set[str]:
    """The scopes in which the names of a config may be looked up."""
    found = [value for keys, value in _walk(values) if keys and keys[-1] in ('default_scope', '_scope_')]
    return {'mmengine', 'mmairl', *(scope for scope in SCOPES if scope in found)}


def _check(values: dict, path: Path, scopes: set[str]) -> None:
    for keys, value in _walk(values):
        if keys and (reason := _objection(keys, value, scopes)):
            at = '.'.join(map(str, keys))
            raise UserError(f'{path} sets {at}, which {reason}; a YAML or JSON config is data, only Python may do that')


def _objection(keys: tuple, value: Any, scopes: set[str]) -> str | None:
    """What a value would do beyond choosing among registered parts."""
    key = keys[-1]
    if key in FORBIDDEN and value:
        return FORBIDDEN[key]
    if '{{' in str(key) or (isinstance(value, str) and '{{' in value):
        return 'asks for a {{variable}}'
    if key in ('_scope_', 'default_scope') and value is not None and value not in SCOPES:
        return f'imports the package {value}'
    if (key, value) in (('decode_backend', 'pickle'), ('backend', 'memcached')):
        return f'reads with {value}, which runs code'
    if not isinstance(value, str) or not isinstance(key, str):
        return None
    if key in NAMES:
        return None if value in _choices(keys) else _unregistered(value, scopes)
    if key.endswith(('type', '_fn', '_cls', '_class', '_policy')) and not value.replace('-', '_').isidentifier():
        return _unregistered(value, scopes)
    return None


def _import(imports: Any, path: Path) -> None:
    """Do what `custom_imports` says, if it names modules of this package or of the projects beside it and no other."""
    if imports is None:
        return
    _require_own(imports, path)
    import_modules_from_strings(**imports)


def _require_own(imports: Any, path: Path) -> None:
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


def _choices(keys: tuple) -> tuple[str, ...]:
    return CHOICES.get(keys[-2], ()) if len(keys) > 1 and keys[-1] == 'type' else ()


def _unregistered(name: str, scopes: set[str]) -> str | None:
    """Why a name may not be built: it is in no registry, so that it would be imported, or it reads code itself."""
    scope, dot, inner = name.partition('.')
    if dot and scope not in SCOPES:
        return f'names {name}, to be imported and called'
    found = [kind for box in (('mmengine', scope) if dot else scopes) for kind in _named(box, inner if dot else name)]
    if not found:
        return f'names {name}, which is not registered'
    modules = [f'{base.__module__}.' for kind in found for base in getattr(kind, '__mro__', (kind,))]
    reasons = (why for module, why in CODE_IN_DATA.items() if any(at.startswith(f'{module}.') for at in modules))
    return next((f'names {name}, which {why}' for why in reasons), None)


def _named(scope: str, name: str) -> list[Any]:
    """What is registered under a name in the registries of a scope."""
    return [box.module_dict[name] for box in _registries(scope) if name in box.module_dict]


@cache
def _registries(scope: str) -> list[Registry]:
    """The registries of a package, filled."""
    if scope == 'mmpretrain':
        import_module('mmairl.models.platform').import_mmpretrain()
    try:
        boxes = [box for box in vars(import_module(f'{scope}.registry')).values() if isinstance(box, Registry)]
        for box in boxes:
            box.import_from_location()
    except ImportError as error:
        raise UserError(f'the config needs {scope}, which cannot be imported ({error}); install it first') from error
    return boxes
