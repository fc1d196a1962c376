"""ZeRO by DeepSpeed, stages 1 and 2: each process holds a part of the optimizer state and, in stage 2, of the gradients.

    strategy = dict(type='DeepSpeedStrategy', stage=2)

Each process holds the full weights of student and teacher in float32, so the teacher, the queue and the hooks work as without
a strategy. Mixed precision is torch's autocast. DeepSpeed averages the gradients, clips them, and updates the weights. It
joins parameters into flat tensors and splits these at arbitrary elements. Only optimizers that treat each element separately
are therefore correct. Checkpoints have the same format as without a strategy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from mmengine.config import Config
from mmengine.dist import get_rank, get_world_size, is_main_process
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.strategy import Strategy
from mmairl.errors import UserError
from mmairl.models.processes import gather
from mmairl.registry import OPTIM_WRAPPERS, STRATEGIES

ELEMENTWISE = ('SGD', 'AdamW')


@STRATEGIES.register_module()
class DeepSpeedStrategy(Strategy):
    """ZeRO by DeepSpeed in float32 and bfloat16, for optimizers that treat each element separately: SGD and AdamW.

    Args:
        stage: 1 or 2.
        offload: Whether the optimizer state is kept in CPU memory and the optimizer runs on the CPU. Default: False.
        zero: Other keys of `zero_optimization` in a DeepSpeed config, such as `reduce_bucket_size`.

    Raises:
        UserError: If deepspeed is not installed, or the stage, the optimizer or the precision is not supported.

    Example:
        >>> strategy = dict(type='DeepSpeedStrategy', stage=2, reduce_bucket_size=50_000_000)
    """

    stages = (1, 2)

    def __init__(self, stage: int, offload: bool = False, **zero: Any) -> None:
        super().__init__(stage)
        self.zero = dict(zero, stage=stage)
        if offload:
            self.zero['offload_optimizer'] = dict(device='cpu', pin_memory=True)

    def complete(self, cfg: Config) -> None:
        wrapper = cfg.optim_wrapper
        wrapper.type = 'DeepSpeedOptimWrapper'
        dtype = wrapper.get('dtype') or (cfg.get('fast') or {}).get('precision')
        kind = wrapper.get('optimizer', {}).get('type')
        problem = ''
        if find_spec('deepspeed') is None:
            problem = "strategy: deepspeed is not installed; run pip install 'mmairl[deepspeed]'"
        elif dtype == 'float16':
            problem = "optim_wrapper.dtype: DeepSpeedStrategy does not support 'float16'"
        elif kind not in ELEMENTWISE:
            problem = (
                f"optim_wrapper.optimizer.type: DeepSpeedStrategy supports SGD and AdamW ('{kind}')"
            )
        if problem:
            raise UserError(
                f'{problem}; use ZeroStrategy (--strategy zero{self.stage})',
                code='not-with-deepspeed',
            )

    def shard_optimizer(self, wrapper: 'DeepSpeedOptimWrapper', model: nn.Module) -> None:
        config = dict(
            # DeepSpeed requires a batch size but does not use it, because it does not load the data.
            train_micro_batch_size_per_gpu=1,
            gradient_clipping=(wrapper.clip_grad_kwargs or {}).get('max_norm', 0.0),
            zero_optimization=self.zero,
            zero_allow_untested_optimizer=True,
            zero_force_ds_cpu_optimizer=False,
        )
        wrapper.optimizer = PartitionedOptimizer(wrapper.optimizer, model, config)
        # Without this line, mmengine's `train_step` would call the model itself, not DeepSpeed's wrapper of the model.
        model._run_forward = partial(type(model)._run_forward, wrapper.optimizer.engine)


@OPTIM_WRAPPERS.register_module()
class DeepSpeedOptimWrapper(AutocastOptimWrapper):
    """An AutocastOptimWrapper that uses DeepSpeed's backward pass and step. `DeepSpeedStrategy` sets it in the config.

    DeepSpeed skips a step if a gradient is not finite in one process or more.

    Example:
        >>> optim_wrapper = dict(type='DeepSpeedOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        self.optimizer.engine.set_gradient_accumulation_boundary(self.should_sync())
        with super().optim_context(model):
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        self.optimizer.engine.backward(loss, **kwargs)
        self._inner_count += 1

    def step(self, **kwargs: Any) -> None:
        self.optimizer.step()
        engine = self.optimizer.engine
        self.stepped = not engine.optimizer.overflow
        if self.clip_grad_kwargs:
            self.gradient_norm = torch.as_tensor(engine.get_global_grad_norm())


class PartitionedOptimizer(Optimizer):
    """An optimizer that DeepSpeed splits over the processes. Hooks, schedules and checkpoints see full parameters.

    DeepSpeed works on the original optimizer. It joins the parameters of each group into one flat tensor, of which each
    process updates a part.

    Args:
        optimizer: The optimizer to split.
        model: The model that the optimizer trains.
        config: The DeepSpeed config.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, config: dict[str, Any]) -> None:
        import deepspeed

        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        # For each group: its index, its trained parameters, and the group whose parameters DeepSpeed replaces.
        self.parts: list[tuple[int, list[Tensor], dict]] = []
        for number, group in enumerate(optimizer.param_groups):
            group['params'] = [param for param in group['params'] if param.requires_grad]
            if group['params']:
                self.parts.append((number, list(group['params']), group))
        optimizer.param_groups[:] = [group for _, _, group in self.parts]
        self.own = optimizer
        # Without this line, DeepSpeed would, on a CPU, compile a collective operation that only inference uses.
        deepspeed.ops.__compatible_ops__ = {}
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]

    def step(self, closure: None = None) -> None:
        """Update the weights. All processes must call this method together.

        First, DeepSpeed receives the current settings and weights, because schedules and hooks may have changed them.
        """
        self.zero_grad()
        for number, _, part in self.parts:
            part.update(self.param_groups[number], params=part['params'])
        self.engine.optimizer.refresh_fp32_params()
        self.engine.step()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer for the full parameters, as it would be without DeepSpeed.

        All processes must call this method together. Only the first process gets the state, in CPU memory.
        """
        for _, params, group in self.parts:
            for key, value in self.own.state.get(group['params'][0], {}).items():
                for param, full in zip(params, full_values(key, value, params)):
                    self.state[param][key] = full
        state = super().state_dict()
        self.state.clear()
        return {**state, 'state': dict(sorted(state['state'].items()))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an optimizer for the full parameters, and keep the part of this process."""
        super().load_state_dict(state_dict)
        for _, params, group in self.parts:
            part = group['params'][0]
            self.own.state[part] = {
                key: part_of(key, [self.state[param][key] for param in params], part)
                for key in self.state[params[0]]
            }
        self.state.clear()


def full_values(key: str, value: Any, params: list[Tensor]) -> list[Any]:
    """Return an entry of the optimizer state, such as the momentum, for each parameter.

    The entry `step` is one number for all parameters. Any other entry is gathered. All processes must call this function
    together, and only the first process gets the gathered values; the others get an empty list.
    """
    if key == 'step':
        return [value] * len(params)
    flat = gather(value.to(params[0].device))
    if not is_main_process():
        return []
    sizes = [param.numel() for param in params]
    values = flat[: sum(sizes)].cpu().split(sizes)
    return [value.view_as(param) for value, param in zip(values, params)]


def part_of(key: str, values: list[Any], part: Tensor) -> Any:
    """Return this process's part of an entry of the optimizer state, given the values for all parameters."""
    if key == 'step':
        return values[0]
    flat = torch.cat([value.flatten() for value in values])
    # The part of the last process may be longer than the remaining values, and then ends with zeros.
    padded = flat.new_zeros(part.numel() * get_world_size())
    padded[: len(flat)] = flat
    return padded.view(get_world_size(), -1)[get_rank()].to(part)
