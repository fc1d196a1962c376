"""ZeRO: every process keeps a part of the weights, the gradients and the optimizer's state, by torch's `fully_shard`.

    strategy = dict(type='ZeroStrategy', zero_optimization=dict(stage=2))

The numbers are those of an ordinary run. Between steps each parameter, the teacher's as well, is a float32 DTensor of which a
process has the rows that fall to it; the optimizer and the teacher's average work on those rows. In a forward pass each block
is put together before it runs. The stages differ in when it is taken apart again:

    1  after the backward pass; accumulated batches exchange their gradients once, at the last one
    2  after the backward pass; every batch's gradients are exchanged and divided at once
    3  after the forward pass too, so that only the blocks at work are whole

What needs the norm of a whole tensor (LARS, clipping, health) adds up the squares over the processes. Checkpoints are those
of an ordinary run: one file with whole tensors, which any number of processes, any stage and no strategy at all can read.
"""

import copy
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.dist import broadcast
from mmengine.utils import apply_to
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from mmairl.errors import UserError
from mmairl.models.backbones import blocks
from mmairl.models.norm import norms_of
from mmairl.models.processes import norms

OFFLOADS = ('offload_optimizer', 'offload_param')


def check(strategy: dict) -> None:
    """Refuse a strategy that this file does not carry out."""
    zero = strategy.get('zero_optimization') or {}
    if str(strategy.get('type')).removeprefix('mmairl.') != 'ZeroStrategy':
        raise UserError(
            f"strategy.type='{strategy.get('type')}' would train LARS and the teacher wrong; "
            "set strategy=dict(type='ZeroStrategy', zero_optimization=dict(stage=2))"
        )
    if zero.get('stage') not in (1, 2, 3):
        raise UserError(f'strategy.zero_optimization.stage={zero.get("stage")} is not one of ZeRO; set 1, 2 or 3')
    for part in OFFLOADS:
        if (device := (zero.get(part) or {}).get('device', 'cpu')) != 'cpu':
            raise UserError(f"strategy.zero_optimization.{part}.device='{device}' is not supported; set 'cpu'")


def shard(model: nn.Module, strategy: dict) -> nn.Module:
    """Initialise the network, cut it up in place and return it; its parameters keep their names."""
    check(strategy)
    zero, device = strategy['zero_optimization'], torch.device(get_device())
    if not dist.is_initialized():  # one process is a group, too
        os.environ.setdefault('LOCAL_RANK', '0')
        dist.init_process_group(
            'nccl' if device.type == 'cuda' else 'gloo', store=dist.HashStore(), rank=0, world_size=1
        )
    # Initialised where an ordinary run does, so that one seed gives the same weights; for stage 3 the GPU may be too small.
    model.to('cpu' if zero['stage'] == 3 else device, memory_format=torch.contiguous_format)
    model.init_weights()
    for value in model.state_dict().values():
        if isinstance(value, Tensor):
            broadcast(value)
    sides = [side for side in (model, getattr(model, 'teacher', None)) if side is not None]
    for side in sides:
        side.backbone.__deepcopy__ = partial(plain_copy, side.backbone, without_storage(side.backbone))
    offload = any(zero.get(part) for part in OFFLOADS)
    settings = dict(
        mesh=init_device_mesh(device.type, (dist.get_world_size(),)),
        offload_policy=CPUOffloadPolicy(pin_memory=device.type == 'cuda') if offload else OffloadPolicy(),
    )
    half = torch.bfloat16 if (strategy.get('bf16') or {}).get('enabled') else None
    narrow = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None)
    reshard = zero['stage'] == 3
    if half:  # running statistics are float32, and batch norm wants its weights in the same type
        for layer in norms_of(model):
            policy = MixedPrecisionPolicy(cast_forward_inputs=False)
            fully_shard(layer, mp_policy=policy, reshard_after_forward=reshard, **settings)
    for side in sides:
        for block in blocks(side.backbone):
            fully_shard(block, mp_policy=narrow, reshard_after_forward=reshard, **settings)
    fully_shard(model, mp_policy=narrow, reshard_after_forward=reshard, **settings)
    model.data_preprocessor.to(device)
    if zero['stage'] == 1:
        model.no_sync = partial(without_exchange, model)  # what OptimWrapper.optim_context asks for
    model.register_load_state_dict_pre_hook(cut_weights)
    return model


def shard_optimizer(wrapper) -> None:
    """Have an optimizer of sharded parameters clip by the norm of whole ones, and save what an ordinary run saves."""
    optimizer = wrapper.optimizer
    wrapper.device_type = get_device()  # offloaded weights are on the host, and the network computes on the device
    wrapper.clip_func = clip
    optimizer.register_state_dict_post_hook(lambda _, state: on_first_host(state))
    optimizer.register_load_state_dict_pre_hook(cut_state)


@contextmanager
def without_exchange(model: nn.Module) -> Iterator[None]:
    """As DDP's `no_sync`: gradients stay whole on each process and are added up there."""
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


@torch.no_grad()
def clip(params: Iterable[nn.Parameter], max_norm: float, norm_type: float = 2.0) -> Tensor:
    """`clip_grad_norm_` for gradients in parts."""
    if norm_type != 2:
        raise UserError(f'ZeRO clips gradients by their 2-norm and not by clip_grad.norm_type={norm_type}')
    grads = [param.grad for param in params]
    total = torch.linalg.vector_norm(norms(grads))
    torch._foreach_mul_([grad.to_local() for grad in grads], (max_norm / (total + 1e-6)).clamp(max=1.0))
    return total


def whole(part: Tensor) -> Tensor:
    """A DTensor put together; all processes call it."""
    return part.detach().to(part.device_mesh.device_type).full_tensor()


def on_first_host(tree: Any) -> Any:
    """Any structure with its DTensors put together in the first process's host memory, one at a time; None elsewhere."""

    def join(part: DTensor) -> Tensor | None:
        found = whole(part)
        return found.cpu() if dist.get_rank() == 0 else None

    return apply_to(tree, lambda part: isinstance(part, DTensor), join)


def whole_weights(model: nn.Module) -> OrderedDict[str, Any]:
    """The network's state as an ordinary run saves it; all processes call it, the first gets it."""
    state = model.state_dict()
    for name, value in state.items():
        state[name] = on_first_host(value)
    return state


def like(value: Tensor, part: Tensor) -> Tensor:
    """This process's rows of a whole tensor, laid out as `part` is."""
    mesh, home = part.device_mesh, part.to_local().device
    cut = distribute_tensor(value.detach().to(mesh.device_type), mesh, part.placements)
    return cut.to(home)


def cut_weights(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Before loading: cut whole tensors as the network's are."""
    for name, part in model.named_parameters(remove_duplicate=False):
        if isinstance(part, DTensor) and name in state and state[name].shape == part.shape:
            state[name] = like(state[name], part)


def cut_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Before loading: cut what is kept of each element, such as the momentum, as its parameter is."""
    params = [param for group in optimizer.param_groups for param in group['params']]
    cut = {}
    for number, kept in state['state'].items():
        part = params[number]
        cut[number] = {
            key: like(value, part) if isinstance(value, Tensor) and value.shape == part.shape else value
            for key, value in kept.items()
        }
    return {**state, 'state': cut}


def without_storage(module: nn.Module) -> nn.Module:
    """A copy whose parameters have a shape and no memory."""
    memo = {id(p): nn.Parameter(p.detach().to('meta'), p.requires_grad) for p in module.parameters()}
    return copy.deepcopy(module, memo)


@torch.no_grad()
def plain_copy(module: nn.Module, empty: nn.Module, memo: dict) -> nn.Module:
    """Copy a part of a sharded network as `copy.deepcopy` does: a plain module with whole weights in every process."""
    found = copy.deepcopy(empty, memo)
    weights = {
        name: whole(value) if isinstance(value, DTensor) else value for name, value in module.state_dict().items()
    }
    found.load_state_dict(weights, assign=True)
    for own, theirs in zip(found.buffers(), module.buffers()):
        own.data = theirs.detach().clone()
    return found
