"""The linear warm-up of the papers, from a fixed learning rate to the optimizer's."""

from mmengine.optim import BaseOptimWrapper, LinearLR
from mmengine.optim.scheduler.param_scheduler import INF
from torch.optim import Optimizer

from mmairl.registry import PARAM_SCHEDULERS


@PARAM_SCHEDULERS.register_module()
class WarmUpLR(LinearLR):
    """Set the learning rate of step t to start + (lr - start) t / end, so that step `end` has the optimizer's rate lr.

    mmengine's LinearLR starts from a fraction of the optimizer's rate and reaches it one step early.

    Args:
        optimizer: The optimizer or its wrapper.
        start: Rate of step 0. Default: 1e-6.
        begin: First step of the warm-up. Default: 0.
        end: First step with the optimizer's rate.
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
        # A scheduler does not act at its end, only at the steps before.
        super().__init__(optimizer, begin=begin, end=end + 1, **kwargs)

    def _get_value(self) -> list[float]:
        done = self.last_step / self.total_iters
        return [self.start + (base - self.start) * done for base in self.base_values]
