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
from itertools import compress
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

    Each parameter group is divided into two groups. By default, the first group has the tensors with two or more axes, whose
    learning rate is adapted, and the second group has all other tensors, which take plain momentum steps. The class token and
    the position embedding of a vision transformer have more than one axis, so their learning rate is adapted, as in MoCo v3.
    Frozen parameters are in neither group. Pass them to `add_param_group` when they are unfrozen.

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
        >>> [(len(group['params']), group['adapt']) for group in optimizer.param_groups]
        [(1, True), (1, False)]
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
        self.trust = trust
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta, inside=inside)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a parameter group in any form that torch accepts, and divide it as the class describes."""
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        for name in NUMBERS:
            if not group[name] >= 0:  # This form of the condition also rejects NaN.
                raise UserError(
                    f"LARS: {name} must be at least 0 ('{group[name]}'); correct optim_wrapper.optimizer.{name}",
                    code='bad-number',
                )
        self.param_groups += split(group, self.trust)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, and return the loss of the closure, if any."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group['params'] if param.grad is not None]
            if params:
                for param in params:
                    if not self.state[param]:
                        self.state[param]['momentum_buffer'] = torch.zeros_like(param)
                grads = [param.grad for param in params]
                buffers = [self.state[param]['momentum_buffer'] for param in params]
                multi_tensor_lars(params, grads, buffers, group)
        return loss


def split(group: dict[str, Any], trust: bool) -> list[dict[str, Any]]:
    """Divide a parameter group into two groups: the parameters with two or more axes, and all others.

    Frozen parameters are left out.
    """
    parts = []
    params = group['params']
    for is_weight in (True, False):
        chosen = [param.requires_grad and (param.ndim > 1) == is_weight for param in params]
        if any(chosen):
            part = {**group, 'adapt': trust and is_weight, 'decay': is_weight}
            for key in group.keys() & {'params', 'param_names'}:
                part[key] = list(compress(group[key], chosen))
            parts.append(part)
    return parts


def multi_tensor_lars(
    params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], group: dict[str, Any]
) -> None:
    """Update all tensors of a group at once, in place. Their norms stay on the device."""
    lr, decay = group['lr'], group['weight_decay']
    inner, outer = (lr, 1) if group['inside'] else (1, lr)
    if group['adapt']:
        w, g = norms([*params, *grads]).chunk(2)
        local = torch.where((w > 0) & (g > 0), group['eta'] * w / (g + decay * w), 1.0)
    params, grads, buffers = map(own_parts, (params, grads, buffers))
    torch._foreach_mul_(buffers, group['momentum'])
    if group['decay']:
        grads = torch._foreach_add(grads, params, alpha=decay)
    if group['adapt']:
        torch._foreach_addcmul_(buffers, grads, (inner * local).unbind())
    else:
        torch._foreach_add_(buffers, grads, alpha=inner)
    torch._foreach_sub_(params, buffers, alpha=outer)
