"""LARS as the papers' systems use it: SGD with momentum whose rate is set anew for each weight tensor.

For a weight w with gradient g::

    local = eta |w| / (|g| + wd |w|)       (1 where either norm is 0)
    v    <- mu v + lr local (g + wd w)
    w    <- w - v

The learning rate stands inside the momentum buffer; torch's SGD and lightly's LARS have it outside, which differs as
soon as it changes, in warm-up and under a cosine. Groups with ``adapt=False`` (normalisation layers
and biases) take local = 1 and wd = 0.
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from mmairl.errors import UserError
from mmairl.registry import OPTIMIZERS


@OPTIMIZERS.register_module()
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling; a group may say ``adapt=False``, and adapts otherwise.

    On a CPU the fused form steps, which goes over the memory once after the norms; elsewhere the multi-tensor form,
    which launches few kernels and never waits for the device. An engine that cuts the weights into shards sets `update`
    to a form of its own, which joins the norms.

    Example:
        >>> optimizer = LARS([dict(params=[weight]), dict(params=[bias], adapt=False)], lr=4.8, weight_decay=1e-6)
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
    ) -> None:
        if lr < 0 or weight_decay < 0 or not 0 <= momentum < 1 or eta <= 0:
            raise UserError(
                'LARS needs lr >= 0, 0 <= momentum < 1, weight_decay >= 0 and eta > 0, '
                f'but got lr={lr}, momentum={momentum}, weight_decay={weight_decay}, eta={eta}.'
            )
        super().__init__(
            params, {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay, 'eta': eta, 'adapt': True}
        )
        self.update: Callable[..., None] | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Move every parameter that has a gradient; a closure, if given, computes the loss first."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group['params'] if param.grad is not None]
            if params:
                update = self.update or (_fused_lars if params[0].device.type == 'cpu' else _multi_tensor_lars)
                hyper = {key: group[key] for key in ('lr', 'momentum', 'weight_decay', 'eta', 'adapt')}
                update(params, [param.grad for param in params], self._momentum_buffers(params), **hyper)
        return loss

    def _momentum_buffers(self, params: list[Tensor]) -> list[Tensor]:
        """Each parameter's v, which starts at zero."""
        for param in params:
            if not self.state[param]:
                if hasattr(param, 'device_mesh'):  # a DTensor, whose norm is its own part's
                    raise UserError(
                        'LARS asks for norms of whole layers, and FSDP gives it parts; use --strategy zero2 instead'
                    )
                self.state[param]['momentum_buffer'] = torch.zeros_like(param)
        return [self.state[param]['momentum_buffer'] for param in params]


def _single_tensor_lars(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    eta: float,
    adapt: bool,
) -> None:
    """The rule as it is written, tensor by tensor: what the fast forms are held to."""
    for param, grad, buffer in zip(params, grads, buffers):
        rate, decay = _host_rate(param, grad, lr, weight_decay, eta) if adapt else (lr, 0.0)
        buffer.mul_(momentum).add_(grad, alpha=rate)
        if decay:
            buffer.add_(param, alpha=rate * decay)
        param.sub_(buffer)


def _fused_lars(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    eta: float,
    adapt: bool,
) -> None:
    """The rule by torch's fused SGD, v <- mu v + (1 - dampening) (g + wd p) and p <- p - v, at dampening = 1 - rate.

    It takes raw memory, so tensors that lie in it differently go through the plain form.
    """
    common = dict(lr=1.0, momentum=momentum, nesterov=False, maximize=False, is_first_step=False)
    for param, grad, buffer in zip(params, grads, buffers):
        if not _lie_alike(param, grad, buffer):
            hyper = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta, adapt=adapt)
            _single_tensor_lars([param], [grad], [buffer], **hyper)
            continue
        rate, decay = _host_rate(param, grad, lr, weight_decay, eta) if adapt else (lr, 0.0)
        torch._fused_sgd_([param], [grad], [buffer], weight_decay=decay, dampening=1 - rate, **common)


def _host_rate(param: Tensor, grad: Tensor, lr: float, weight_decay: float, eta: float) -> tuple[float, float]:
    """lr local and wd, with the two norms read back to the host."""
    param_norm, grad_norm = param.norm().item(), grad.norm().item()
    if param_norm == 0 or grad_norm == 0:
        return lr, weight_decay
    return lr * eta * param_norm / (grad_norm + weight_decay * param_norm), weight_decay


def _lie_alike(*tensors: Tensor) -> bool:
    """Whether the n-th element in memory is the same element of each: one type, one order of axes, no gaps."""
    layouts = [(t.dtype, [(n, step) for n, step in zip(t.shape, t.stride()) if n > 1]) for t in tensors]
    reach = 1 + sum((n - 1) * step for n, step in layouts[0][1])
    return all(layout == layouts[0] for layout in layouts) and reach == tensors[0].numel()


def _multi_tensor_lars(
    params: list[Tensor],
    grads: list[Tensor],
    buffers: list[Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
    eta: float,
    adapt: bool,
    norms: Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Tensor]] | None = None,
) -> None:
    """The rule over all tensors at once; the norms stay on the device. Of parts of tensors, `norms` knows the whole's."""
    param_norms, grad_norms = (norms or _norms)(params, grads) if adapt else (None, None)
    if not params:
        return
    torch._foreach_mul_(buffers, momentum)
    if adapt:
        local = _trust_ratios(param_norms, grad_norms, weight_decay, eta)
        updates = torch._foreach_add(grads, params, alpha=weight_decay)
        torch._foreach_mul_(updates, list((lr * local).unbind()))
        torch._foreach_add_(buffers, updates)
    else:
        torch._foreach_add_(buffers, grads, alpha=lr)
    torch._foreach_sub_(params, buffers)


def _norms(params: list[Tensor], grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """|w| and |g|, one of each per tensor."""
    return torch.stack(torch._foreach_norm(params)), torch.stack(torch._foreach_norm(grads))


def _trust_ratios(param_norms: Tensor, grad_norms: Tensor, weight_decay: float, eta: float) -> Tensor:
    """One ``eta |w| / (|g| + wd |w|)`` per tensor, 1 where either norm is 0."""
    ratios = eta * param_norms / (grad_norms + weight_decay * param_norms)
    return torch.where((param_norms > 0) & (grad_norms > 0), ratios, 1.0)
