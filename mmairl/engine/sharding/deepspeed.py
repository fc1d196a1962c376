"""ZeRO by DeepSpeed, stages 1 and 2: each process holds a part of the optimizer's state and, in stage 2, of the gradients.

    strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2))

Each process holds the whole weights of student and teacher in float32, so the teacher, the queue and the hooks work as in
an ordinary run; precision comes from autocast. DeepSpeed averages and clips the gradients and steps. It joins parameters
into flat tensors and divides these, so the optimizer must treat each element by itself. Checkpoints are those of an
ordinary run.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from mmengine._strategy.deepspeed import register_deepspeed_optimizers
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import get_rank, is_main_process
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from mmairl.engine.optim.autocast import AutocastOptimWrapper
from mmairl.engine.sharding import Strategy, initialize, read_config, require_known
from mmairl.errors import UserError
from mmairl.models.processes import gather
from mmairl.registry import OPTIM_WRAPPERS, STRATEGIES

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
# Keys of DeepSpeed, and keys of ours that they set.
PLACES = {
    'gradient_accumulation_steps': 'optim_wrapper.accumulative_counts',
    'train_batch_size': 'total_batch_size',
    'train_micro_batch_size_per_gpu': 'train_dataloader.batch_size',
}
DTYPES = {'bf16': 'bfloat16', 'fp16': 'float16'}
WITHOUT_EFFECT = ('steps_per_print', 'wall_clock_breakdown')
KEYS = ('zero_optimization', 'gradient_clipping', *PLACES, *DTYPES, *WITHOUT_EFFECT)
ELEMENTWISE = ('SGD', 'Adam', 'AdamW', 'DeepSpeedCPUAdam')

with suppress(ImportError):
    register_deepspeed_optimizers()


@STRATEGIES.register_module()
class DeepSpeedStrategy(Strategy):
    """ZeRO by DeepSpeed, for optimizers that treat each element by itself.

    Batch sizes, accumulation, clipping and precision set the keys of the config that mean the same. `'auto'` keeps them.

    Args:
        config: A DeepSpeed config, or the path of its JSON file. The other arguments take precedence.
        keys: Keys of a DeepSpeed config.

    Raises:
        UserError: If a key is not supported.

    Example:
        >>> strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2), gradient_clipping=1.0)
    """

    def __init__(self, config: str | dict | None = None, **keys: Any) -> None:
        keys = {**read_config(config), **keys}
        self.keys = {key: value for key, value in keys.items() if value not in (None, 'auto')}
        require_known('strategy', self.keys, KEYS)
        self.zero = self.keys.get('zero_optimization', {})
        require_known('strategy.zero_optimization', self.zero, ZERO_KEYS)
        if self.zero.get('stage') not in (1, 2):
            raise UserError(
                f"strategy.zero_optimization.stage: DeepSpeedStrategy has stages 1 and 2 ('{self.zero.get('stage')}'), "
                'because in stage 3 the teacher would not follow whole weights; set one of them, or '
                "strategy=dict(type='ZeroStrategy', zero_optimization=dict(stage=3))",
                code='unsupported-stage',
            )

    def complete(self, cfg: Config) -> None:
        """Set keys of the config to those of DeepSpeed that mean the same."""
        wrapper = cfg.optim_wrapper
        wrapper.type = 'DeepSpeedOptimWrapper'
        if norm := self.keys.get('gradient_clipping'):
            wrapper.clip_grad = dict(max_norm=norm)
        for key, dtype in DTYPES.items():
            if self.keys.get(key, {}).get('enabled') is True:
                wrapper.dtype = dtype
        cfg.merge_from_dict({PLACES[key]: self.keys[key] for key in PLACES if key in self.keys})

    def shard(self, model: nn.Module) -> nn.Module:
        """Initialize the model. Its weights stay whole."""
        if find_spec('deepspeed') is None:
            raise UserError(
                "strategy: DeepSpeedStrategy requires the package deepspeed; pip install 'mmairl[deepspeed]', or set "
                f"strategy=dict(type='ZeroStrategy', zero_optimization=dict(stage={self.zero['stage']}))",
                code='no-deepspeed',
            )
        initialize(model, get_device())
        return model

    def shard_optimizer(self, wrapper: 'DeepSpeedOptimWrapper', model: nn.Module) -> None:
        """Give the optimizer's parameters and their gradients to DeepSpeed."""
        kind = type(wrapper.optimizer).__name__
        if kind not in ELEMENTWISE:
            raise UserError(
                f"optim_wrapper.optimizer: DeepSpeedStrategy divides layers at any element, for which '{kind}' is wrong or "
                f'untested; set one of {", ".join(ELEMENTWISE)}, or '
                f"strategy=dict(type='ZeroStrategy', zero_optimization=dict(stage={self.zero['stage']}))",
                code='not-elementwise',
            )
        clip = wrapper.clip_grad_kwargs or {}
        if clip.get('norm_type', 2) != 2:
            raise UserError(
                f"optim_wrapper.clip_grad.norm_type: DeepSpeed clips by the 2-norm ('{clip['norm_type']}'); set 2",
                code='unknown-norm',
            )
        config = dict(
            train_micro_batch_size_per_gpu=1,  # required, and unused: the data are ours
            gradient_clipping=clip.get('max_norm', 0.0),
            zero_optimization=self.zero,
            zero_allow_untested_optimizer=True,
            zero_force_ds_cpu_optimizer=False,
        )
        wrapper.optimizer = PartitionedOptimizer(wrapper.optimizer, model, config)
        # mmengine calls the model itself, and DeepSpeed has to see the forward pass.
        model._run_forward = partial(type(model)._run_forward, wrapper.optimizer.engine)


@OPTIM_WRAPPERS.register_module()
class DeepSpeedOptimWrapper(AutocastOptimWrapper):
    """AutocastOptimWrapper for `DeepSpeedStrategy`, which sets it.

    A step is skipped as without DeepSpeed: if the loss or a gradient is not finite in any process.

    Example:
        >>> optim_wrapper = dict(type='DeepSpeedOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
    """

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        self.optimizer.engine.set_gradient_accumulation_boundary(self.should_sync())
        with super().optim_context(model):
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add to the gradients, which become NaN if the loss is not finite, so that DeepSpeed drops them."""
        engine = self.optimizer.engine
        if self.loss_scaler.is_enabled():
            self.optimizer.grad_scale = self.loss_scaler.scale(torch.ones_like(loss)).item()
            engine.optimizer.override_loss_scale(self.optimizer.grad_scale)
        engine.backward(loss * (1 + loss.detach() * 0), **kwargs)
        self._inner_count += 1

    def _check_gradients(self) -> None:
        """Drop the gradients if the loss is not finite; `step` checks them otherwise."""
        if not self.finite:
            self.optimizer.engine.step()

    def step(self, **kwargs: Any) -> None:
        """Step, or drop gradients that are not finite."""
        engine = self.optimizer.engine
        finite = not engine.optimizer.has_overflow()
        if not self.loss_scaler.is_enabled():
            self.finite = finite
        if not finite:
            engine.step()  # drops them
        # The scaler steps or lowers its scale by the gradients it sees, and those of DeepSpeed are out of its sight.
        param = self.optimizer.joined[0][1][0]
        param.grad = torch.full_like(param, 0.0 if finite else torch.inf)
        if finite or self.loss_scaler.is_enabled():
            self.loss_scaler.step(self.optimizer)
        self.loss_scaler.update()
        if self.clip_grad_kwargs:
            self.gradient_norm = torch.as_tensor(engine.get_global_grad_norm())


class PartitionedOptimizer(Optimizer):
    """The optimizer of whole parameters that hooks, schedules and checkpoints see. DeepSpeed holds the divided one.

    Groups of equal settings are joined, because DeepSpeed exchanges data once per group.

    Args:
        optimizer: The optimizer to divide.
        model: The model of its parameters.
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
        # The number of the first group that is joined, the whole parameters, and the group in which DeepSpeed puts parts.
        self.joined = list(joined.values())
        for _, params, group in self.joined:
            group['params'] = list(params)
        optimizer.param_groups[:] = [group for _, _, group in self.joined]
        optimizer.state.clear()
        self.parts = optimizer
        self.engine = start_engine(model, optimizer, config)

    def step(self, closure: None = None) -> None:
        """Step in all processes, with the current settings and weights."""
        self.zero_grad()
        for number, _, part in self.joined:
            settings = self.param_groups[number].items()
            part.update({key: value for key, value in settings if key != 'params'})
        self.engine.optimizer.refresh_fp32_params()
        self.engine.step()

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Register a hook, which sees whole gradients in the parameters."""
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
        """Return the state of whole parameters in host memory, and none in other processes; all processes call this."""
        for _, params, group in self.joined:
            for key, value in self.parts.state.get(group['params'][0], {}).items():
                for param, own in zip(params, whole_values(key, value, params)):
                    self.state[param][key] = own
        state = super().state_dict()
        self.state.clear()
        return {**state, 'state': dict(sorted(state['state'].items()))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of whole parameters, and keep this process's part."""
        super().load_state_dict(state_dict)
        for _, params, group in self.joined:
            part = group['params'][0]
            self.parts.state[part] = {
                key: part_of(key, [self.state[param][key] for param in params], part)
                for key in self.state[params[0]]
            }
        self.state.clear()


def whole_values(key: str, value: Any, params: list[Tensor]) -> list[Any]:
    """Return a value of each parameter's state, in the first process; none in others."""
    if key == 'step':
        return [value] * len(params)
    flat = gather(value.to(params[0].device))
    if not is_main_process():
        return []
    sizes = [param.numel() for param in params]
    values = flat[: sum(sizes)].cpu().split(sizes)
    return [value.view_as(param) for value, param in zip(values, params)]


def part_of(key: str, values: list[Any], part: Tensor) -> Any:
    """Return this process's part of a value of the parameters' states."""
    if key == 'step':
        return values[0]
    flat = torch.cat([value.flatten() for value in values])
    start = get_rank() * part.numel()
    own = torch.zeros_like(part, requires_grad=False)  # the last part is padded
    own[: max(0, len(flat) - start)] = flat[start : start + part.numel()]
    return own


def start_engine(model: nn.Module, optimizer: Optimizer, config: dict[str, Any]) -> Any:
    """Return DeepSpeed's engine for a model on its device."""
    import deepspeed

    logging.getLogger('DeepSpeed').setLevel(logging.WARNING)
    deepspeed.ops.__compatible_ops__ = {}  # compile nothing; a CPU would compile a collective for inference
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
