"""timm's ViT that turns queries and keys by their places, as DINOv3 does; mmpretrain's has a table of positions alone."""

from functools import partial

from mmengine.model import BaseModule
from torch import Tensor

from mmairl.errors import UserError
from mmairl.registry import MODELS


@MODELS.register_module()
class RotaryVisionTransformer(BaseModule):
    """DINOv3's ViT: the class token of its last layer, or with out_type='featmap' a map of its patches.

    What is left of an image beyond whole patches is cut off.
    """

    def __init__(
        self,
        embed_dims: int,
        num_layers: int,
        num_heads: int,
        feedforward_channels: int,
        registers: int = 4,
        patch_size: int = 16,
        in_channels: int = 3,
        qkv_bias: bool = False,
        gated: bool = False,
        out_type: str = 'cls_token',
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(init_cfg)
        try:
            from timm.layers import LayerNorm
            from timm.models.eva import Eva
        except ImportError as error:
            raise UserError('the package timm has the network of DINOv3; pip install timm') from error
        self.out_type, self.patch = out_type, patch_size
        self.vit = Eva(
            img_size=14 * patch_size,
            dynamic_img_size=True,
            patch_size=patch_size,
            in_chans=in_channels,
            num_classes=0,
            global_pool='token',
            embed_dim=embed_dims,
            depth=num_layers,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            mlp_ratio=feedforward_channels / embed_dims,
            swiglu_mlp=gated,
            swiglu_align_to=8 if gated else 0,  # which keeps the gate a layer of its own
            norm_layer=partial(LayerNorm, eps=1e-5),
            init_values=1e-5,
            use_abs_pos_emb=False,
            use_rot_pos_emb=True,
            rope_type='dinov3',
            rope_temperature=100,
            rope_rotate_half=True,
            num_reg_tokens=registers,
            use_fc_norm=False,
        )

    def forward(self, images: Tensor) -> tuple[Tensor]:
        high, wide = (side // self.patch for side in images.shape[2:])
        tokens = self.vit.forward_features(images[:, :, : high * self.patch, : wide * self.patch])
        if self.out_type == 'cls_token':
            return (tokens[:, 0],)
        return (tokens[:, -high * wide :].transpose(1, 2).unflatten(2, (high, wide)),)
