"""Mixed precision wherever the run is, GPU or CPU, as one key of the optim wrapper."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.dist import all_reduce
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.errors import UserError
from mmairl.models.processes import norms, own_parts
from mmairl.registry import OPTIM_WRAPPERS

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes


class FiniteFlag:
    """One number for the losses of an optimizer step or for its gradients: `add` each, `fetch` after the last, then `read`.

    >>> flag = FiniteFlag()
    >>> flag.add(torch.tensor(1.0)); flag.add(torch.tensor(float('nan'))); flag.fetch(); flag.read()
    False
    """

    def __init__(self) -> None:
        self.all_finite: Tensor | None = None
        self.on_host: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        finite = (loss.detach() * 0).eq(0).to(torch.float32)  # torch.isfinite launches four kernels
        self.all_finite = finite if self.all_finite is None else self.all_finite * finite

    def fetch(self, join: bool = True) -> None:
        """Start the copy to the host, for all processes together or this one alone."""
        if join:
            all_reduce(self.all_finite, 'min')
        on_device = self.all_finite.is_cuda
        self.on_host = torch.empty((), pin_memory=on_device)
        self.on_host.copy_(self.all_finite, non_blocking=True)
        self.there = torch.cuda.current_stream().record_event() if on_device else None
        self.all_finite = None

    def read(self) -> bool:
        """The answer; waits until the device has come to `fetch`, which it usually has."""
        if self.there is not None:
            self.there.synchronize()
        return bool(self.on_host.numpy())


@OPTIM_WRAPPERS.register_module(name=['AutocastOptimWrapper', 'LARSOptimWrapper'])  # the latter in older configs
class AutocastOptimWrapper(AmpOptimWrapper):
    """Steps in full precision, or under autocast to ``dtype``; weights and momentum stay in float32.

    mmengine's AMP wrapper refuses a CPU and scales the loss for bfloat16 too, which needs none; so its set-up is
    replaced, and float16 alone is scaled. Accumulation and clipping are mmengine's.

    A step with a loss that is not finite, in any process, is not taken: its gradients are dropped. The device is not
    waited for: whether the loss is finite is known once the forward pass is done, and read when the backward pass has been
    queued behind it. Gradients that are not finite at a finite loss drop the step as well on a CPU, where they are there;
    on a GPU they become zero and the next step reads that they did (`dropped`).

    Examples:
        >>> optimizer = dict(type='SGD', lr=0.12, momentum=0.9, weight_decay=1e-4)
        >>> optim_wrapper = dict(type='AutocastOptimWrapper', optimizer=optimizer, dtype='bfloat16')
    """

    valid_dtypes = ('float16', 'bfloat16')

    def __init__(
        self,
        optimizer: Optimizer,
        dtype: str | None = None,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
    ) -> None:
        if dtype not in (None, *self.valid_dtypes):
            raise UserError(f'optim_wrapper.dtype={dtype!r} is not known; set None or one of {self.valid_dtypes}')
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad)
        self.device_type = optimizer.param_groups[0]['params'][0].device.type
        if self.device_type == 'cuda' and dtype == 'bfloat16' and not torch.cuda.is_bf16_supported(False):
            raise UserError(f"{torch.cuda.get_device_name()} has no bfloat16; set optim_wrapper.dtype='float16'")
        self.cast_dtype = getattr(torch, dtype) if dtype else None
        self.loss_scaler = torch.amp.GradScaler(self.device_type, enabled=dtype == 'float16')
        self._scale_update_param = None
        self.finite, self._applied, self._seen = True, True, FiniteFlag()
        self.dropped, self._gradients = False, FiniteFlag()  # whether the step before took zero for its gradients
        self.gradient_norm: Tensor | None = None  # before clipping, of the last step
        self._waits = self.device_type == 'cpu'
        self._fused = bool(optimizer.defaults.get('fused'))
        if self.loss_scaler.is_enabled():  # it leaves steps out by itself, for gradients that overflow
            optimizer.register_step_post_hook(self._note_step)
        may_leave_out = self.loss_scaler.is_enabled() or not self._waits
        if self._fused and optimizer.defaults.get('momentum') and may_leave_out:
            # torch's fused SGD makes them without a value, and a first step that is left out writes none.
            for param in [param for group in optimizer.param_groups for param in group['params']]:
                if param.requires_grad:
                    optimizer.state[param]['momentum_buffer'] = torch.zeros_like(param)

    @property
    def accumulated(self) -> int:
        """Return how many iterations are a step; mmengine has no public name for it."""
        return self._accumulative_counts

    def _note_step(self, *_: object) -> None:
        """A fused optimizer is called for steps that it leaves out, too; to ask would wait, so the teacher's mean moves."""
        self._applied = True

    @property
    def stepped(self) -> bool:
        """Whether the last `update_params` moved the weights."""
        return self.finite and self._applied and self.should_update()

    def update_params(self, loss: Tensor, step_kwargs: dict | None = None, zero_kwargs: dict | None = None) -> None:
        self._seen.add(loss)
        last = self.should_sync()  # of the batches whose gradients make up one step
        if last:
            self._seen.fetch()
        self.backward(self.scale_loss(loss))
        if last:
            scaled = self.loss_scaler.is_enabled()
            self.finite, self._applied = self._seen.read(), not scaled
            if not scaled:
                self._check_gradients()
            if self.finite or scaled:  # a scaler refuses such gradients itself, and scales less
                self.step(**(step_kwargs or {}))
            self.zero_grad(**(zero_kwargs or {}))

    @torch.no_grad()
    def _check_gradients(self) -> None:
        """Processes that exchange gradients have the same, so that each comes to the same answer by itself."""
        self.dropped = self._gradients.on_host is not None and not self._gradients.read()
        self._gradients.on_host = None
        groups = self.optimizer.param_groups
        gradients = [weight.grad for group in groups for weight in group['params'] if weight.grad is not None]
        if not gradients or not self.finite:
            return
        total = norms(gradients).sum()  # of whole tensors, where they are sharded
        self._gradients.add(total)
        finite = self._gradients.all_finite
        self._gradients.fetch(join=False)
        if self._waits:
            self.finite, self._gradients.on_host = self._gradients.read(), None
            return
        if self._fused:
            self.optimizer.found_inf = 1 - finite  # its kernel leaves the step out
        bits = [gradient.view(BITS[gradient.element_size()]) for gradient in own_parts(gradients)]
        torch._foreach_mul_(bits, finite.to(bits[0].dtype))  # as integers, for 0 x NaN is NaN

    def _clip_grad(self) -> None:
        """mmengine's, but the norm stays on the device until it is logged: reading it here would wait in each step."""
        groups = self.optimizer.param_groups
        params = [weight for group in groups for weight in group['params'] if weight.grad is not None]
        self.gradient_norm = self.clip_func(params, **self.clip_grad_kwargs) if params else None

    def load_state_dict(self, state_dict: dict) -> None:
        """Go on from a checkpoint; momenta come to lie in memory as their weights do, which fused steps go by."""
        super().load_state_dict(state_dict)
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                of_elements = isinstance(value, Tensor) and value.shape == parameter.shape
                if of_elements and value.stride() != parameter.stride():
                    state[name] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """The forward pass's context: autocast where a dtype is set, no gradient exchange while accumulating."""
        cast = torch.autocast(self.device_type, self.cast_dtype, enabled=self.cast_dtype is not None)
        with OptimWrapper.optim_context(self, model), cast:
            yield
