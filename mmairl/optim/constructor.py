"""How a model's parameters are put into LARS's two groups, and the constructor that does it for a config."""

from mmengine.optim import DefaultOptimWrapperConstructor, OptimWrapper
from torch import nn

from mmairl.errors import UserError
from mmairl.optim.lars import LARS
from mmairl.registry import OPTIM_WRAPPER_CONSTRUCTORS, OPTIM_WRAPPERS, OPTIMIZERS

# _NormBase is the base of every batch norm, SyncBN among them, and of every instance norm.
NORM_LAYERS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def adapted_and_excluded(model: nn.Module) -> list[dict]:
    """The trained parameters in two groups: weights, and what LARS leaves to plain momentum without decay.

    Excluded is what belongs to a normalisation layer, by the layer's type, and what has at most one axis: every
    bias, and a gain such as LayerScale's. All else is a weight; a ViT's class token and position embedding, which
    have more axes, count as weights, as in MoCo v3. Frozen parameters (the teacher's) are in neither group.
    """
    excluded = {}
    for module in model.modules():
        for param in module.parameters(recurse=False):
            if param.requires_grad:
                excluded[param] = isinstance(module, NORM_LAYERS) or param.ndim <= 1
    return [
        {'params': [param for param, out in excluded.items() if not out], 'adapt': True},
        {'params': [param for param, out in excluded.items() if out], 'adapt': False},
    ]


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LARSOptimWrapperConstructor(DefaultOptimWrapperConstructor):
    """mmengine's constructor, which gives LARS its two groups and leaves every other optimizer as it is.

    Our base schedules name it for every optimizer, so that a config need only say LARS. Without it the normalisation
    layers would be adapted and decayed, which the wrapper refuses.
    """

    def __call__(self, model: nn.Module) -> OptimWrapper:
        """The optimizer over the model's parameters, in its wrapper."""
        self.optim_wrapper_cfg.setdefault('type', 'AutocastOptimWrapper')
        if not self._optimizer_is_lars():
            return super().__call__(model)
        if self.paramwise_cfg:
            raise UserError('LARS groups parameters by the type of their module; remove paramwise_cfg from the config.')
        groups = adapted_and_excluded(model)
        optimizer = OPTIMIZERS.build(self.optimizer_cfg, default_args={'params': groups})
        return OPTIM_WRAPPERS.build(self.optim_wrapper_cfg, default_args={'optimizer': optimizer})

    def _optimizer_is_lars(self) -> bool:
        """Whether the config names our LARS, which other packages also call so, in the scope it is read in."""
        kind = self.optimizer_cfg['type']
        if isinstance(kind, str):
            with OPTIMIZERS.switch_scope_and_registry(None) as registry:
                kind = registry.get(kind)
            if kind is None:
                raise UserError(
                    f"the config names the optimizer '{self.optimizer_cfg['type']}', which is not a registered one; "
                    'check optim_wrapper.optimizer.type'
                )
        return kind is LARS
