"""LARS as the papers' systems use it: SGD with momentum whose rate is set anew for each weight tensor.

For a weight w with gradient g::

    local = eta |w| / (|g| + wd |w|)       (1 where either norm is 0)
    v    <- mu v + lr local (g + wd w)
    w    <- w - v

The learning rate stands inside the momentum buffer; torch's SGD and lightly's LARS have it outside, which differs as
soon as it changes, in warm-up and under a cosine. Biases and the gains of normalisation layers take local = 1 and wd = 0.
"""

from collections.abc import Iterable
from functools import cache
from itertools import accumulate

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmairl.models.processes import norms, own_parts
from mmairl.registry import OPTIMIZERS

BLOCK = 1024


@OPTIMIZERS.register_module()
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling of the tensors with two axes or more; the others take the plain momentum step.

    All tensors move in one multi-tensor step, which never waits for the device. Of DTensors, which have parts of the
    weights in each process, the norms are those of the whole ones.

    Examples:
        >>> optimizer = LARS(torch.nn.Linear(4, 2).parameters(), lr=4.8, weight_decay=1e-6)
        >>> [(len(group['params']), group['adapt']) for group in optimizer.param_groups]
        [(1, True), (1, False)]
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        inside: bool = True,
    ) -> None:
        hyper = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta, inside=inside)
        super().__init__(split(params), hyper)

    @staticmethod
    def hidden_factors(inside: bool = True, **_: object) -> dict[str, str]:
        return {'rate': f'{"inside" if inside else "outside"} of the momentum buffer'}

    @torch.no_grad()
    def step(self) -> None:
        """Move every parameter that has a gradient."""
        for group in self.param_groups:
            params = [param for param in group['params'] if param.grad is not None]
            for param in params:
                if not self.state[param]:
                    self.state[param]['momentum_buffer'] = torch.zeros_like(param)
            if params:
                buffers = [self.state[param]['momentum_buffer'] for param in params]
                multi_tensor_lars(params, [param.grad for param in params], buffers, group)


def split(params: Iterable[Tensor] | Iterable[dict]) -> list[dict]:
    """Each group in two, adapted and not, without frozen parameters; a group that says `adapt` itself stays whole.

    Adapted is what has two axes or more, as in MoCo v3; so a ViT's class token and position embedding count as weights.
    """
    params, groups = list(params), []
    for group in params if isinstance(params[0], dict) else [dict(params=params)]:
        if 'adapt' in group:
            groups.append(group)
            continue
        for adapt in (True, False):
            members = [param for param in group['params'] if param.requires_grad and (param.ndim > 1) == adapt]
            if members:
                groups.append({**group, 'params': members, 'adapt': adapt})
    return groups


def multi_tensor_lars(params: list[Tensor], grads: list[Tensor], buffers: list[Tensor], group: dict) -> None:
    """The rule over all tensors of a group at once, in place; the norms stay on the device."""
    decay = group['weight_decay']
    lr, outside = (group['lr'], 1) if group.get('inside', True) else (1, group['lr'])
    w, g = norms([*params, *grads]).chunk(2) if group['adapt'] else (None, None)
    params, grads, buffers = own_parts(params), own_parts(grads), own_parts(buffers)
    torch._foreach_mul_(buffers, group['momentum'])
    if group['adapt']:
        local = torch.where((w > 0) & (g > 0), group['eta'] * w / (g + decay * w), 1.0)
        grads = torch._foreach_add(grads, params, alpha=decay)
        torch._foreach_addcmul_(buffers, grads, spread(lr * local, grads))
    else:
        torch._foreach_add_(buffers, grads, alpha=lr)
    torch._foreach_sub_(params, buffers, alpha=outside)


@cache
def owners(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """The number of the tensor that each block of BLOCK elements belongs to; made once, for the copy waits for a GPU."""
    blocks = [-(-size // BLOCK) for size in sizes]
    return torch.repeat_interleave(torch.tensor(blocks), output_size=sum(blocks)).to(device)


def spread(numbers: Tensor, like: list[Tensor]) -> list[Tensor]:
    """A factor for each tensor. On a GPU it is as large as the tensor: of smaller ones torch would launch a kernel for each."""
    if not numbers.is_cuda:
        return list(numbers.unbind())
    sizes = tuple(tensor.numel() for tensor in like)
    full = numbers[owners(sizes, numbers.device)].unsqueeze(1).expand(-1, BLOCK).flatten()
    starts = accumulate((-(-size // BLOCK) * BLOCK for size in sizes), initial=0)
    return [full.as_strided(tensor.shape, tensor.stride(), start) for tensor, start in zip(like, starts)]
