"""The model of supervised training, fine-tuning and linear evaluation: a backbone with linear classifiers."""

from typing import Literal

import torch
import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import features
from mmairl.models.layers import layer_outputs, pooled_layers
from mmairl.registry import MODELS


@MODELS.register_module()
class Pixels(nn.Module):
    """A baseline without parameters: its features are the pixels of the image."""

    def forward(self, images: Tensor) -> Tensor:
        return images.flatten(1)


@MODELS.register_module()
class Classifier(BaseModel):
    """A backbone with linear classifiers, for supervised training, fine-tuning and linear evaluation.

    Args:
        backbone: Config of the backbone. In checkpoints, the names of its weights begin with `backbone.`.
        in_channels: Width of the pooled features.
        classes: Number of classes.
        heads: Number of classifiers. They are stacked in one layer and trained on the same features. The optimizer
            `HeadSGD` gives each classifier its own learning rate.
        frozen: Whether the backbone stays in evaluation mode and is not trained.
        layers: How many of the last layers of a ViT to use. Default: use the output of the backbone.
        pooling: Features to use if `layers` is set: 'cls' (the class tokens of the layers), 'mean' (the mean patch feature of
            the last layer) or 'both'.

    Raises:
        UserError: If the data have no labels.
    """

    def __init__(
        self,
        backbone: dict,
        in_channels: int,
        classes: int,
        heads: int = 1,
        frozen: bool = False,
        layers: int | None = None,
        pooling: Literal['cls', 'mean', 'both'] = 'cls',
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone).requires_grad_(not frozen)
        self.heads = heads
        self.frozen = frozen
        self.layers = layers
        self.pooling = pooling
        if layers is not None:
            in_channels *= layers * (pooling != 'mean') + (pooling != 'cls')
        # All heads start from the same weights.
        start = torch.empty(classes, in_channels).normal_(std=0.01)
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
            pooled = self.pool(inputs if isinstance(inputs, Tensor) else inputs[0])
        if mode == 'tensor':
            return pooled
        if data_samples is None:
            raise UserError(
                'Classifier: requires labels; use a data set with classes', code='no-labels'
            )
        scores = self.fc(pooled).float().unflatten(1, (self.heads, -1))
        labels = data_samples['label']
        if mode == 'predict':
            return [dict(scores=scores, label=labels)]
        if self.heads > 1:
            # The loss of a head that diverges stays finite, so that the other heads go on.
            scores = scores.clamp(-1e30, 1e30)
        return self.loss(scores, labels)

    def pool(self, images: Tensor) -> Tensor:
        if self.layers is None:
            return features(self.backbone, images).pooled
        last = range(-self.layers, 0)
        return pooled_layers(layer_outputs(self.backbone, images, last), self.pooling)

    def loss(self, scores: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the sum of the heads' losses, so that each head learns as if it were the only one.

        Labels of shape (images, classes) state for each class whether it is in the image. Entries of -1 are ignored.
        """
        if labels.ndim == 2:
            each_head = labels[:, None].expand_as(scores)
            targets = each_head.float().clamp(min=0)
            losses = F.binary_cross_entropy_with_logits(scores, targets, reduction='none')
            known = losses * (each_head >= 0)
            return dict(loss=known.sum() / labels.numel())
        targets = labels[:, None].expand(-1, self.heads)
        loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten()) * self.heads
        right = scores.argmax(dim=2) == targets
        return dict(loss=loss, accuracy=right.float().mean())
