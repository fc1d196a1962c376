"""The linear warm-up of the papers, from a fixed learning rate to the learning rate of the optimizer."""

from mmengine.optim import BaseOptimWrapper, LinearLR
from mmengine.optim.scheduler.param_scheduler import INF
from torch.optim import Optimizer

from mmairl.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class WarmUpLR(LinearLR):
    """Increase the learning rate linearly, from `start` at step `begin` to the optimizer's learning rate lr at step `end`.

    At step t from `begin` to `end`, the rate is start + (lr - start) (t - begin) / (end - begin). mmengine's LinearLR starts
    at a fraction of lr instead of a fixed rate, and it reaches lr one step early.

    Args:
        optimizer: The optimizer or its wrapper.
        start: Learning rate at step `begin`. Default: 1e-6.
        begin: First step of the warm-up. Default: 0.
        end: First step with the optimizer's learning rate.
        kwargs: Other arguments of mmengine's LinearLR.

    Example:
        >>> param_scheduler = [dict(type='WarmUpLR', start=1e-6, end=10), dict(type='CosineAnnealingLR', begin=10)]
    """

    def __init__(
        self,
        optimizer: Optimizer | BaseOptimWrapper,
        start: float = 1e-6,
        begin: int = 0,
        end: int = INF,
        **kwargs,
    ) -> None:
        self.start = start
        # mmengine's schedules act only at steps before `end`, but this one must also set the rate at `end`.
        super().__init__(optimizer, begin=begin, end=end + 1, **kwargs)

    def _get_value(self) -> list[float]:
        done = self.last_step / self.total_iters
        return [self.start + (base - self.start) * done for base in self.base_values]
