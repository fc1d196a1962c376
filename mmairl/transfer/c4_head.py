"""The head of a ResNet-C4 detector: the fifth stage of the pre-trained ResNet, followed by an additional norm layer."""

from mmcv.cnn import build_norm_layer
from mmdet.models.backbones import ResNet
from mmdet.models.roi_heads.shared_heads import ResLayer
from torch import Tensor

from mmairl.registry import MODELS


@MODELS.register_module()
class Res5Head(ResLayer):
    """Applies ResNet's `layer4` and a newly initialized batch norm (without ReLU) to every region, as in MoCo's detectors.

    The additional norm compensates for the scale of self-supervised weights, which differs from that of supervised weights.
    `layer4` has torchvision's layout, with the stride in the 3x3 convolution. All weights are trained, and the norms use
    batch statistics.

    Args:
        depth: Depth of the ResNet. Default: 50.
        norm_cfg: Config of the norm layers. Default: mmairl's SyncBN.
        init_cfg: Config that initializes `layer4`, such as
            ``dict(type='mmairl.PretrainedBackbone', checkpoint=CKPT, prefix='layer4.')``.
    """

    def __init__(
        self,
        depth: int = 50,
        norm_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        norm_cfg = norm_cfg or dict(type='mmairl.SyncBN')
        super().__init__(
            depth=depth,
            stage=3,
            stride=2,
            style='pytorch',
            norm_cfg=norm_cfg,
            norm_eval=False,
        )
        self.layer4.init_cfg = init_cfg
        block, _ = ResNet.arch_settings[depth]
        _, self.norm = build_norm_layer(norm_cfg, 512 * block.expansion)

    def forward(self, regions: Tensor) -> Tensor:
        return self.norm(super().forward(regions))
