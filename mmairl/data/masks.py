"""Masks for models of mmpretrain that predict masked patches."""

from types import SimpleNamespace
from typing import Any

import torch

from mmairl.data.preprocess import ViewPreprocessor
from mmairl.registry import MODELS, TRANSFORMS


@MODELS.register_module()
class MaskedPreprocessor(ViewPreprocessor):
    """A ViewPreprocessor for models with one view and one mask per image, such as mmpretrain's SimMIM and MaskFeat.

    mmpretrain's own pipeline passes masks as NumPy arrays, which these models cannot stack. The masks depend on NumPy's random
    state, which checkpoints contain.

    Args:
        masks: Config of a transform of mmpretrain that generates a mask, such as
            ``dict(type='mmpretrain.SimMIMMaskGenerator', input_size=192)``.
        **settings: The arguments of ViewPreprocessor.
    """

    def __init__(self, masks: dict, **settings: Any) -> None:
        super().__init__(single_view=True, **settings)
        self.masks = TRANSFORMS.build(masks)

    def forward(self, data: dict, training: bool = False) -> dict:
        data = super().forward(data, training)
        masks = (self.masks.transform({})['mask'] for _ in data['inputs'])
        samples = [SimpleNamespace(mask=torch.as_tensor(mask).to(self.device)) for mask in masks]
        return dict(data, data_samples=samples)
