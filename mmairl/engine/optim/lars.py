"""LARS as in the papers: SGD with momentum and an adapted learning rate for each weight tensor.

For a weight w with gradient g::

    local = eta |w| / (|g| + wd |w|)       (1 where either norm is 0)
    v    <- mu v + lr local (g + wd w)
    w    <- w - v

The learning rate is applied inside the momentum buffer v. Torch's SGD and lightly's LARS apply it outside. Their updates
therefore differ from the formula whenever the rate changes (warm-up, cosine). Biases and the gains of normalization layers
use local = 1 and wd = 0.
"""

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmairl.errors import UserError
from mmairl.models.processes import norms, own_parts
from mmairl.registry import OPTIMIZERS

NUMBERS = ('lr', 'momentum', 'weight_decay', 'eta')


@OPTIMIZERS.register_module()
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (LARS).

    The learning rate of tensors with two or more axes is adapted. All other tensors take plain momentum steps without weight
    decay. The class token and the position embedding of a vision transformer have more than one axis, so their learning rate is
    adapted, as in MoCo v3.

    A step updates all tensors of a group at once and never waits for the device. If a tensor is sharded (a DTensor), its
    learning rate follows from the norm of the whole tensor.

    Args:
        params: Parameters, named parameters or parameter groups, as for every optimizer of torch.
        lr: Learning rate.
        momentum: Momentum ``mu``.
        weight_decay: Weight decay ``wd`` of all tensors except biases and gains.
        eta: Trust coefficient.
        inside: Apply the learning rate inside the momentum buffer.
        trust: Adapt learning rates. If False, the optimizer is SGD that applies no weight decay to biases and gains.

    Raises:
        UserError: If `lr`, `momentum`, `weight_decay` or `eta` is negative.

    Example:
        >>> optimizer = LARS(torch.nn.Linear(4, 2).parameters(), lr=4.8, weight_decay=1e-6)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        inside: bool = True,
        trust: bool = True,
    ) -> None:
        numbers = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta)
        super().__init__(params, dict(numbers, inside=inside, trust=trust))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group in any form that torch accepts."""
        super().add_param_group(param_group)
        for name in NUMBERS:
            number = self.param_groups[-1][name]
            if not number >= 0:  # This form of the condition also rejects NaN.
                self.param_groups.pop()
                raise UserError(
                    f"LARS: {name} must be at least 0 ('{number}'); correct optim_wrapper.optimizer.{name}",
                    code='bad-number',
                )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, and return the loss of the closure, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, is_weight in product(self.param_groups, (True, False)):
            params = [
                param
                for param in group['params']
                if param.grad is not None and (param.ndim > 1) == is_weight
            ]
            for param in params:
                if not self.state[param]:
                    self.state[param]['momentum_buffer'] = torch.zeros_like(param)
            if params:
                grads = [param.grad for param in params]
                buffers = [self.state[param]['momentum_buffer'] for param in params]
                multi_tensor_lars(params, grads, buffers, group, is_weight)
        return loss


def multi_tensor_lars(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    group: dict[str, Any],
    is_weight: bool,
) -> None:
    """Update all weights or all other tensors of a group at once, in place. Their norms stay on the device."""
    adapts = is_weight and group['trust']
    lr, decay = group['lr'], group['weight_decay']
    inner, outer = (lr, 1) if group['inside'] else (1, lr)
    if adapts:
        w, g = norms([*params, *grads]).chunk(2)
        local = torch.where((w > 0) & (g > 0), group['eta'] * w / (g + decay * w), 1.0)
    params, grads, buffers = map(own_parts, (params, grads, buffers))
    torch._foreach_mul_(buffers, group['momentum'])
    if is_weight:
        grads = torch._foreach_add(grads, params, alpha=decay)
    if adapts:
        torch._foreach_addcmul_(buffers, grads, (inner * local).unbind())
    else:
        torch._foreach_add_(buffers, grads, alpha=inner)
    torch._foreach_sub_(params, buffers, alpha=outer)
