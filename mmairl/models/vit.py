"""mmpretrain's ViT with the register tokens of DINOv2."""

from typing import Any

import torch
from mmpretrain.models.backbones.vision_transformer import VisionTransformer as VisionTransformerOfMMPretrain
from torch import nn

from mmairl.registry import MODELS


@MODELS.register_module()
class VisionTransformer(VisionTransformerOfMMPretrain):
    """A ViT as in mmpretrain; `registers` more tokens stand behind the class token, in one parameter with it."""

    def __init__(self, *, registers: int = 0, **how: Any) -> None:
        self.num_extra_tokens = 1 + registers
        super().__init__(**how)
        self.cls_token = nn.Parameter(torch.zeros(1, 1 + registers, self.embed_dims))
