"""Optimizer wrappers: mixed precision on GPUs and CPUs, and LARS with the papers' settings."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.engine.optim.lars import LARS
from mmairl.engine.optim.parts import clipped_together
from mmairl.errors import UserError
from mmairl.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class AutocastOptimWrapper(AmpOptimWrapper):
    """Train in full precision, or under autocast to ``dtype``. Weights and momentum stay in float32.

    mmengine's AmpOptimWrapper does not accept CPUs, and it unnecessarily scales the loss for bfloat16. This class accepts CPUs
    and scales the loss only for float16. Gradient accumulation and clipping work as in mmengine.

    Args:
        optimizer: The optimizer.
        dtype: 'bfloat16', 'float16', or None for full precision.
        accumulative_counts: Iterations in an optimizer step. Default: 1.
        clip_grad: Arguments of `clip_grad_norm_`, or None. The additional key `per` states which gradients are clipped by
            their common norm: 'all' (default), those of a 'part' of the model, or those of a 'tensor'.

    Attributes:
        stepped: Whether the last optimizer step was taken. With float16, a step whose gradients overflow is skipped.
        gradient_norm: The norm of all gradients before clipping, on the device. None without `clip_grad`.

    Example:
        >>> optimizer = dict(type='SGD', lr=0.12, momentum=0.9, weight_decay=1e-4)
        >>> optim_wrapper = dict(type='AutocastOptimWrapper', optimizer=optimizer, dtype='bfloat16')
    """

    # A config may leave out these keys of `optim_wrapper.optimizer`.
    default_optimizer: dict[str, Any] = {}

    def __init__(
        self,
        optimizer: Optimizer,
        dtype: str | None = None,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
    ) -> None:
        clip_grad = dict(clip_grad or {})
        self.clip_per = clip_grad.pop('per', 'all')
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad or None)
        self.device_type = optimizer.param_groups[0]['params'][0].device.type
        self.cast_dtype = getattr(torch, dtype) if dtype else None
        self.loss_scaler = torch.amp.GradScaler(self.device_type, enabled=dtype == 'float16')
        self._scale_update_param = None
        self.stepped = True
        self.gradient_norm: Tensor | None = None

    def step(self, **kwargs: Any) -> None:
        before = self.loss_scaler.get_scale()
        super().step(**kwargs)
        # The scaler lowers its scale if and only if it skipped the step.
        self.stepped = self.loss_scaler.get_scale() >= before

    def _clip_grad(self) -> None:
        """Clip gradients like mmengine, but keep their norm on the device, because reading it would block each step."""
        norms = [
            self.clip_func(params, **self.clip_grad_kwargs)
            for params in clipped_together(self.optimizer, self.clip_per)
        ]
        known = [norm for norm in norms if norm is not None]  # clip_grad_value_ returns None.
        self.gradient_norm = torch.stack(known).norm() if known else None

    def load_state_dict(self, state_dict: dict) -> None:
        """Load a state dict, and give each momentum buffer the memory layout of its weight, as fused steps require."""
        state_dict = dict(state_dict)
        # A run without float16 stores an empty state of the loss scaler, which cannot be loaded.
        if not state_dict.get('loss_scaler'):
            state_dict.pop('loss_scaler', None)
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
        enabled = self.cast_dtype is not None
        cast = torch.autocast(self.device_type, self.cast_dtype, enabled=enabled)
        with OptimWrapper.optim_context(self, model), cast:
            yield


@OPTIM_WRAPPERS.register_module()
class LARSOptimWrapper(AutocastOptimWrapper):
    """An AutocastOptimWrapper around the LARS optimizer.

    The default optimizer has the settings of Huang et al. 2022 for 1024 images per step: ``lr=1.2``, ``momentum=0.9``,
    ``weight_decay=1e-6``, the trust coefficient 0.001, and no adaptation or weight decay of biases and gains. Keys in
    `optim_wrapper.optimizer` replace these settings. The arguments are those of AutocastOptimWrapper.

    Raises:
        UserError: If `optim_wrapper.optimizer.type` is not LARS.

    Example:
        >>> optim_wrapper = dict(type='LARSOptimWrapper', optimizer=dict(lr=4.8))
    """

    default_optimizer = dict(type='LARS', lr=1.2, momentum=0.9, weight_decay=1e-6)

    def __init__(self, optimizer: Optimizer, **kwargs: Any) -> None:
        if not isinstance(optimizer, LARS):
            raise UserError(
                f"optim_wrapper.optimizer.type: LARSOptimWrapper requires LARS ('{type(optimizer).__name__}'); set 'LARS', or "
                "set optim_wrapper.type='AutocastOptimWrapper'",
                code='not-lars',
            )
        super().__init__(optimizer, **kwargs)
