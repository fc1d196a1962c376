"""The optimizer's wrapper under ZeRO: our accumulation, clipping and skipped steps, carried out by DeepSpeed's engine."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import Tensor, nn
from torch.optim import Optimizer

from mmairl.errors import UserError
from mmairl.optim.autocast import AutocastOptimWrapper
from mmairl.registry import OPTIM_WRAPPERS

SCALER = ('cur_scale', 'cur_iter', 'last_overflow_iter', 'cur_hysteresis')  # what float16's loss scale goes on from


@OPTIM_WRAPPERS.register_module()
class ZeroOptimWrapper(AutocastOptimWrapper):
    """Takes over what a config's wrapper was built with; the strategy builds it and sets `engine` and `layout`.

    A loss that is not finite becomes a gradient of NaNs, which DeepSpeed sees in its norm, and with which it takes no step.
    """

    def __init__(self, built: AutocastOptimWrapper) -> None:
        optimizer = built.optimizer
        OptimWrapper.__init__(self, optimizer, built._accumulative_counts)
        self.clip_grad = built.clip_grad_kwargs
        self.base_param_settings = built.base_param_settings
        self.finite, self._applied, self._seen = True, True, built._seen
        self.numbering = Numbering(optimizer)

    @property
    def stepped(self) -> bool:
        """Whether the last `update_params` moved the weights: a float16 step whose gradients overflowed did not."""
        return self.finite and self._applied and self.should_update()

    def update_params(self, loss: Tensor, step_kwargs: dict | None = None, zero_kwargs: dict | None = None) -> None:
        self._seen.add(loss)
        last = self.should_sync()  # of the batches whose gradients make up one step
        if last:
            self._seen.fetch()
        self.engine.set_gradient_accumulation_boundary(last)
        self.backward(self.scale_loss(loss) * torch.where(torch.isfinite(loss.detach()), 1.0, float('nan')))
        self.step()
        if last:
            self._applied = self.engine.was_step_applied()
            finite = self._seen.read()
            self.finite = finite and (self._applied or self.engine.fp16_enabled())
            if self.clip_grad and self._applied:
                self.message_hub.update_scalar('train/grad_norm', float(self.engine.get_global_grad_norm()))

    def backward(self, loss: Tensor, **kwargs) -> None:
        self.engine.backward(loss, scale_wrt_gas=False, **kwargs)
        self._inner_count += 1

    def step(self, **kwargs) -> None:
        """DeepSpeed's step, which moves the weights at the last of the batches and counts at the others."""
        self.engine.step()

    def zero_grad(self, **kwargs) -> None:
        """The engine drops the gradients itself."""

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        """The engine casts, and exchanges gradients as its stage wants it."""
        yield

    def state_dict(self) -> dict[str, Any] | None:
        """What the same optimizer without shards would save, in the first process; None in the others."""
        state: dict[int, dict[str, Any]] = {}
        for number, shard in enumerate(self.layout.shards):
            for name, value in self.optimizer.state.get(shard, {}).items():
                of_elements = isinstance(value, Tensor) and value.shape == shard.shape
                whole = self.layout.whole(number, value) if of_elements else None
                for index, parameter in enumerate(self.layout.parameters[number]):
                    one = state.setdefault(self.numbering.number[id(parameter)], {})
                    one[name] = whole[index] if whole else value
        if torch.distributed.get_rank() != 0:
            return None
        found = dict(state=dict(sorted(state.items())), param_groups=self.numbering.groups_of(self.optimizer))
        found['loss_scaler'] = {}
        if self.engine.fp16_enabled():
            scaler = self.engine.optimizer.loss_scaler  # one that does not adapt has fewer
            found['zero_loss_scaler'] = {key: getattr(scaler, key) for key in SCALER if hasattr(scaler, key)}
        if self.base_param_settings is not None:
            found['base_param_settings'] = self.base_param_settings
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint of any number of processes, any stage, or none."""
        self.numbering.check(state_dict['param_groups'])
        for group, saved in zip(self.numbering.live(self.optimizer), state_dict['param_groups']):
            group.update({key: value for key, value in saved.items() if key in group and key != 'params'})
        for number, shard in enumerate(self.layout.shards):
            of = [state_dict['state'].get(self.numbering.number[id(p)], {}) for p in self.layout.parameters[number]]
            self.optimizer.state[shard] = self._shard_of(number, shard, of)
        self.base_param_settings = state_dict.get('base_param_settings', self.base_param_settings)
        for key, value in state_dict.get('zero_loss_scaler', {}).items():
            setattr(self.engine.optimizer.loss_scaler, key, value)

    def _shard_of(self, number: int, shard: Tensor, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        found, fused = {}, any(group.get('fused') or group.get('capturable') for group in self.optimizer.param_groups)
        for name, one in next(filter(None, states), {}).items():
            if isinstance(one, Tensor) and one.dim() > 0:
                found[name] = torch.zeros_like(shard, requires_grad=False)
                self.layout.fill(number, found[name], [state.get(name) for state in states])
            elif one is not None:  # a count of steps, which fused steps want on the device
                found[name] = (
                    one.to(shard.device if fused else one.device, copy=True) if isinstance(one, Tensor) else one
                )
        return found


class Numbering:
    """How an optimizer's parameters were grouped and numbered before ZeRO took them: so they stand in a checkpoint.

    Groups that differ in their parameters only are joined, and what does not learn is left out: DeepSpeed makes a shard,
    with collectives of its own, of each group.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.saved = optimizer.state_dict()['param_groups']
        parameters = [parameter for group in optimizer.param_groups for parameter in group['params']]
        self.number = {id(parameter): number for number, parameter in enumerate(parameters)}
        self.shapes = [parameter.shape for parameter in parameters]
        joined: dict[str, dict] = {}
        self.names = []
        for group in optimizer.param_groups:
            name = repr(sorted((key, value) for key, value in group.items() if key != 'params'))
            learning = [parameter for parameter in group['params'] if parameter.requires_grad]
            if learning:
                joined.setdefault(name, {**group, 'params': []})['params'] += learning
            self.names.append(name)
        self.place = {name: place for place, name in enumerate(joined)}
        optimizer.param_groups[:] = list(joined.values())

    def live(self, optimizer: Optimizer) -> list[dict]:
        """The group that each of the original ones has become; for one without learning parameters, what it was."""
        groups = optimizer.param_groups
        return [
            groups[self.place[name]] if name in self.place else saved for name, saved in zip(self.names, self.saved)
        ]

    def groups_of(self, optimizer: Optimizer) -> list[dict]:
        """The original groups with the rates of now."""
        return [{**live, 'params': saved['params']} for live, saved in zip(self.live(optimizer), self.saved)]

    def check(self, saved: list[dict]) -> None:
        """Refuse another optimizer's state."""
        own, theirs = (([len(group['params']) for group in groups], told(groups)) for groups in (self.saved, saved))
        if own != theirs:
            raise UserError(
                f'the checkpoint holds the state of an optimizer with {theirs[1]}, and this run has one with {own[1]}; resume '
                'with the config it was made with, or set load_from without resume'
            )


def told(groups: list[dict]) -> str:
    """An optimizer by its groups and by what tells SGD, LARS and Adam apart; other keys come and go with torch's versions."""
    keys = [key for key in ('momentum', 'betas', 'eta') if key in groups[0]]
    parameters = sum(len(group['params']) for group in groups)
    return f'{parameters} parameters in {len(groups)} group{"s" * (len(groups) > 1)} and {" and ".join(keys) or "no memory"}'
