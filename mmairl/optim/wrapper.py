"""The optim wrapper for LARS: accumulation and clipping are mmengine's, the compute precision is one key."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from mmengine.optim import AmpOptimWrapper, OptimWrapper
from torch import nn

from mmairl.errors import UserError
from mmairl.optim.lars import LARS
from mmairl.registry import OPTIM_WRAPPERS


@OPTIM_WRAPPERS.register_module()
class LARSOptimWrapper(AmpOptimWrapper):
    """Steps LARS in full precision, or under autocast to ``dtype``, on a GPU or a CPU.

    mmengine's AMP wrapper refuses a CPU and scales the loss for bfloat16 too, which needs none; so its set-up is
    replaced, and float16 alone is scaled. The weights and the momentum stay in float32.

    Example:
        >>> optimizer = dict(type='LARS', lr=4.8, momentum=0.9, weight_decay=1e-6)
        >>> optim_wrapper = dict(type='LARSOptimWrapper', optimizer=optimizer, dtype='bfloat16')
    """

    valid_dtypes = ('float16', 'bfloat16')

    def __init__(
        self,
        optimizer: LARS,
        dtype: str | None = None,
        accumulative_counts: int = 1,
        clip_grad: dict | None = None,
    ) -> None:
        if dtype not in (None, *self.valid_dtypes):
            raise UserError(
                f'LARSOptimWrapper needs dtype to be None or one of {self.valid_dtypes}, but got {dtype!r}.'
            )
        if [group.get('adapt') for group in optimizer.param_groups] != [True, False]:
            raise UserError(
                'LARSOptimWrapper needs LARS over two groups, adapted and excluded; '
                "build it from a config in the scope mmairl, or with mmairl's adapted_and_excluded(model)."
            )
        OptimWrapper.__init__(self, optimizer, accumulative_counts, clip_grad)
        self.device_type = optimizer.param_groups[0]['params'][0].device.type
        self.cast_dtype = getattr(torch, dtype) if dtype else None
        self.loss_scaler = torch.amp.GradScaler(self.device_type, enabled=dtype == 'float16')
        self._scale_update_param = None

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """The forward pass's context: autocast where a dtype is set, no gradient exchange while accumulating."""
        cast = torch.autocast(self.device_type, self.cast_dtype, enabled=self.cast_dtype is not None)
        with OptimWrapper.optim_context(self, model), cast:
            yield
