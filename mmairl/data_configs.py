"""What a YAML or JSON config may hold: plain values, and types out of the registries of OpenMMLab's packages.

mmengine reads such a file with a loader that builds Python objects, and takes a `type` that it does not know for something
to import and call. Here a file is parsed once, as plain values, and each name in it must be registered by a module of
`ALLOWED`. `mmairl.configs` follows the bases.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module  # noqa: TID251  the registry of a scope out of a fixed list
from pathlib import Path
from typing import IO, Any

import yaml
from mmengine.config.config import RESERVED_KEYS
from mmengine.fileio import register_handler
from mmengine.fileio.handlers import YamlHandler
from mmengine.registry import Registry

from mmairl.errors import UserError

SUFFIXES = ('.yml', '.yaml', '.json')
LARGEST_FILE = 1_000_000  # bytes
LARGEST = 100_000  # values in a file; a few lines of YAML can refer to themselves a billion times over
DEEPEST = 50

# The packages whose registries a config may name, and in each the modules whose classes do nothing but what a run needs.
# Others evaluate, unpickle or download what a config gives them, as mmdet's KnowledgeDistillationSingleStageDetector does.
ALLOWED = {
    'mmairl': ('',),  # whatever is registered in our scope was imported by us or by the user
    'mmengine': ('mmengine.', 'torch.', 'mmcv.cnn.bricks.', 'mmcv.ops.', 'mmcv.transforms.'),
    'mmpretrain': (
        *(f'mmpretrain.models.{part}.' for part in ('backbones', 'necks', 'heads', 'losses', 'selfsup')),
        *(f'mmpretrain.models.{part}.' for part in ('classifiers.image', 'utils.data_preprocessor')),
        *(f'mmpretrain.{part}.' for part in ('datasets.transforms', 'engine', 'evaluation', 'visualization')),
    ),
    'mmdet': (
        *(f'mmdet.models.{part}.' for part in ('backbones', 'necks', 'dense_heads', 'roi_heads', 'losses', 'layers')),
        *(f'mmdet.models.task_modules.{part}.' for part in ('assigners', 'coders', 'prior_generators', 'samplers')),
        *(f'mmdet.models.{part}.' for part in ('data_preprocessors', 'detectors.faster_rcnn', 'detectors.mask_rcnn')),
        *(f'mmdet.datasets.{part}.' for part in ('coco', 'voc', 'transforms')),
        *(f'mmdet.{part}.' for part in ('engine', 'evaluation', 'visualization')),
    ),
    'mmseg': tuple(f'mmseg.{part}.' for part in ('models', 'datasets', 'engine', 'evaluation', 'visualization')),
}
# Strings that the platform looks up as it does a `type`.
NAMES = ('type', 'constructor', 'runner_type', 'ema_type', 'auto_wrap_policy', 'param_init_fn', 'check_fn')
# A `type` that is no registered name: the platform chooses among these by itself.
CHOICES = {
    'nms': ('nms', 'soft_nms', 'nms_match', 'nms_quadri', 'nms_rotated'),  # anything else would be evaluated as Python
    'clip_grad': ('norm', 'value'),
    'roi_layer': ('RoIAlign', 'RoIPool', 'DeformRoIPool'),
}
# Packages that do not import everywhere, and the room of ours that knows how.
PREPARED_BY = dict(mmpretrain='mmairl.models', mmdet='mmairl.transfer', mmseg='mmairl.transfer')
TUPLE = 'tag:yaml.org,2002:python/tuple'


class PlainLoader(yaml.SafeLoader):
    """The safe loader, which also knows the tuples that `Config.dump` writes and reads 1e-3 as the number it is."""

    def get_single_node(self) -> yaml.Node | None:
        """The file's tree, whose size is known before anything is made of it."""
        root = super().get_single_node()
        if root is not None:
            _count(root, {})
        return root


class PlainDumper(yaml.SafeDumper):
    """What writes files for PlainLoader: tuples stay tuples, and equal parts are written out, not referred to."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 wants a dot in the mantissa; without this a learning rate of 1e-3 would be a string.
FLOAT = re.compile(r'^[-+]?[0-9]+[eE][-+]?[0-9]+$')
PlainLoader.add_constructor(TUPLE, lambda loader, node: tuple(loader.construct_sequence(node, deep=True)))
PlainDumper.add_representer(tuple, lambda dumper, values: dumper.represent_sequence(TUPLE, values))
for _language in (PlainLoader, PlainDumper):
    _language.add_implicit_resolver('tag:yaml.org,2002:float', FLOAT, list('-+0123456789'))


def _count(node: yaml.Node, counted: dict[int, int]) -> int:
    """The values that a node of the tree stands for, with everything that it refers to."""
    if id(node) not in counted:
        counted[id(node)] = LARGEST + 1  # if it is met again meanwhile, it contains itself
        children = node.value if isinstance(node.value, list) else []
        flat = [child for entry in children for child in (entry if isinstance(entry, tuple) else (entry,))]
        counted[id(node)] = 1 + sum(_count(child, counted) for child in flat)
        if counted[id(node)] > LARGEST:
            raise OverflowError
    return counted[id(node)]


class PlainYaml(YamlHandler):
    """mmengine's reader of YAML files without tags that name Python objects."""

    def load_from_fileobj(self, file: IO[str], **kwargs: Any) -> Any:
        return yaml.load(file, Loader=PlainLoader)


def read_plain_yaml_only() -> None:
    """Make mmengine's `load` read YAML as plain data; it would build whatever Python object a file names."""
    register_handler(['yml', 'yaml'])(PlainYaml)


def is_data(path: str | Path) -> bool:
    """Whether a config is one of those that are read as data, by its name."""
    return Path(path).suffix.lower() in SUFFIXES


def parsed(path: Path) -> dict:
    """The values in a file, of which nothing has been looked up or called."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise OverflowError
        text = path.read_text('utf-8')
        values = json.loads(text) if path.suffix.lower() == '.json' else yaml.load(text, Loader=PlainLoader)
        if any(len(keys) > DEEPEST for keys, _ in walk(values)):
            raise OverflowError
    except (OverflowError, RecursionError) as error:
        raise UserError(f'the config {path} is larger or deeper than any run needs; take out what repeats') from error
    except yaml.constructor.ConstructorError as error:
        where = f'{path}, line {error.problem_mark.line + 1}'
        raise UserError(f'{where}, asks for a Python object ({error.problem}); write plain values') from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError, OSError) as error:
        said = ' '.join(str(error).split())
        raise UserError(f'the config {path} is not {path.suffix[1:].upper()}: {said}; correct it there') from error
    if not isinstance(values, dict) or not all(isinstance(key, str) and '.' not in key for key in values):
        raise UserError(f'the config {path} is not a mapping from plain keys such as model to values; make it one')
    if taken := [key for key in RESERVED_KEYS if key in values]:
        raise UserError(f'the config {path} sets {taken[0]}, which mmengine keeps for itself; give it another name')
    return values


def walk(values: Any, keys: tuple = ()) -> Iterator[tuple[tuple, Any]]:
    """Every value at any depth with the keys that lead to it."""
    yield keys, values
    items = dict.items(values) if isinstance(values, dict) else ()  # a ConfigDict's own `items` takes a plain key
    items = enumerate(values) if isinstance(values, (list, tuple, set)) else items
    if len(keys) <= DEEPEST:
        for key, value in items:
            yield from walk(value, (*keys, key))


def scopes_of(values: dict) -> set[str]:
    """The scopes in which the names of a config may be looked up."""
    found = [value for keys, value in walk(values) if keys and keys[-1] in ('default_scope', '_scope_')]
    return {'mmengine', 'mmairl', *(scope for scope in ALLOWED if scope in found)}


def check(values: dict, path: Path | str, scopes: set[str]) -> None:
    """Refuse values that would do more than choose among the registered parts of these scopes."""
    for keys, value in walk(values):
        if keys and (reason := _objection(keys, value, scopes)):
            at = '.'.join(map(str, keys))
            raise UserError(f'{path} sets {at}, which {reason}; a YAML or JSON config is data, only Python may do that')


def _objection(keys: tuple, value: Any, scopes: set[str]) -> str | None:
    key = keys[-1]
    if '{{' in str(key) or (isinstance(value, str) and '{{' in value):
        return 'asks for a {{variable}}'
    if key in ('_scope_', 'default_scope') and value not in (None, *ALLOWED):
        return f'imports the package {value}'
    if (key, value) in (('decode_backend', 'pickle'), ('backend', 'memcached')):
        return f'reads with {value}, which runs code'
    if not isinstance(value, str) or not isinstance(key, str):
        return None
    choices = CHOICES.get(keys[-2], ()) if len(keys) > 1 and key == 'type' else ()
    looked_up = key in NAMES and value not in choices
    named = key.endswith(('type', '_fn', '_cls', '_class', '_policy')) and not value.replace('-', '_').isidentifier()
    return _not_allowed(value, scopes) if looked_up or (named and key not in NAMES) else None


def _not_allowed(name: str, scopes: set[str]) -> str | None:
    """Why a name may not be built: it is in no registry, so that it would be imported, or its module is not listed."""
    scope, dot, inner = name.partition('.')
    if dot and scope not in ALLOWED:
        return f'names {name}, to be imported and called'
    inner, found = inner if dot else name, []
    for place in ('mmengine', scope) if dot else scopes:
        boxes = _registries(place)
        for box in boxes:
            if hasattr(box, 'load'):  # ours, which import what is asked for
                box.load(inner)
        found += [(place, f'{box.module_dict[inner].__module__}.') for box in boxes if inner in box.module_dict]
    if not found:
        return f'names {name}, which is not registered'
    refused = [module for place, module in found if not module.startswith(ALLOWED[place])]
    return f'names {name} of {refused[0][:-1]}, which is not among the modules that data may name' if refused else None


@cache
def _registries(scope: str) -> list[Registry]:
    """The registries of a package, filled."""
    try:
        if scope in PREPARED_BY:
            import_module(PREPARED_BY[scope])
        boxes = [box for box in vars(import_module(f'{scope}.registry')).values() if isinstance(box, Registry)]
        for box in boxes:
            box.import_from_location()
    except ImportError as error:
        raise UserError(f'the config needs {scope}, which cannot be imported ({error}); install it first') from error
    return boxes
