"""The registries of mmairl. Each has the scope ``mmairl`` and, except for PROTOCOLS, is a child of a registry of mmengine.

A registry has a table of modules and of the classes that each module registers. Looking up a class imports only the module of
that class, so a run imports only the modules that its config requires. To use a class of mmpretrain, mmdet or mmseg, write the
package as a prefix, as in ``dict(type='mmpretrain.ResNet')``.
"""

from importlib import import_module  # noqa: TID251  modules of this package, by the fixed names below
from typing import Any

from mmengine import registry as parent

from mmairl.errors import UserError, building, closest

# Classes in projects/, and the module that a config must import to use each class.
PROJECTS = {'Tiles': 'projects.imaging'}
OWN_CLASS = "to use a class of your own, set custom_imports=dict(imports='MODULE') in the config"


class Registry(parent.Registry):
    """A registry that imports the module of a class when the class is first looked up.

    Args:
        root: The registry of mmengine that this one extends.
        modules: The names that each module registers. The path of a module is relative to ``mmairl``.
    """

    def __init__(self, root: parent.Registry, modules: dict[str, list[str]] | None = None) -> None:
        super().__init__(root.name, parent=root, scope='mmairl')
        self.module_of = {
            name: f'mmairl.{module}' for module, names in (modules or {}).items() for name in names
        }

    def get(self, key: str) -> type | None:
        name = key.removeprefix(f'{self.scope}.')
        self.load(name)
        kind = super().get(key)
        if kind is None and name in PROJECTS:
            raise UserError(
                f"{self.name}: no class of this name is registered ('{name}'); set "
                f"custom_imports=dict(imports='{PROJECTS[name]}') in the config, and run the command in a checkout of mmairl",
                code='class-of-project',
            )
        return kind

    def build(self, cfg: dict, *args: Any, **kwargs: Any) -> Any:
        kind = cfg.get('type', 'a part')
        if isinstance(kind, str) and '.' not in kind and '_scope_' not in cfg and 'type' in cfg:
            self.require(kind)
        with building(kind if isinstance(kind, str) else getattr(kind, '__name__', str(kind))):
            return super().build(cfg, *args, **kwargs)

    def require(self, name: str) -> None:
        """Raise unless a class of this name is registered."""
        if self.get(name) is None:
            raise UserError(
                f"{self.name}: no class of this name is registered ('{name}'){closest(name, self.names())}; {OWN_CLASS}",
                code='unknown-class',
            )

    def load(self, name: str) -> None:
        """Import the module that registers `name`, if this registry lists it."""
        if name in self.module_of and name not in self._module_dict:
            import_module(self.module_of[name])

    def names(self) -> list[str]:
        """Return all known names: those in the table of modules, and those registered here or in mmengine so far."""
        return list(dict.fromkeys([*self.module_of, *self.module_dict, *self.parent.module_dict]))

    def peek(self, name: str) -> type | None:
        """Return the class of this name, or None if it is unknown. Never import another package to find it."""
        scope, _, inner = name.rpartition('.')
        if scope not in ('', self.scope):
            is_parent = scope == self.parent.scope
            other = self.parent if is_parent else self.parent.children.get(scope)
            return other and other.module_dict.get(inner)
        if inner in self.module_dict or inner in self.module_of:
            return self.get(inner)
        return self.parent.module_dict.get(inner)


MODELS = Registry(
    parent.MODELS,
    {
        'apis.given_network': ['GivenNetwork'],
        'data.preprocess': ['ViewPreprocessor'],
        'models.backbones': [
            'ResNet',
            'SoloLearnResNet',
            'VisionTransformer',
            'RotaryVisionTransformer',
        ],
        'models.classifier': ['Pixels', 'Classifier'],
        'models.heads.barlow': ['BarlowTwinsHead'],
        'models.heads.contrastive': ['ContrastiveHead', 'InfoNCEHead'],
        'models.heads.dino': ['PrototypeNeck', 'DINOHead'],
        'models.heads.lejepa': ['LeJEPAHead'],
        'models.heads.mocov3': ['BatchContrastiveHead'],
        'models.heads.regression': ['RegressionHead', 'BYOLHead', 'OptimalLinearHead'],
        'models.heads.swav': ['SwAVHead'],
        'models.heads.vicreg': ['VICRegHead'],
        'models.necks': ['MLPNeck', 'Projector', 'Predictor'],
        'models.norm': ['SplitBN', 'SyncBN'],
        'models.queue': ['KeyQueue'],
        'models.siamese': ['Siamese'],
        'transfer.c4_head': ['Res5Head'],
        'transfer.depth': ['UpProjectionHead'],
    },
)
MODEL_WRAPPERS = Registry(
    parent.MODEL_WRAPPERS,
    {
        'engine.distributed': ['DistributedModel'],
    },
)
RUNNERS = Registry(
    parent.RUNNERS,
    {
        'engine.run': ['PreparedRunner'],
    },
)
HOOKS = Registry(
    parent.HOOKS,
    {
        'engine.hooks.after_step': ['MomentumHook', 'QueueHook'],
        'engine.hooks.bad_data': ['NonFiniteHook', 'UnreadableHook'],
        'engine.hooks.monitor': ['HealthHook'],
        'engine.hooks.precise_bn': ['EpochBatchNormHook', 'PreciseBNHook'],
        'engine.hooks.preemption': ['PreemptionHook'],
        'engine.hooks.preflight': ['PreflightHook'],
        'engine.hooks.progress': ['AsyncRuntimeInfoHook', 'ProgressHook'],
        'engine.hooks.saving': ['ExactCheckpointHook'],
        'engine.hooks.schedules': ['ScheduleHook'],
        'evaluation.online': ['OnlineKNNHook', 'OnlineProbeHook'],
        'study.record_start': ['RecordStart'],
    },
)
DATASETS = Registry(
    parent.DATASETS,
    {
        'data.datasets': ['ImageFolder', 'UnlabelledFolder'],
        'data.public': [
            'Food101',
            'StanfordCars',
            'FGVCAircraft',
            'DTD',
            'OxfordIIITPet',
            'Flowers102',
            'SUN397',
            'Birdsnap',
            'Caltech101',
            'Places205',
            'INaturalist2018',
            'VOC2007',
            'Landmarks',
            'CIFAR10',
            'CIFAR100',
            'STL10',
        ],
        'data.dense': ['MMSegImages', 'Scenes'],
        'data.shapes': ['Shapes', 'Digits'],
        'data.shards.dataset': ['Shards'],
        'data.subsets': [
            'Part',
            'LongTailed',
            'ClassSubset',
            'NamedClasses',
            'ListedSubset',
            'Relabelled',
            'ReaL',
        ],
        'evaluation.features': ['Readable'],
    },
)
DATA_SAMPLERS = Registry(
    parent.DATA_SAMPLERS,
    {
        'data.sampler': ['ResumableSampler'],
    },
)
TRANSFORMS = Registry(
    parent.TRANSFORMS,
    {
        'data.foreign_transforms': ['ForeignTransform'],
        'data.transforms': [
            'RandomResizedCrop',
            'RandomFlip',
            'RandomTurn',
            'Resize',
            'CenterCrop',
            'ColorJitter',
            'ReleaseColorJitter',
            'RandomGrayscale',
            'StainJitter',
            'Solarize',
            'GaussianBlur',
        ],
        'transfer.depth': ['NYUAugmentation'],
    },
)
OPTIMIZERS = Registry(
    parent.OPTIMIZERS,
    {
        'engine.optim.head_sgd': ['HeadSGD'],
        'engine.optim.lars': ['LARS'],
        'engine.optim.muon': ['Muon'],
    },
)
OPTIM_WRAPPERS = Registry(
    parent.OPTIM_WRAPPERS,
    {
        'engine.optim.autocast': ['AutocastOptimWrapper', 'LARSOptimWrapper'],
        'engine.sharding.deepspeed': ['DeepSpeedOptimWrapper'],
    },
)
STRATEGIES = Registry(
    parent.STRATEGIES,
    {
        'engine.sharding.zero': ['ZeroStrategy'],
        'engine.sharding.deepspeed': ['DeepSpeedStrategy'],
    },
)
OPTIM_WRAPPER_CONSTRUCTORS = Registry(parent.OPTIM_WRAPPER_CONSTRUCTORS)
PARAM_SCHEDULERS = Registry(
    parent.PARAM_SCHEDULERS,
    {
        'engine.optim.warmup': ['WarmUpLR'],
    },
)
METRICS = Registry(
    parent.METRICS,
    {
        'evaluation.metrics': ['HeadAccuracy'],
        'transfer.voc_metric': ['VOCDetectionMetric'],
    },
)
VISBACKENDS = Registry(
    parent.VISBACKENDS,
    {
        'engine.logging': ['WandbLogger', 'MLflowLogger'],
    },
)
WEIGHT_INITIALIZERS = Registry(
    parent.WEIGHT_INITIALIZERS,
    {
        'checkpoints.init': ['PretrainedBackbone'],
        'checkpoints.normrescale': ['NormRescaled'],
    },
)
# Evaluation protocols, which score a model. mmengine has no registry for protocols, so the parent is new.
PROTOCOLS = Registry(
    parent.Registry('evaluation protocol', scope='mmengine'),
    {
        'evaluation.knn': ['knn'],
        'evaluation.logreg': ['logreg'],
        'evaluation.svm': ['svm'],
        'evaluation.linear': ['linear'],
        'evaluation.finetune': ['finetune'],
        'evaluation.segment': ['segment'],
        'evaluation.depth_probe': ['depth_probe'],
        'evaluation.retrieval': ['retrieval'],
        'evaluation.uniformity': ['uniformity'],
        'evaluation.weight_norms': ['norms'],
    },
)
# mmengine warns at every look-up in a registry that has no child with the scope in use. mmairl registers no class in the
# following registries, so it only adds empty children to prevent these warnings.
for _root in (
    parent.RUNNER_CONSTRUCTORS,
    parent.LOOPS,
    parent.TASK_UTILS,
    parent.EVALUATOR,
    parent.VISUALIZERS,
    parent.LOG_PROCESSORS,
    parent.INFERENCERS,
    parent.FUNCTIONS,
):
    Registry(_root)

BOXES = [
    root.children['mmairl'] for root in vars(parent).values() if isinstance(root, parent.Registry)
]


def class_of(package: str, name: str) -> Any:
    """Return a registered class of a package, and import the module of the class.

    Packages call this function in `__getattr__`, so `from PACKAGE import CLASS` does not require imports in the package.
    """
    for registry in BOXES:
        module = registry.module_of.get(name, '')
        if module.startswith(f'{package}.'):
            return getattr(import_module(module), name)
    raise AttributeError(f'module {package!r} has no attribute {name!r}')
