"""SGD over classifiers stacked in one tensor, each with a rate and a decay of its own, at the cost of one."""

from collections.abc import Iterable, Sequence

import torch

from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class HeadSGD(torch.optim.SGD):
    """A tensor's rows are len(rates) equal blocks; block i moves as under SGD with rate lr x rates[i] and decays[i].

    SGD is linear in rate x (gradient + decay x weight), with momentum and Nesterov too, so that both are folded into the
    gradient and one multi-tensor step serves all heads. The schedule acts on lr.
    """

    def __init__(
        self,
        params: Iterable,
        lr: float,
        rates: Sequence[float],
        decays: Sequence[float],
        momentum: float = 0.9,
        nesterov: bool = False,
    ) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov)
        weight = self.param_groups[0]['params'][0]
        # Once: a copy in each step would wait for the device.
        settings = torch.tensor([rates, decays], dtype=torch.float64)
        self.rates, self.decays = settings.to(weight).unsqueeze(2)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group['params']:
                if param.grad is not None:
                    gradient, weight = (rows.view(len(self.rates), -1) for rows in (param.grad, param))
                    gradient.add_(weight * self.decays).mul_(self.rates)
        return super().step(closure)
