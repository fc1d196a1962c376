"""The child registries of mmengine's, under the scope ``mmairl``.

Each names the modules that fill it; mmengine imports them on the first look-up, so that importing the
package does no work. Parts of mmpretrain, mmdet and mmseg stay reachable by prefix, as in
``dict(type='mmpretrain.ResNet')``.
"""

from mmengine import registry as parent


def _child(root: parent.Registry, *locations: str) -> parent.Registry:
    return parent.Registry(root.name, parent=root, scope='mmairl', locations=[f'mmairl.{at}' for at in locations])


MODELS = _child(parent.MODELS, 'models', 'data')
MODEL_WRAPPERS = _child(parent.MODEL_WRAPPERS, 'engine')
HOOKS = _child(parent.HOOKS, 'hooks')
DATASETS = _child(parent.DATASETS, 'data')
DATA_SAMPLERS = _child(parent.DATA_SAMPLERS, 'data')
TRANSFORMS = _child(parent.TRANSFORMS, 'data')
OPTIMIZERS = _child(parent.OPTIMIZERS, 'optim')
PARAM_SCHEDULERS = _child(parent.PARAM_SCHEDULERS, 'optim')
OPTIM_WRAPPERS = _child(parent.OPTIM_WRAPPERS, 'optim')
OPTIM_WRAPPER_CONSTRUCTORS = _child(parent.OPTIM_WRAPPER_CONSTRUCTORS, 'optim')
METRICS = _child(parent.METRICS, 'evaluation.metric')
WEIGHT_INITIALIZERS = _child(parent.WEIGHT_INITIALIZERS, 'weights.init', 'analysis.init')

# Nothing of ours is registered in these; without a child in the scope, mmengine warns on every look-up.
RUNNERS = _child(parent.RUNNERS)
RUNNER_CONSTRUCTORS = _child(parent.RUNNER_CONSTRUCTORS)
LOOPS = _child(parent.LOOPS)
STRATEGIES = _child(parent.STRATEGIES)
TASK_UTILS = _child(parent.TASK_UTILS)
EVALUATOR = _child(parent.EVALUATOR)
VISUALIZERS = _child(parent.VISUALIZERS)
VISBACKENDS = _child(parent.VISBACKENDS)
LOG_PROCESSORS = _child(parent.LOG_PROCESSORS)
INFERENCERS = _child(parent.INFERENCERS)
FUNCTIONS = _child(parent.FUNCTIONS)
