"""The registries of mmairl. Each has the scope ``mmairl`` and, except for PROTOCOLS, is a child of a registry of mmengine.

A registry imports its modules when the first class is looked up in it. To use a class of mmpretrain, mmdet or mmseg, write
the package as a prefix, as in ``dict(type='mmpretrain.ResNet')``.
"""

from pathlib import Path
from typing import Any

from mmengine import registry as parent

from mmairl.errors import UserError, building, closest

PACKAGE = Path(__file__).parent


class Registry(parent.Registry):
    """A registry whose errors about unknown classes and wrong arguments are single lines.

    Args:
        root: The registry of mmengine that this registry extends.
        *locations: The modules that register classes here, relative to ``mmairl``. A package stands for its modules.
    """

    def __init__(self, root: parent.Registry, *locations: str) -> None:
        modules = [module for location in locations for module in modules_at(location)]
        super().__init__(root.name, parent=root, scope='mmairl', locations=modules)

    def build(self, cfg: dict, *args: Any, **kwargs: Any) -> Any:
        kind = cfg.get('type')
        if isinstance(kind, str) and '_scope_' not in cfg and self.get(kind) is None:
            raise UserError(
                f"{self.name}: no class of this name is registered ('{kind}'){closest(kind, self.names())}; to use a class of "
                "your own, set custom_imports=dict(imports='MODULE') in the config",
                code='unknown-class',
            )
        with building(getattr(kind, '__name__', str(kind))):
            return super().build(cfg, *args, **kwargs)

    def names(self) -> list[str]:
        """Return the names of all classes that are registered here or in mmengine."""
        self.import_from_location()
        return list(dict.fromkeys([*self.module_dict, *self.parent.module_dict]))


def modules_at(location: str) -> list[str]:
    """Return the full name of a module, or the names of all modules directly in a package."""
    folder = PACKAGE.joinpath(*location.split('.'))
    if not folder.is_dir():
        return [f'mmairl.{location}']
    names = sorted(file.stem for file in folder.glob('*.py') if file.stem != '__init__')
    return [f'mmairl.{location}.{name}' for name in names]


MODELS = Registry(
    parent.MODELS,
    'models',
    'models.heads',
    'data.preprocess',
    'apis.given_network',
)
MODEL_WRAPPERS = Registry(parent.MODEL_WRAPPERS, 'engine.distributed')
LOOPS = Registry(parent.LOOPS, 'engine.knn_loop')
RUNNERS = Registry(parent.RUNNERS, 'engine.runner')
HOOKS = Registry(parent.HOOKS, 'engine.hooks')
DATASETS = Registry(
    parent.DATASETS,
    'data.datasets',
    'data.public',
    'evaluation.dense_images',
    'data.shapes',
    'data.shards',
    'data.splits',
    'evaluation.features',
)
DATA_SAMPLERS = Registry(parent.DATA_SAMPLERS, 'data.sampler')
TRANSFORMS = Registry(parent.TRANSFORMS, 'data.transforms')
OPTIMIZERS = Registry(parent.OPTIMIZERS, 'engine.optim')
OPTIM_WRAPPERS = Registry(parent.OPTIM_WRAPPERS, 'engine.optim', 'engine.deepspeed')
OPTIM_WRAPPER_CONSTRUCTORS = Registry(parent.OPTIM_WRAPPER_CONSTRUCTORS, 'engine.optim')
STRATEGIES = Registry(parent.STRATEGIES, 'engine.zero', 'engine.deepspeed')
PARAM_SCHEDULERS = Registry(parent.PARAM_SCHEDULERS, 'engine.optim')
METRICS = Registry(parent.METRICS, 'evaluation.metrics')
VISBACKENDS = Registry(parent.VISBACKENDS, 'engine.logging')
WEIGHT_INITIALIZERS = Registry(
    parent.WEIGHT_INITIALIZERS, 'checkpoints.init', 'checkpoints.normrescale'
)
# Evaluation protocols, which score a model. mmengine has no registry for protocols, so the parent is new.
PROTOCOLS = Registry(parent.Registry('evaluation protocol', scope='mmengine'), 'evaluation')
# mmengine warns at every look-up in a registry that has no child with the scope in use. mmairl registers no class in the
# following registries, so it only adds empty children to prevent these warnings.
for _root in (
    parent.RUNNER_CONSTRUCTORS,
    parent.TASK_UTILS,
    parent.EVALUATOR,
    parent.VISUALIZERS,
    parent.LOG_PROCESSORS,
    parent.INFERENCERS,
    parent.FUNCTIONS,
):
    Registry(_root)
