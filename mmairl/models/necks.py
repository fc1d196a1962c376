"""Projector and predictor: the same small MLP under two names."""

from mmcv.cnn import build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmairl.registry import MODELS


@MODELS.register_module()
class MLPNeck(BaseModule):
    """Linear - [norm] - ReLU - Linear; without hidden channels a single Linear (MoCo v1's projector).

    >>> import torch
    >>> MLPNeck(512, 4096, 256, norm_cfg=dict(type='BN1d'))(torch.zeros(4, 512)).shape
    torch.Size([4, 256])
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int | None,
        out_channels: int,
        norm_cfg: dict | None = None,
        last_bias: bool = True,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.in_channels, self.out_channels = in_channels, out_channels
        layers: list[nn.Module] = []
        if hidden_channels is not None:
            layers.append(nn.Linear(in_channels, hidden_channels))
            if norm_cfg is not None:
                layers.append(build_norm_layer(norm_cfg, hidden_channels)[1])
            layers.append(nn.ReLU(inplace=True))
        layers.append(nn.Linear(hidden_channels or in_channels, out_channels, bias=last_bias))
        self.mlp = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)
