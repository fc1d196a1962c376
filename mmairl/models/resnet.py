"""mmpretrain's ResNet with the one depth of BYOL's table that it lacks, and with solo-learn's stem for small images."""

from mmpretrain.models.backbones.resnet import Bottleneck
from mmpretrain.models.backbones.resnet import ResNet as ResNetOfMMPretrain
from mmpretrain.models.backbones.resnet_cifar import ResNet_CIFAR

from mmairl.registry import MODELS


@MODELS.register_module()
class ResNet(ResNetOfMMPretrain):
    """ResNet-18 to -152 as in mmpretrain, and ResNet-200."""

    arch_settings = {**ResNetOfMMPretrain.arch_settings, 200: (Bottleneck, (3, 24, 36, 3))}


@MODELS.register_module()
class SoloLearnResNet(ResNet_CIFAR):
    """mmpretrain's ResNet for small images, whose 3x3 stem pads 2 pixels instead of 1, as solo-learn's does."""

    def _make_stem_layer(self, in_channels: int, base_channels: int) -> None:
        super()._make_stem_layer(in_channels, base_channels)
        self.conv1.padding = (2, 2)
