"""ZeRO by DeepSpeed, stages 1 and 2: each process holds a part of the optimizer state and, in stage 2, of the gradients.

    strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2))

Each process holds the full weights of student and teacher in float32, so the teacher, the queue and the hooks work as without
a strategy. Mixed precision is torch's autocast. DeepSpeed averages the gradients, clips them, and updates the weights. It
joins parameters into flat tensors and splits these at arbitrary elements. Only optimizers that treat each element separately
are therefore correct. Checkpoints have the same format as without a strategy.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import get_rank, is_main_process
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.sharding import Strategy, initialize, read_config, require_supported
from mmairl.errors import UserError, explained
from mmairl.models.processes import gather
from mmairl.registry import OPTIM_WRAPPERS, OPTIMIZERS, STRATEGIES

ZERO_KEYS = (
    'stage',
    'offload_optimizer',
    'overlap_comm',
    'contiguous_gradients',
    'reduce_scatter',
    'reduce_bucket_size',
    'allgather_partitions',
    'allgather_bucket_size',
)
# These keys of DeepSpeed set keys of the training config.
PLACES = {
    'gradient_accumulation_steps': 'optim_wrapper.accumulative_counts',
    'train_batch_size': 'total_batch_size',
    'train_micro_batch_size_per_gpu': 'train_dataloader.batch_size',
}
DTYPES = {'bf16': 'bfloat16', 'fp16': 'float16'}
WITHOUT_EFFECT = ('steps_per_print', 'wall_clock_breakdown')
KEYS = ('zero_optimization', 'gradient_clipping', *PLACES, *DTYPES, *WITHOUT_EFFECT)
ELEMENTWISE = ('SGD', 'AdamW', 'DeepSpeedCPUAdam')

with suppress(ImportError):
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    OPTIMIZERS.register_module(module=DeepSpeedCPUAdam)


@STRATEGIES.register_module()
class DeepSpeedStrategy(Strategy):
    """ZeRO by DeepSpeed, for optimizers that treat each element separately, such as SGD and AdamW.

    If the DeepSpeed config sets batch sizes, accumulation, clipping or precision, these values replace the values of the
    corresponding keys in the training config.

    Args:
        config: A DeepSpeed config, or the path of its JSON file. Default: None (an empty config).
        keys: Keys of a DeepSpeed config, which take precedence over `config`. For a key with the value `'auto'`, the value
            in the training config applies.

    Raises:
        UserError: If a key or the stage is not supported.

    Example:
        >>> strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2), gradient_clipping=1.0)
    """

    def __init__(self, config: str | dict | None = None, **keys: Any) -> None:
        keys = {**read_config(config), **keys}
        self.keys = {key: value for key, value in keys.items() if value not in (None, 'auto')}
        require_supported('strategy', self.keys, KEYS)
        self.zero = self.keys.get('zero_optimization', {})
        require_supported('strategy.zero_optimization', self.zero, ZERO_KEYS)
        if self.zero.get('stage') not in (1, 2):
            raise UserError(
                f"strategy.zero_optimization.stage: DeepSpeedStrategy supports 1 and 2 ('{self.zero.get('stage')}'); set one "
                'of them, or use ZeroStrategy (--strategy zero3)',
                code='unsupported-stage',
            )

    def complete(self, cfg: Config) -> None:
        """Set the keys of the training config that correspond to keys of DeepSpeed."""
        wrapper = cfg.optim_wrapper
        wrapper.type = 'DeepSpeedOptimWrapper'
        if norm := self.keys.get('gradient_clipping'):
            wrapper.clip_grad = dict(max_norm=norm)
        for key, dtype in DTYPES.items():
            if self.keys.get(key, {}).get('enabled') is True:
                wrapper.dtype = dtype
        cfg.merge_from_dict({PLACES[key]: self.keys[key] for key in PLACES if key in self.keys})
        if wrapper.optimizer.type == 'DeepSpeedCPUAdam':
            compile_cpu_adam()

    def shard(self, model: nn.Module) -> nn.Module:
        if find_spec('deepspeed') is None:
            raise UserError(
                "strategy: DeepSpeedStrategy requires deepspeed, which is not installed; run pip install 'mmairl[deepspeed]', "
                f'or use ZeroStrategy (--strategy zero{self.zero["stage"]})',
                code='no-deepspeed',
            )
        initialize(model, get_device())
        return model

    def shard_optimizer(self, wrapper: 'DeepSpeedOptimWrapper', model: nn.Module) -> None:
        kind = type(wrapper.optimizer).__name__
        if kind not in ELEMENTWISE:
            raise UserError(
                f'optim_wrapper.optimizer: DeepSpeedStrategy supports only optimizers that treat each element separately '
                f"('{kind}'); set one of {', '.join(ELEMENTWISE)}, or use ZeroStrategy (--strategy zero{self.zero['stage']})",
                code='not-elementwise',
            )
        clip = wrapper.clip_grad_kwargs or {}
        if clip.get('norm_type', 2) != 2:
            raise UserError(
                f"optim_wrapper.clip_grad.norm_type: DeepSpeed supports only the 2-norm ('{clip['norm_type']}'); set 2",
                code='unknown-norm',
            )
        config = dict(
            # DeepSpeed requires a batch size but does not use it, because it does not load the data.
            train_micro_batch_size_per_gpu=1,
            gradient_clipping=clip.get('max_norm', 0.0),
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

    A step is skipped if the loss or a gradient is not finite in one process or more.

    Example:
        >>> optim_wrapper = dict(type='DeepSpeedOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        self.optimizer.engine.set_gradient_accumulation_boundary(self.should_sync())
        with super().optim_context(model):
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of a batch to the accumulated gradients. If the loss is not finite, make the gradients NaN.

        DeepSpeed drops gradients that are NaN.
        """
        engine = self.optimizer.engine
        if self.loss_scaler.is_enabled():
            self.optimizer.grad_scale = self.loss_scaler.scale(torch.ones_like(loss)).item()
            engine.optimizer.override_loss_scale(self.optimizer.grad_scale)
        engine.backward(loss * (1 + loss.detach() * 0), **kwargs)
        self._inner_count += 1

    def _check_gradients(self) -> None:
        """Drop the gradients if the loss is not finite. Whether gradients are finite is checked in `step`."""
        if not self.finite:
            self.optimizer.engine.step()

    def step(self, **kwargs: Any) -> None:
        """Update the weights, or drop the gradients if they are not finite."""
        engine = self.optimizer.engine
        finite = not engine.optimizer.has_overflow()
        if not self.loss_scaler.is_enabled():
            self.finite = finite
        if not finite:
            # DeepSpeed's step drops gradients that are not finite.
            engine.step()
        # The loss scaler cannot see DeepSpeed's gradients. It sees this gradient instead: 0 makes the scaler step, and
        # infinity makes it lower its scale.
        param = self.optimizer.joined[0][1][0]
        param.grad = torch.full_like(param, 0.0 if finite else torch.inf)
        if finite or self.loss_scaler.is_enabled():
            self.loss_scaler.step(self.optimizer)
        self.loss_scaler.update()
        if self.clip_grad_kwargs:
            self.gradient_norm = torch.as_tensor(engine.get_global_grad_norm())


class PartitionedOptimizer(Optimizer):
    """An optimizer that DeepSpeed splits over the processes. Hooks, schedules and checkpoints see full parameters.

    DeepSpeed works on the original optimizer, in which groups with equal settings are joined, because DeepSpeed communicates
    once per group.

    Args:
        optimizer: The optimizer to split.
        model: The model that the optimizer trains.
        config: The DeepSpeed config.
    """

    grad_scale = 1.0

    def __init__(self, optimizer: Optimizer, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        joined: dict[str, tuple[int, list[Tensor], dict]] = {}
        for number, group in enumerate(self.param_groups):
            settings = {key: value for key, value in group.items() if key != 'params'}
            trained = [param for param in group['params'] if param.requires_grad]
            if trained:
                joined.setdefault(str(settings), (number, [], settings))[1].extend(trained)
        # For each set of joined groups: the index of its first group, the full parameters of all its groups, and the joined
        # group, whose parameters DeepSpeed replaces.
        self.joined = list(joined.values())
        for _, params, group in self.joined:
            group['params'] = list(params)
        optimizer.param_groups[:] = [group for _, _, group in self.joined]
        optimizer.state.clear()
        self.parts = optimizer
        self.engine = start_engine(model, optimizer, config)

    def step(self, closure: None = None) -> None:
        """Update the weights. All processes must call this method together.

        First, DeepSpeed receives the current settings and weights, because schedules and hooks may have changed them.
        """
        self.zero_grad()
        for number, _, part in self.joined:
            settings = self.param_groups[number].items()
            part.update({key: value for key, value in settings if key != 'params'})
        self.engine.optimizer.refresh_fp32_params()
        self.engine.step()

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Register a hook that is called before each step, when the parameters have their full gradients."""
        return super().register_step_pre_hook(partial(self._with_gradients, hook))

    def _with_gradients(self, hook: Callable, *args: Any) -> None:
        from deepspeed.utils import safe_get_full_grad

        self.zero_grad()
        params = [param for _, params, _ in self.joined for param in params]
        for param in params:
            param.grad = safe_get_full_grad(param)
        if clip := self.engine.gradient_clipping():
            nn.utils.clip_grad_norm_(params, clip * self.grad_scale)
        hook(*args)

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer for the full parameters, as it would be without DeepSpeed.

        All processes must call this method together. Only the first process gets the state, in CPU memory.
        """
        for _, params, group in self.joined:
            for key, value in self.parts.state.get(group['params'][0], {}).items():
                for param, full in zip(params, full_values(key, value, params)):
                    self.state[param][key] = full
        state = super().state_dict()
        self.state.clear()
        return {**state, 'state': dict(sorted(state['state'].items()))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of an optimizer for the full parameters, and keep the part of this process."""
        super().load_state_dict(state_dict)
        for _, params, group in self.joined:
            part = group['params'][0]
            self.parts.state[part] = {
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
    start = get_rank() * part.numel()
    # The part of the last process may be longer than the remaining values, and then ends with zeros.
    padded = torch.zeros_like(part, requires_grad=False)
    padded[: max(0, len(flat) - start)] = flat[start : start + part.numel()]
    return padded


def compile_cpu_adam() -> None:
    """Compile DeepSpeedCPUAdam unless it is compiled already."""
    from deepspeed.ops.op_builder import CPUAdamBuilder

    advice = (
        'install a C++ compiler and use an environment whose path has no space, '
        "or set optim_wrapper.optimizer.type='AdamW'"
    )
    with explained('DeepSpeedCPUAdam: cannot be compiled', advice, code='not-compiled'):
        CPUAdamBuilder().load()


def start_engine(model: nn.Module, optimizer: Optimizer, config: dict[str, Any]) -> Any:
    import deepspeed

    logging.getLogger('DeepSpeed').setLevel(logging.WARNING)
    # Without this line, DeepSpeed would, on a CPU, compile a collective operation that only inference uses.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
