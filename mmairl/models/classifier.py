"""The supervised baseline in the same runner: the backbone, one linear layer, cross entropy."""

import torch.nn.functional as F
from mmengine.model import BaseModel
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.siamese import pooled
from mmairl.registry import MODELS


@MODELS.register_module()
class Classifier(BaseModel):
    """Supervised pre-training; the backbone is `backbone.`, as the student's is, and there is no teacher and no queue."""

    teacher = queue = None

    def __init__(
        self,
        backbone: dict,
        in_channels: int,
        classes: int,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor=data_preprocessor, init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone)
        self.fc = nn.Linear(in_channels, classes)

    def forward(self, inputs: list[Tensor] | Tensor, data_samples: dict | None = None, mode: str = 'tensor'):
        features = pooled(self.backbone(inputs if isinstance(inputs, Tensor) else inputs[0]))
        if mode == 'tensor':
            return features
        if mode != 'loss':
            raise UserError(f"mode '{mode}' is not one of Classifier's; say loss or tensor")
        if data_samples is None:
            raise UserError('supervised training wants labels and the data give none; use a data set with classes')
        scores, labels = self.fc(features).float(), data_samples['label']
        accuracy = (scores.argmax(dim=1) == labels).float().mean()
        return dict(loss=F.cross_entropy(scores, labels), accuracy=accuracy)
