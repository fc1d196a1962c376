"""The MLP that serves as projector and as predictor."""

from mmcv.cnn import build_activation_layer, build_norm_layer
from mmengine.model import BaseModule
from torch import Tensor, nn

from mmairl.registry import MODELS


@MODELS.register_module()
class MLPNeck(BaseModule):
    """An MLP: linear layers with an optional norm and an activation between them.

    Without hidden channels, it is a single linear layer, as in MoCo v1.

    Args:
        in_channels: Width of the input.
        hidden_channels: Width of the hidden layers, or None for a single linear layer.
        out_channels: Width of the output.
        norm_cfg: Config of the norm after each hidden layer. Default: no norm.
        layers: Number of linear layers, including the last one.
        last_norm: Config of the norm after the last layer, such as `dict(type='SyncBN', affine=False)`. Default: no norm.
        last_bias: Whether the last layer has a bias.
        act_cfg: Config of the activation, such as `dict(type='GELU')`. Default: ReLU.

    Example:
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
        layers: int = 2,
        last_norm: dict | None = None,
        last_bias: bool = True,
        act_cfg: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        self.out_channels = out_channels
        parts: list[nn.Module] = []
        for _ in range(layers - 1 if hidden_channels else 0):
            parts.append(nn.Linear(in_channels, hidden_channels))
            if norm_cfg is not None:
                parts.append(build_norm_layer(norm_cfg, hidden_channels)[1])
            parts.append(build_activation_layer(act_cfg or dict(type='ReLU', inplace=True)))
            in_channels = hidden_channels
        parts.append(nn.Linear(in_channels, out_channels, bias=last_bias))
        if last_norm is not None:
            parts.append(build_norm_layer(last_norm, out_channels)[1])
        self.mlp = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x)
