"""SwAV: each view predicts the code of another, which Sinkhorn's balanced assignment gives to its image."""

import torch
import torch.nn.functional as F
from mmengine.dist import get_rank
from torch import Tensor, nn

from mmairl.errors import UserError
from mmairl.models.heads import PairwiseHead, unit
from mmairl.models.processes import gather
from mmairl.registry import MODELS


@torch.no_grad()
def sinkhorn(scores: Tensor, epsilon: float, iterations: int) -> Tensor:
    """Codes of this process's rows: e^(scores / epsilon), scaled until prototypes share the images of all processes equally.

    Without iterations a code is the softmax of its own scores, and one prototype may win everywhere.
    """
    codes = (gather(scores) / epsilon).exp()
    for _ in range(iterations):
        codes = codes / codes.sum(dim=0)
        codes = codes / codes.sum(dim=1, keepdim=True)
    own = codes[get_rank() * len(scores) :][: len(scores)]
    return own / own.sum(dim=1, keepdim=True)


@MODELS.register_module()
class SwAVHead(PairwiseHead):
    """The cross entropy of softmax(q.c / t) against the codes of the other views' keys, averaged over the pairs.

    The prototypes c are brought to length 1 before each step. While `frozen` is 1 they get no gradient (`ScheduleHook`).
    The release's queue for batches of 256 or less is left out.
    """

    rewards = ('alignment', 'k-NN on clusters')

    def __init__(
        self, channels: int, prototypes: int, temperature: float = 0.1, epsilon: float = 0.05, iterations: int = 3
    ) -> None:
        super().__init__()
        self.prototypes = nn.Linear(channels, prototypes, bias=False)
        self.temperature, self.epsilon, self.iterations, self.frozen = temperature, epsilon, iterations, 0

    def forward(self, q: dict[int, Tensor], k: dict[int, Tensor], negatives: Tensor | None) -> dict[str, Tensor]:
        first, channels = next(iter(q.values())), self.prototypes.in_features
        if first.shape[1] != channels:
            raise UserError(
                f'the SwAV head takes {channels} channels and got {first.shape[1]}; set model.head.channels'
            )
        with torch.autocast(first.device.type, enabled=False):
            if self.training:
                with torch.no_grad():
                    self.prototypes.weight.copy_(F.normalize(self.prototypes.weight, dim=1))
            weight = self.prototypes.weight
            codes = {view: sinkhorn(unit(z) @ weight.T, self.epsilon, self.iterations) for view, z in k.items()}
            if self.frozen:
                weight = weight.detach() + 0 * weight  # a gradient of 0: DDP waits for one
            logs = {view: (unit(z) @ weight.T / self.temperature).log_softmax(dim=1) for view, z in q.items()}
            terms = super().forward(logs, codes, negatives)
        terms['loss'] = terms['loss'] / sum(i != j for i in q for j in k)
        return terms

    @staticmethod
    def hidden_factors(**_: object) -> dict[str, str]:
        return {**PairwiseHead.hidden_factors(), 'directions of the loss': 'averaged'}

    def pair(self, q: Tensor, k: Tensor, negatives: Tensor | None) -> dict[str, Tensor]:
        return dict(loss=-(k * q).sum(dim=1).mean(), key_entropy=torch.special.entr(k).sum(dim=1).mean())
