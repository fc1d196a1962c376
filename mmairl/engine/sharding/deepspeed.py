"""ZeRO by DeepSpeed, stages 1 and 2: each process holds a part of the optimizer's state and, in stage 2, of the gradients.

    strategy = dict(type='DeepSpeedStrategy', zero_optimization=dict(stage=2))

Each process holds the whole weights of student and teacher in float32, so the teacher, the queue and the hooks work as in
an ordinary run; precision comes from autocast. DeepSpeed averages and clips the gradients and steps. It joins parameters
into flat tensors and divides these, so the optimizer must treat each element by itself. Checkpoints are those of an
ordinary run.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
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
from mmairl.engine.sharding import Strategy, initialize, require_known
from mmairl.errors import UserError, explained
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
KEYS = (
    'zero_optimization',
    'bf16',
    'fp16',
    'gradient_accumulation_steps',
    'gradient_clipping',
    'train_batch_size',
    'train_micro_batch_size_per_gpu',
    'steps_per_print',
    'wall_clock_breakdown',
)
# Keys of ours in place of other keys of DeepSpeed.
INSTEAD = {
    'optimizer': 'optim_wrapper.optimizer',
    'scheduler': 'param_scheduler',
    'activation_checkpointing': 'fast.checkpointing',
    'amp': 'optim_wrapper.dtype',
    'torch_autocast': 'optim_wrapper.dtype',
}
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
        for key in self.keys:
            if key not in KEYS:
                raise UserError(
                    f"strategy: DeepSpeedStrategy does not support this key ('{key}'); "
                    + (f'set {INSTEAD[key]}' if key in INSTEAD else 'remove it'),
                    code='unsupported-key',
                )
        self.zero = self.keys.get('zero_optimization', {})
        require_known(self.zero, ZERO_KEYS)
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
        if steps := self.keys.get('gradient_accumulation_steps'):
            wrapper.accumulative_counts = steps
        if norm := self.keys.get('gradient_clipping'):
            wrapper.clip_grad = dict(max_norm=norm)
        for key, dtype in (('bf16', 'bfloat16'), ('fp16', 'float16')):
            if self.keys.get(key, {}).get('enabled') is True:
                wrapper.dtype = dtype
        if images := self.keys.get('train_batch_size'):
            cfg.total_batch_size = images
        if images := self.keys.get('train_micro_batch_size_per_gpu'):
            cfg.train_dataloader.batch_size = images

    def shard(self, model: nn.Module) -> nn.Module:
        """Initialize the model. Its weights stay whole."""
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
            **{key: self.keys[key] for key in KEYS[-2:] if key in self.keys},
        )
        wrapper.optimizer = PartitionedOptimizer(wrapper.optimizer, model, config)
        # mmengine calls the model itself, and DeepSpeed has to see the forward pass.
        model._run_forward = partial(type(model)._run_forward, wrapper.optimizer.engine)

    def weights(self, model: nn.Module) -> dict[str, Any]:
        """Return the state dict of the model, which is whole in each process."""
        return model.state_dict()


def read_config(config: str | dict | None) -> dict[str, Any]:
    """Return a DeepSpeed config, from JSON if it is a path."""
    if not isinstance(config, str):
        return config or {}
    with explained(
        f'strategy.config: cannot be read ({config})',
        'give a JSON file of DeepSpeed',
        (OSError, ValueError),
    ):
        return json.loads(Path(config).read_text())


@OPTIM_WRAPPERS.register_module()
class DeepSpeedOptimWrapper(AutocastOptimWrapper):
    """AutocastOptimWrapper for `DeepSpeedStrategy`, which sets it.

    A step is skipped as without DeepSpeed: if the loss or a gradient is not finite in any process.

    Example:
        >>> optim_wrapper = dict(type='DeepSpeedOptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.loss_scaler.is_enabled():
            # The scaler checks gradients for itself, and DeepSpeed has already: it is shown one with the same answer.
            self.verdict = nn.Parameter(torch.zeros((), device=self.device_type))
            self.loss_scaler.scale(self.verdict)  # creates its state

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        self.optimizer.engine.set_gradient_accumulation_boundary(self.should_sync())
        with super().optim_context(model):
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add to the gradients, which become NaN if the loss is not finite, so that DeepSpeed skips the step."""
        engine = self.optimizer.engine
        if self.loss_scaler.is_enabled():
            self.optimizer.grad_scale = self.loss_scaler.get_scale()
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
        if finite:
            self.optimizer.step()
        else:
            engine.step()  # drops them
        if self.clip_grad_kwargs:
            self.gradient_norm = torch.as_tensor(engine.get_global_grad_norm())
        if not self.loss_scaler.is_enabled():
            self.finite = finite
            return
        self._applied = finite
        self.verdict.grad = torch.full_like(self.verdict, 0.0 if finite else torch.inf)
        shown = torch.optim.SGD([self.verdict], lr=0.0)
        self.loss_scaler.unscale_(shown)
        self.loss_scaler.step(shown)
        self.loss_scaler.update()


class PartitionedOptimizer(Optimizer):
    """The optimizer of whole parameters that hooks, schedules and checkpoints see. DeepSpeed holds the divided one.

    Groups of equal settings are joined, because DeepSpeed exchanges data once per group.

    Args:
        optimizer: The optimizer to divide.
        model: The model of its parameters.
        config: The DeepSpeed config.
    """

    def __init__(self, optimizer: Optimizer, model: nn.Module, config: dict[str, Any]) -> None:
        super().__init__([dict(group) for group in optimizer.param_groups], optimizer.defaults)
        self.clip = config['gradient_clipping']
        joined: dict[
            str, tuple[int, list[Tensor]]
        ] = {}  # the number of the first group, and parameters
        for number, group in enumerate(self.param_groups):
            settings = {key: value for key, value in group.items() if key != 'params'}
            trained = [param for param in group['params'] if param.requires_grad]
            if trained:
                joined.setdefault(str(settings), (number, []))[1].extend(trained)
        self.joined = list(joined.values())
        optimizer.state.clear()
        optimizer.param_groups[:] = [
            {**self.param_groups[number], 'params': params} for number, params in self.joined
        ]
        self.parts = optimizer
        self.engine = start_engine(model, optimizer, config)

    def step(self, closure: None = None) -> None:
        """Step in all processes, with the settings and the whole weights of now."""
        for (number, _), part in zip(self.joined, self.parts.param_groups):
            settings = self.param_groups[number]
            part.update({key: value for key, value in settings.items() if key != 'params'})
        self.engine.optimizer.refresh_fp32_params()
        self.engine.step()

    def register_step_pre_hook(self, hook: Callable) -> RemovableHandle:
        """Register a hook, which sees whole gradients in the parameters."""
        return super().register_step_pre_hook(partial(self._with_gradients, hook))

    def _with_gradients(self, hook: Callable, *args: Any) -> None:
        from deepspeed.utils import safe_get_full_grad

        params = [param for _, params in self.joined for param in params]
        for param in params:
            param.grad = safe_get_full_grad(param)
        if self.clip:
            nn.utils.clip_grad_norm_(params, self.clip * getattr(self, 'grad_scale', 1.0))
        hook(*args)
        self.zero_grad()

    @torch.no_grad()
    def state_dict(self) -> dict[str, Any]:
        """Return the state of whole parameters in host memory, and none in other processes; all processes call this."""
        for params, part in self._parts():
            for key, value in self.parts.state.get(part, {}).items():
                for param, own in zip(params, whole_values(key, value, params)):
                    self.state[param][key] = own
        state = super().state_dict()
        self.state.clear()
        return {**state, 'state': dict(sorted(state['state'].items()))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of whole parameters, and keep this process's part."""
        super().load_state_dict(state_dict)
        for params, part in self._parts():
            self.parts.state[part] = {
                key: part_of(key, [self.state[param][key] for param in params], part)
                for key in self.state[params[0]]
            }
        self.state.clear()

    def _parts(self) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Yield the whole parameters of each joined group, and this process's part of them."""
        for (_, params), group in zip(self.joined, self.parts.param_groups):
            yield params, group['params'][0]


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
