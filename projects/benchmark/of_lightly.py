"""BYOL from lightly's benchmarks/imagenet/resnet50/byol.py, on the same backbone as mmairl's and mmpretrain's BYOL."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mmairl.data.preprocess import IMAGENET, normalize
from mmairl.models.backbones import pooled

Step = Callable[[], dict[str, Tensor]]
MOMENTUM = 0.99


class LightlyBYOL(nn.Module):
    """The student of lightly's BYOL. `byol_step` copies it to create the teacher."""

    def __init__(self, backbone: nn.Module, features: int, hidden: int, out: int = 256) -> None:
        from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead

        super().__init__()
        self.backbone = backbone
        self.projection_head = BYOLProjectionHead(features, hidden, out)
        self.prediction_head = BYOLPredictionHead(out, hidden, out)

    def project(self, images: Tensor) -> Tensor:
        return self.projection_head(pooled(self.backbone(images)))


def with_changes(model: nn.Module, step: Callable[[], Tensor]) -> Step:
    """Return a function that takes a step and returns the loss and the changes of the first and the last layer."""
    first = model.backbone.conv1.weight
    last = list(model.backbone.parameters())[-1]
    layers = dict(first=first, last=last)

    def one() -> dict[str, Tensor]:
        before = {name: weight.detach().clone() for name, weight in layers.items()}
        loss = step()
        changes = {name: weight.detach() - before[name] for name, weight in layers.items()}
        return dict(loss=loss.detach(), **changes)

    return one


def byol_step(model: LightlyBYOL, batch: dict, settings: dict) -> Step:
    """Return a function that takes one step, as lightly's training loop does.

    The views are normalized in advance, because lightly's data workers normalize them.
    """
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.utils import get_weight_decay_parameters, update_momentum
    from lightly.utils.lars import LARS

    dtype = model.backbone.conv1.weight.dtype
    views = [normalize(view, **IMAGENET).to(dtype) for view in batch['inputs']]
    teacher = copy.deepcopy(model).requires_grad_(False)
    criterion = NegativeCosineSimilarity()
    decayed, others = get_weight_decay_parameters([model])
    groups = [dict(params=decayed), dict(params=others, weight_decay=0.0)]
    optimizer = LARS(groups, **settings)

    def one() -> Tensor:
        update_momentum(model.backbone, teacher.backbone, m=MOMENTUM)
        update_momentum(model.projection_head, teacher.projection_head, m=MOMENTUM)
        with torch.no_grad():
            keys = [teacher.project(view) for view in views]
        queries = [model.prediction_head(model.project(view)) for view in views]
        loss = sum(2 * criterion(key, query) for key, query in zip(keys, reversed(queries)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return with_changes(model, one)
