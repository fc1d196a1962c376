"""An optimizer wrapper for mixed precision on GPUs and CPUs. It drops gradients if they or the loss are not finite."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.dist import all_reduce
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.engine.optim.gradients import gradients_of, with_gradient
from mmairl.errors import UserError
from mmairl.models.processes import norms, own_parts
from mmairl.registry import OPTIM_WRAPPERS

# The integer type of each size in bytes.
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class FiniteFlag:
    """Check whether the losses or gradient norms of an optimizer step are all finite.

    Call `add` for each value, `fetch` after the last value, and then `read` for the result.

    >>> flag = FiniteFlag()
    >>> flag.add(torch.tensor(1.0)); flag.add(torch.tensor(float('nan'))); flag.fetch(); flag.read()
    False
    """

    def __init__(self) -> None:
        self.all_finite: Tensor | None = None
        self.on_host: Tensor | None = None

    def add(self, loss: Tensor) -> None:
        # torch.isfinite would be slower on a GPU, because it launches four kernels.
        finite = (loss.detach() * 0).eq(0).to(torch.float32)
        self.all_finite = finite if self.all_finite is None else self.all_finite * finite

    def fetch(self, join: bool = True) -> None:
        """Start to copy the result to the CPU. With `join`, the result is true only if it is true in all processes."""
        if join:
            all_reduce(self.all_finite, 'min')
        on_device = self.all_finite.is_cuda
        self.on_host = torch.empty((), pin_memory=on_device)
        self.on_host.copy_(self.all_finite, non_blocking=True)
        self.copied = torch.cuda.current_stream().record_event() if on_device else None
        self.all_finite = None

    def read(self) -> bool:
        """Wait for the copy that `fetch` started, and return the result. The copy is usually complete by now."""
        if self.copied is not None:
            self.copied.synchronize()
        return bool(self.on_host.numpy())


# Configs of earlier versions use the second name.
@OPTIM_WRAPPERS.register_module(name=['AutocastOptimWrapper', 'LARSOptimWrapper'])
class AutocastOptimWrapper(AmpOptimWrapper):
    """Train in full precision, or under autocast to ``dtype``. Weights and momentum stay in float32.

    mmengine's AmpOptimWrapper does not accept CPUs, and it unnecessarily scales the loss for bfloat16. This class accepts CPUs
    and scales the loss only for float16. Gradient accumulation and clipping work as in mmengine.

    The optimizer step is skipped if the loss is not finite in one process or more. The check does not block the device: its
    result is computed after the forward pass and read after the backward pass has been queued. If the loss is finite but a
    gradient is NaN or infinite, steps on a CPU and steps with float16 are skipped, too. In other runs on a GPU, the gradients
    are set to zero instead, and `dropped` is True at the next step.

    Args:
        optimizer: The optimizer.
        dtype: 'bfloat16', 'float16', or None for full precision.
        accumulative_counts: Iterations in an optimizer step. Default: 1.
        clip_grad: Arguments of `clip_grad_norm_`, or None.

    Raises:
        UserError: If the dtype is unknown or the GPU does not support it.

    Example:
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
            raise UserError(
                f"optim_wrapper.dtype: unknown type ('{dtype}'); set None or one of {', '.join(self.valid_dtypes)}",
                code='unknown-dtype',
            )
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad)
        self.device_type = optimizer.param_groups[0]['params'][0].device.type
        bfloat16_on_gpu = self.device_type == 'cuda' and dtype == 'bfloat16'
        if bfloat16_on_gpu and not torch.cuda.is_bf16_supported(including_emulation=False):
            raise UserError(
                f"optim_wrapper.dtype: the GPU has no bfloat16 ('{torch.cuda.get_device_name()}'); set 'float16'",
                code='no-bfloat16',
            )
        self.cast_dtype = getattr(torch, dtype) if dtype else None
        self.loss_scaler = torch.amp.GradScaler(self.device_type, enabled=dtype == 'float16')
        self._scale_update_param = None
        self.finite = True
        # Whether the gradients of the previous step were set to zero.
        self.dropped = False
        self._applied = True
        self._losses = FiniteFlag()
        self._gradients = FiniteFlag()
        # The norm of all gradients of the last step, before they were clipped.
        self.gradient_norm: Tensor | None = None
        self._waits = self.device_type == 'cpu'
        self._fused = bool(optimizer.defaults.get('fused'))
        # The loss scaler skips steps whose gradients overflow, and only this hook shows which steps were taken.
        if self.loss_scaler.is_enabled():
            optimizer.register_step_post_hook(self._note_step)
        may_skip = self.loss_scaler.is_enabled() or not self._waits
        if self._fused and optimizer.defaults.get('momentum') and may_skip:
            self._zero_momentum()

    def _zero_momentum(self) -> None:
        """Fill the momentum buffers with zeros. If torch's fused SGD skips its first step, it leaves them uninitialized."""
        for group in self.optimizer.param_groups:
            for param in group['params']:
                if param.requires_grad:
                    self.optimizer.state[param]['momentum_buffer'] = torch.zeros_like(param)

    @property
    def accumulated(self) -> int:
        """The number of iterations in an optimizer step; mmengine has no public name for it."""
        return self._accumulative_counts

    def _note_step(self, *_: object) -> None:
        """Record that the optimizer was called. A fused optimizer is called even if it then skips the step."""
        self._applied = True

    @property
    def stepped(self) -> bool:
        """Whether the last call of `update_params` called the optimizer."""
        return self.finite and self._applied and self.should_update()

    def update_params(
        self, loss: Tensor, step_kwargs: dict | None = None, zero_kwargs: dict | None = None
    ) -> None:
        self._losses.add(loss)
        # Whether this is the last of the accumulated batches.
        last = self.should_sync()
        if last:
            self._losses.fetch()
        scaled = self.loss_scaler.is_enabled()
        if scaled:
            # The gradients of a non-finite loss may be finite. This factor of 1 or NaN makes the loss scaler skip the step.
            loss = loss * (1 + loss.detach() * 0)
        self.backward(self.scale_loss(loss))
        if last:
            self.finite = self._losses.read()
            self._applied = not scaled
            if not scaled:
                self._check_gradients()
            # The loss scaler itself skips steps with non-finite gradients, and then lowers its scale.
            if self.finite or scaled:
                self.step(**(step_kwargs or {}))
            self.zero_grad(**(zero_kwargs or {}))

    @torch.no_grad()
    def _check_gradients(self) -> None:
        """Find out whether all gradients are finite, and drop them if they are not.

        The gradients are already averaged over the processes, so the results need not be combined.
        """
        self.dropped = self._gradients.on_host is not None and not self._gradients.read()
        self._gradients.on_host = None
        gradients = gradients_of(self.optimizer)
        if not gradients or not self.finite:
            return
        # `norms` returns the norms of whole tensors, even if they are sharded.
        total = norms(gradients).sum()
        self._gradients.add(total)
        finite = self._gradients.all_finite
        self._gradients.fetch(join=False)
        if self._waits:
            self.finite = self._gradients.read()
            self._gradients.on_host = None
            return
        if self._fused:
            # The fused kernel skips the step if this value is 1.
            self.optimizer.found_inf = 1 - finite
        # Integers are multiplied instead of floats, because 0 * NaN is NaN.
        bits = [gradient.view(BITS[gradient.element_size()]) for gradient in own_parts(gradients)]
        torch._foreach_mul_(bits, finite.to(bits[0].dtype))

    def _clip_grad(self) -> None:
        """Clip gradients like mmengine, but keep their norm on the device, because reading it would block each step."""
        params = with_gradient(self.optimizer)
        self.gradient_norm = self.clip_func(params, **self.clip_grad_kwargs) if params else None

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state dict, and give each momentum buffer the memory layout of its weight, as fused steps require."""
        # A run without float16 stores an empty state of the loss scaler, which cannot be loaded.
        if not state_dict.get('loss_scaler'):
            state_dict = {key: value for key, value in state_dict.items() if key != 'loss_scaler'}
        super().load_state_dict(state_dict)
        for parameter, state in self.optimizer.state.items():
            for name, value in state.items():
                same_shape = isinstance(value, Tensor) and value.shape == parameter.shape
                if same_shape and value.stride() != parameter.stride():
                    like = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
                    state[name] = like.copy_(value)

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """Return the context of a forward pass. It uses autocast if a dtype is set.

        With gradient accumulation, the processes exchange gradients only at the last batch of an optimizer step.
        """
        cast = torch.autocast(
            self.device_type, self.cast_dtype, enabled=self.cast_dtype is not None
        )
        with OptimWrapper.optim_context(self, model), cast:
            yield
