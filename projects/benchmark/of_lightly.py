"""BYOL from lightly's benchmarks/imagenet/resnet50/byol.py, on the same backbone as mmairl's and mmpretrain's BYOL."""

import copy
import importlib.util
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from mmairl.data.preprocess import normalize
from mmairl.models.backbones import pooled


def installed(what: str) -> bool:
    """Return whether lightly is installed. If not, print that the comparison with lightly's `what` is left out."""
    is_installed = importlib.util.find_spec('lightly') is not None
    if not is_installed:
        print(f"lightly's {what} is left out; `pip install --no-deps lightly` adds it")
    return is_installed


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


def byol_step(
    model: LightlyBYOL,
    batch: dict,
    statistics: tuple,
    settings: dict,
    channels_last: bool = False,
    amp: bool = False,
    momentum: float = 0.99,
    rates: Iterator[float] | None = None,
) -> Callable[[], dict[str, Tensor]]:
    """Return a function that takes one step, as lightly's training loop does.

    The views are normalized in advance, because lightly's data workers normalize them. If `rates` is given, each step uses its
    next learning rate.
    """
    from lightly.loss import NegativeCosineSimilarity
    from lightly.models.utils import get_weight_decay_parameters, update_momentum
    from lightly.utils.lars import LARS

    first = model.backbone.conv1.weight
    mean, std = (torch.tensor(values).view(3, 1, 1).to(first) for values in statistics)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    views = [
        normalize(view, mean, std).to(first.dtype).contiguous(memory_format=layout)
        for view in batch['inputs']
    ]
    model.to(memory_format=layout)
    teacher, criterion = copy.deepcopy(model), NegativeCosineSimilarity()
    teacher.requires_grad_(False)
    decay_weights, other_weights = get_weight_decay_parameters([model])
    optimizer = LARS(
        [dict(params=decay_weights), dict(params=other_weights, weight_decay=0.0)], **settings
    )
    weights = dict(first=first, last=list(model.backbone.parameters())[-1])

    def one() -> dict[str, Tensor]:
        previous = {name: weight.detach().clone() for name, weight in weights.items()}
        rate = next(rates) if rates else settings['lr']
        for part in ('backbone', 'projection_head'):
            update_momentum(getattr(model, part), getattr(teacher, part), m=momentum)
        with torch.autocast(first.device.type, torch.bfloat16, enabled=amp):
            with torch.no_grad():
                keys = [teacher.project(view) for view in views]
            queries = [model.prediction_head(model.project(view)) for view in views]
            loss = sum(2 * criterion(key, query) for key, query in zip(keys, reversed(queries)))
        for group in optimizer.param_groups:
            group['lr'] = rate
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        changes = {name: weight.detach() - previous[name] for name, weight in weights.items()}
        return dict(loss=loss.detach(), **changes)

    return one
