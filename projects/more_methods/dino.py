"""DINO: the student predicts which prototypes the teacher assigns to another view."""

import torch
import torch.nn.functional as F
from mmengine.dist import all_reduce
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads import PairwiseHead
from mmairl.models.necks import MLPNeck
from mmairl.registry import MODELS


@MODELS.register_module()
class PrototypeNeck(MLPNeck):
    """An MLP, and the cosines of its output with a number of learned prototypes; the teacher averages them like the rest.

    While `frozen` is 1 the prototypes get no gradient (`ScheduleHook`).
    """

    def __init__(self, prototypes: int, **kwargs) -> None:
        super().__init__(**kwargs)
        self.prototypes = nn.Linear(self.out_channels, prototypes, bias=False)
        self.frozen = 0

    def forward(self, x: Tensor) -> Tensor:
        weight = self.prototypes.weight
        if self.frozen:
            weight = weight.detach() + 0 * weight  # a gradient of 0: DDP waits for one
        return F.linear(F.normalize(super().forward(x), dim=1), F.normalize(weight, dim=1))


@MODELS.register_module()
class DINOHead(PairwiseHead):
    """The cross entropy of softmax(q / 0.1) against softmax((k - c) / 0.04), averaged over the pairs of views.

    The centre c, the moving mean of the keys of all processes, keeps one prototype from winning everywhere; the low
    temperature of the keys keeps them from being uniform. A centre_momentum of 1 is no centring.
    """

    rewards = ('alignment', 'k-NN on clusters')

    def __init__(
        self, prototypes: int, temperature: float = 0.1, key_temperature: float = 0.04, centre_momentum: float = 0.9
    ) -> None:
        super().__init__()
        self.temperature, self.key_temperature, self.centre_momentum = temperature, key_temperature, centre_momentum
        self.register_buffer('centre', torch.zeros(prototypes))

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        wide, given = self.centre.dtype, next(iter(k.values())).shape[1]
        if given != len(self.centre):
            raise UserError(
                f'the DINO head has {len(self.centre)} prototypes and the projector {given}; set model.head.prototypes and '
                'model.projector.prototypes alike'
            )
        logs = {view: (z.to(wide) / self.temperature).log_softmax(dim=1) for view, z in q.items()}
        assigned = {view: ((z.to(wide) - self.centre) / self.key_temperature).softmax(dim=1) for view, z in k.items()}
        terms = super().forward(logs, assigned, negatives)
        terms['loss'] = terms['loss'] / sum(i != j for i in q for j in k)
        if self.training:
            self.move_centre(torch.cat(list(k.values())))
        return terms

    @staticmethod
    def hidden_factors(**_: object) -> dict[str, str]:
        return {**PairwiseHead.hidden_factors(), 'directions of the loss': 'averaged'}

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        return dict(loss=-(k * q).sum(dim=1).mean(), key_entropy=torch.special.entr(k).sum(dim=1).mean())

    @torch.no_grad()
    def move_centre(self, keys: Tensor) -> None:
        mean = keys.to(self.centre.dtype).mean(dim=0)
        all_reduce(mean, 'mean')
        mean = torch.where(mean.isfinite(), mean, self.centre)  # a batch whose step is skipped leaves nothing behind
        self.centre.lerp_(mean, 1 - self.centre_momentum)
