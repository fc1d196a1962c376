"""A backbone with linear classifiers on top: supervised training, fine-tuning, and linear evaluation when it is frozen."""

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import pooled
from mmairl.registry import MODELS


@MODELS.register_module()
class Pixels(nn.Module):
    """The baseline without a network: an image's pixels are its features."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@MODELS.register_module()
class Classifier(BaseModel):
    """The backbone is `backbone.`, as the student's is. With `frozen` it computes features in eval mode and never learns.

    `heads` classifiers, stacked in one layer, learn side by side from the same features; HeadSGD gives each its own rate.
    """

    def __init__(
        self,
        backbone: dict,
        in_channels: int,
        classes: int,
        heads: int = 1,
        frozen: bool = False,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone).requires_grad_(not frozen)
        self.heads, self.frozen = heads, frozen
        start = torch.empty(classes, in_channels).normal_(
            std=0.01
        )  # every head starts from the same
        self.fc = nn.Linear(in_channels, heads * classes)
        self.fc.weight.data.copy_(start.repeat(heads, 1))
        self.fc.bias.data.zero_()

    def train(self, mode: bool = True) -> 'Classifier':
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(
        self, inputs: list[Tensor] | Tensor, data_samples: dict | None = None, mode: str = 'tensor'
    ):
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features = pooled(self.backbone(inputs if isinstance(inputs, Tensor) else inputs[0]))
        if mode == 'tensor':
            return features
        if data_samples is None:
            raise UserError(
                'supervised training wants labels and the data give none; use a data set with classes'
            )
        scores, labels = (
            self.fc(features).float().unflatten(1, (self.heads, -1)),
            data_samples['label'],
        )
        if mode == 'predict':
            return [dict(scores=scores, label=labels)]
        return self.loss(scores, labels)

    def loss(self, scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The sum over the heads, so that each learns as it would alone; a multi-label entry of -1 is not counted."""
        if labels.ndim == 2:
            wanted, counted = (
                labels[:, None].expand_as(scores).float(),
                (labels >= 0)[:, None].expand_as(scores),
            )
            each = F.binary_cross_entropy_with_logits(scores, wanted.clamp(min=0), reduction='none')
            return dict(loss=(each * counted).sum() / labels.numel())
        wanted = labels[:, None].expand(-1, self.heads)
        loss = F.cross_entropy(scores.flatten(0, 1), wanted.flatten()) * self.heads
        return dict(loss=loss, accuracy=(scores.argmax(dim=2) == wanted).float().mean())
