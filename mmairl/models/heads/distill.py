"""Distillation: the student predicts the features of a frozen network for the same view."""

import torch
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.backbones import features
from mmairl.models.heads.base import ByView, Head, unit
from mmairl.registry import MODELS


@MODELS.register_module()
class FrozenTeacher(nn.Module):
    """A network that stays in evaluation mode and never learns.

    Its weights are in neither the optimizer nor the checkpoints of the student. It receives the student's images, with the
    student's mean and standard deviation.

    Args:
        backbone: Config of any backbone with weights, such as ``dict(type='TimmBackbone', pretrained=True,
            name='vit_small_patch14_dinov2.lvd142m')``, or a backbone of a checkpoint, which its key ``init_cfg`` loads:
            ``dict(type='PretrainedBackbone', checkpoint=FILE)``.
    """

    def __init__(self, backbone: dict) -> None:
        super().__init__()
        network = MODELS.build(backbone).requires_grad_(False)
        network.eval()
        # In a tuple, the network is not a submodule.
        self.hidden = (network,)

    def init_weights(self) -> None:
        """Load the weights that the config of the backbone names."""
        self.hidden[0].init_weights()

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        return features(self.hidden[0].to(images.device), images).pooled

    def follow(self, student: nn.Module, momentum: float) -> None:
        """Do nothing. `MomentumHook` calls this method of every teacher."""


@MODELS.register_module()
class DistillationHead(Head):
    """Distance between the student's projection and the frozen teacher's feature of the same view.

    Without a queue, the loss is ``1 - cos(q, k)``, which is half the squared distance of the unit vectors. With a queue of the
    teacher's features, it is the cross entropy between the softmax of their similarities to ``k`` and to ``q``.

    Args:
        temperature: Softmax temperature of the similarities to the queue.

    Returns (forward):
        ``loss``; ``similarity``: mean cosine of a projection and its target.

    Raises:
        UserError: If projections and targets differ in width.
    """

    page_metrics = ('similarity',)
    queue_role = 'support'

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.temperature = temperature

    def forward(self, q: ByView, k: ByView, negatives: Tensor | None) -> dict[str, Tensor]:
        q = torch.cat([unit(q[view]) for view in k])
        k = torch.cat([unit(target) for target in k.values()])
        if q.shape != k.shape:
            raise UserError(
                f"DistillationHead: the projections have {q.shape[1]} dimensions, but the teacher has '{k.shape[1]}'; set "
                f'model.projector.out_channels={k.shape[1]}',
                code='head-width',
            )
        similarity = (q * k).sum(dim=1).mean()
        loss = 1 - similarity
        if negatives is not None:
            logs, targets = (z @ negatives.T / self.temperature for z in (q, k))
            loss = -(targets.softmax(dim=1) * logs.log_softmax(dim=1)).sum(dim=1).mean()
        return {'loss': loss, 'similarity': similarity.detach()}
