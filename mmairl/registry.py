"""The child registries of mmengine's, under the scope ``mmairl``.

Each names the packages whose classes fill it. A look-up imports the one file that defines the class, so that a run loads
what its config names and no more. Parts of mmpretrain, mmdet and mmseg stay reachable by prefix, as in
``dict(type='mmpretrain.ResNet')``.
"""

import re
from functools import cache
from importlib import import_module  # noqa: TID251  the packages of ours that registries name
from pathlib import Path
from typing import Any

from mmengine import registry as parent

from mmairl.errors import building

REGISTERED = re.compile(r'^@\w+\.register_module\((.*)\).*\nclass (\w+)', re.MULTILINE)


@cache
def files_of(package: str) -> dict[str, str]:
    """The module of each registered class of a package, read from the text of its files: none of them is imported."""
    modules = {}
    folder = Path(__file__).parent.joinpath(*package.split('.')[1:])
    for file in sorted(folder.glob('*.py')):
        for words, name in REGISTERED.findall(file.read_text('utf-8')):
            modules.update(dict.fromkeys([name, *re.findall(r"'(\w+)'", words)], f'{package}.{file.stem}'))
    return modules


def class_of(package: str, name: str) -> Any:
    """A registered class of a package, which a package's `__getattr__` gives to `from PACKAGE import CLASS`."""
    if name not in files_of(package):
        raise AttributeError(f'module {package!r} has no attribute {name!r}')
    return getattr(import_module(files_of(package)[name]), name)


class Registry(parent.Registry):
    """A registry of ours; `_locations` are its packages, which mmengine imports and which import nothing by themselves."""

    def get(self, key: str) -> type | None:
        self.load(key.removeprefix(f'{self.scope}.'))
        return super().get(key)

    def build(self, cfg: dict, *args: Any, **kwargs: Any) -> Any:
        kind = cfg.get('type', 'a part')
        with building(kind if isinstance(kind, str) else getattr(kind, '__name__', str(kind))):
            return super().build(cfg, *args, **kwargs)

    def load(self, name: str) -> None:
        """Import the file that registers the class of this name, if one of ours does."""
        for package in self._locations:
            if name in files_of(package) and name not in self._module_dict:
                import_module(files_of(package)[name])

    def names(self) -> list[str]:
        """All names that it knows so far, and those that are in the text of its files."""
        names = [name for package in self._locations for name in files_of(package)]
        return [*names, *self.module_dict, *self.parent.module_dict]

    def peek(self, name: str) -> type | None:
        """The class of this name, unless another package would have to be imported to look for it."""
        scope, _, inner = name.rpartition('.')
        if scope not in ('', self.scope):
            other = self.parent.children.get(scope)
            return other and other.module_dict.get(inner)
        if inner in self.module_dict or any(inner in files_of(package) for package in self._locations):
            return self.get(inner)
        return self.parent.module_dict.get(inner)


def _child(root: parent.Registry, *packages: str) -> Registry:
    return Registry(root.name, parent=root, scope='mmairl', locations=[f'mmairl.{package}' for package in packages])


MODELS = _child(parent.MODELS, 'models', 'data')
MODEL_WRAPPERS = _child(parent.MODEL_WRAPPERS, 'engine')
RUNNERS = _child(parent.RUNNERS, 'engine')
HOOKS = _child(parent.HOOKS, 'engine.hooks', 'evaluation')
DATASETS = _child(parent.DATASETS, 'data', 'data.shards')
DATA_SAMPLERS = _child(parent.DATA_SAMPLERS, 'data')
TRANSFORMS = _child(parent.TRANSFORMS, 'data')
OPTIMIZERS = _child(parent.OPTIMIZERS, 'engine.optim')
OPTIM_WRAPPERS = _child(parent.OPTIM_WRAPPERS, 'engine.optim')
OPTIM_WRAPPER_CONSTRUCTORS = _child(parent.OPTIM_WRAPPER_CONSTRUCTORS, 'engine.optim')
PARAM_SCHEDULERS = _child(parent.PARAM_SCHEDULERS, 'engine.optim')
METRICS = _child(parent.METRICS, 'evaluation')
VISBACKENDS = _child(parent.VISBACKENDS, 'engine')
WEIGHT_INITIALIZERS = _child(parent.WEIGHT_INITIALIZERS, 'checkpoints')

# Nothing of ours is registered in these; without a child in the scope, mmengine warns on every look-up.
for _root in (
    parent.RUNNER_CONSTRUCTORS, parent.LOOPS, parent.STRATEGIES, parent.TASK_UTILS, parent.EVALUATOR, parent.VISUALIZERS,
    parent.LOG_PROCESSORS, parent.INFERENCERS, parent.FUNCTIONS,
):  # fmt: skip
    _child(_root)

BOXES = [root.children['mmairl'] for root in vars(parent).values() if isinstance(root, parent.Registry)]
