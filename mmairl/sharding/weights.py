"""Whole weights out of shards, and into them: the state that an ordinary run would save."""

from collections import OrderedDict
from functools import cached_property

import torch
import torch.distributed as dist
from mmengine.dist import broadcast
from mmengine.logging import print_log
from torch import Tensor, nn

from mmairl.sharding.layout import Layout, own_part, shape_of, to_first
from mmairl.sharding.teacher import Masters


class Weights:
    """A model's weights, wherever its parts are: in the optimizer's shards, in the teacher's masters or in the modules."""

    def __init__(self, model: nn.Module, layout: Layout, masters: Masters | None) -> None:
        self.model, self.layout, self.masters = model, layout, masters
        if layout.stage3:
            model.register_state_dict_post_hook(with_whole_shapes)

    @cached_property
    def sharded(self) -> set[int]:
        """The parameters that a shard or a master holds: they are put together from there."""
        found = {id(parameter) for group in self.layout.parameters for parameter in group}
        if self.masters is not None:
            found |= {id(teacher) for group in self.masters.teachers for teacher in group if teacher is not None}
        return found

    @torch.no_grad()
    def whole(self) -> OrderedDict[str, Tensor]:
        """The model's state as an ordinary run saves it, in the first process; the others help to put it together."""
        values: dict[int, Tensor] = {} if self.masters is None else self.masters.whole()
        for number, shard in enumerate(self.layout.shards):
            whole = self.layout.whole(number, shard) if self._apart(number) else None
            values.update(zip(map(id, self.layout.parameters[number]), whole or []))
        found = self.model.state_dict()
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            value = values.get(id(parameter))
            if self.layout.stage3 and id(parameter) not in self.sharded:
                value = put_together(parameter)
            value = parameter.detach() if value is None else value
            found[name] = value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
        return found

    def _apart(self, number: int) -> bool:
        """Whether the modules have less than the shard: parts under stage 3, rounded values in half precision."""
        return self.layout.stage3 or self.layout.parameters[number][0].dtype != self.layout.shards[number].dtype

    def of_part(self, part: nn.Module) -> dict[str, Tensor]:
        """The weights of a part of the model as an ordinary run has them, in every process."""
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        whole, found = self.whole(), {}
        for name, parameter in part.named_parameters():
            value = whole[names[id(parameter)]] if dist.get_rank() == 0 else torch.empty(shape_of(parameter))
            found[name] = value.detach().to(parameter.device, copy=True).contiguous()
            broadcast(found[name])
        return found

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor]) -> None:
        """Take whole weights in, from any checkpoint; what does not fit by name and shape is named and left out."""
        own = dict(self.model.named_parameters(remove_duplicate=False))
        self.model.load_state_dict({name: value for name, value in weights.items() if name not in own}, strict=False)
        fits = {name: weights[name] for name in own if name in weights and weights[name].shape == shape_of(own[name])}
        if left := [name for name in own if name not in fits]:
            print_log(f'not in the checkpoint, or of another shape: {", ".join(left)}', logger='current')
        values = {id(own[name]): value for name, value in fits.items()}
        for number, shard in enumerate(self.layout.shards):
            self.layout.fill(number, shard, [values.get(id(parameter)) for parameter in self.layout.parameters[number]])
        self._renew_working_copies()
        for name, value in fits.items():
            if id(own[name]) not in self.sharded:
                keep_part(own[name], value) if self.layout.stage3 else own[name].copy_(value)
        if self.masters is not None:
            self.masters.load(values)

    def _renew_working_copies(self) -> None:
        """Have the modules compute with what the shards hold now."""
        optimizer = self.layout.optimizer
        if not self.layout.stage3:
            optimizer.update_lp_params()
            return
        for number in range(len(self.layout.shards)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)


def with_whole_shapes(model: nn.Module, state: dict[str, Tensor], prefix: str, _: dict) -> None:
    """Let `state_dict` say the shapes of parameters in shards, for checks; who takes them for values fails at once."""
    for name, parameter in model.named_parameters(remove_duplicate=False):
        state[prefix + name] = torch.empty(shape_of(parameter), dtype=parameter.dtype, device='meta')


def put_together(parameter: nn.Parameter) -> Tensor | None:
    """A parameter that stage 3 keeps in parts and no optimizer has, in the first process's host memory."""
    parts = to_first(parameter.ds_tensor.view(-1))
    return None if parts is None else torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)


def keep_part(parameter: nn.Parameter, value: Tensor) -> None:
    """This process's part of a whole tensor, where stage 3 keeps it."""
    own, start = own_part(parameter), dist.get_rank() * parameter.ds_tensor.numel()
    own.copy_(value.reshape(-1)[start : start + len(own)])
