"""mmpretrain's ResNet with the one depth of BYOL's table that it lacks."""

from mmpretrain.models.backbones.resnet import Bottleneck
from mmpretrain.models.backbones.resnet import ResNet as ResNetOfMMPretrain

from mmairl.registry import MODELS


@MODELS.register_module()
class ResNet(ResNetOfMMPretrain):
    """ResNet-18 to -152 as in mmpretrain, and ResNet-200."""

    arch_settings = {**ResNetOfMMPretrain.arch_settings, 200: (Bottleneck, (3, 24, 36, 3))}
