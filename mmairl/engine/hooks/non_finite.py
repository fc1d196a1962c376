"""A hook that ends a run whose loss is not finite."""

from collections.abc import Sequence

import torch
from mmengine.dist import all_reduce
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.errors import Diverged
from mmairl.models.processes import own_parts
from mmairl.registry import HOOKS


@HOOKS.register_module()
class NonFiniteHook(Hook):
    """End the run in all processes if the loss is NaN or infinite in one of them.

    Args:
        interval: Iterations between two checks, because a check waits for the device. Default: 50.

    Raises:
        Diverged: The message names the last checkpoint, whose weights are finite.
    """

    priority = 'HIGH'

    def __init__(self, interval: int = 50) -> None:
        self.interval = interval

    def after_train_iter(self, runner: Runner, outputs: dict, **_: object) -> None:
        last = runner.iter + 1 == runner.max_iters
        if last or self.every_n_train_iters(runner, self.interval):
            require_finite(runner, 'loss', [outputs['loss']])


def require_finite(runner: Runner, what: str, values: Sequence[Tensor]) -> None:
    """Raise in all processes if a value is not finite in one of them. All processes must call this function together."""
    finite = torch.stack([part.detach().isfinite().all() for part in own_parts(values)]).all()
    finite = finite.float()
    all_reduce(finite, 'min')
    if finite:
        return
    checkpoint = runner.message_hub.get_info('last_ckpt', None)
    advice = f'continue from {checkpoint} (--resume {checkpoint})' if checkpoint else 'start again'
    raise Diverged(
        f'training: the {what} is not finite at iteration {runner.iter + 1}; {advice} with a lower learning rate '
        '(--work-dir NEW --cfg-options optim_wrapper.optimizer.lr=...)',
        code='diverged',
    )
