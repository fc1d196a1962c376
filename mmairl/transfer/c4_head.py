"""The fifth stage of a ResNet-C4 detector, which is pre-trained like the rest of the backbone and has an extra norm."""

from mmcv.cnn import build_norm_layer
from mmdet.models.backbones import ResNet
from mmdet.models.roi_heads.shared_heads import ResLayer
from torch import Tensor

from mmairl.registry import MODELS


@MODELS.register_module()
class Res5Head(ResLayer):
    """ResNet's `layer4` on every region, followed by a newly initialized batch norm without ReLU, as in MoCo's detectors.

    The extra norm compensates for the scale of self-supervised weights, which differs from that of supervised ones. The layer
    has torchvision's layout (stride in the 3x3 convolution). All its weights are trained, and its norms use batch statistics.

    Args:
        depth: Depth of the ResNet. Default: 50.
        norm_cfg: Config of the norms. Default: mmairl's SyncBN.
        init_cfg: Initialization of `layer4`, such as
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
