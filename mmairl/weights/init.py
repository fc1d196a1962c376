"""A backbone's start from a checkpoint of any project, all of it or nothing: init_cfg=dict(type='PretrainedBackbone', ...)."""

import logging

from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.registry import WEIGHT_INITIALIZERS
from mmairl.weights.norms import warning_before_fine_tuning
from mmairl.weights.read import read_backbone, weights_for


@WEIGHT_INITIALIZERS.register_module()
class PretrainedBackbone:
    """Where mmengine's `Pretrained` loads whatever happens to match, this loads every weight or refuses.

    `prefix` is for a module that is a single stage, such as 'layer4.' for the head of a C4 detector.
    """

    def __init__(self, checkpoint: str, part: str = 'student', prefix: str = '') -> None:
        self.checkpoint, self.part, self.prefix = checkpoint, part, prefix

    def weights(self) -> tuple[dict[str, Tensor], str]:
        """The backbone's weights, and a few words on what they are."""
        found = read_backbone(self.checkpoint, self.part)
        return found.weights, str(found)

    def __call__(self, module: nn.Module) -> None:
        whole, origin = self.weights()
        weights = weights_for(module, whole, self.prefix, self.checkpoint)
        module.load_state_dict(weights)
        if hasattr(module, 'zero_init_residual'):
            # mmpretrain's ResNet would zero the last norms after any other initializer
            module.zero_init_residual = False
        print_log(f'{self.prefix or "backbone"}: {origin}, all {len(weights)} keys matched', logger='current')
        will_learn = any(parameter.requires_grad for parameter in module.parameters())
        if will_learn and (warning := warning_before_fine_tuning(weights, origin)):
            print_log(warning, logger='current', level=logging.WARNING)
