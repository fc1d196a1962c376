"""ZeRO by torch's `fully_shard` (FSDP2): each process holds a shard of the weights, gradients and optimizer state.

    strategy = dict(type='ZeroStrategy', stage=2)

Results are the same as without a strategy. Between steps, each parameter of student and teacher is a float32 DTensor, and
each process stores some of its rows. The optimizer and the teacher's average work on these rows. The forward pass gathers
each block before it runs. The stages differ in when a gathered block is freed and when gradients are exchanged:

    1  freed after the backward pass; gradients are exchanged once per optimizer step, at the last accumulated batch
    2  freed after the backward pass; gradients are exchanged and sharded at each batch
    3  freed after the forward pass and again after the backward pass, so that only the running blocks are gathered;
       gradients are exchanged and sharded at each batch

LARS, clipping and the health curves use norms of full tensors, for which squares are summed over the processes. A checkpoint
is one file with full tensors, so it can be read with any number of processes, with or without a strategy.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from mmengine.device import get_device
from mmengine.optim import OptimWrapper
from mmengine.utils import apply_to
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from mmairl.engine.strategy import Strategy, initialize
from mmairl.models.backbones import blocks
from mmairl.models.processes import norms
from mmairl.registry import STRATEGIES


@STRATEGIES.register_module()
class ZeroStrategy(Strategy):
    """ZeRO by torch's `fully_shard` (FSDP2), for LARS and element-wise optimizers. Results are as without it.

    Args:
        stage: 1, 2 or 3.

    Raises:
        UserError: If the stage is unknown.

    Example:
        >>> strategy = dict(type='ZeroStrategy', stage=2)
    """

    stages = (1, 2, 3)

    def shard(self, model: nn.Module) -> nn.Module:
        """Initialize the model, shard it in place and return it. Its parameters keep their names."""
        device = torch.device(get_device())
        # Weights are initialized on the training device, as without a strategy, because the same seed gives other weights on
        # another device. With stage 3, they are initialized on the CPU, because the GPU may be too small for the full model.
        initialize(model, 'cpu' if self.stage == 3 else device)
        settings = dict(
            mesh=init_device_mesh(device.type, (dist.get_world_size(),)),
            reshard_after_forward=self.stage == 3,
        )
        for side in (model, getattr(model, 'teacher', None)):
            # A frozen teacher is not sharded.
            if hasattr(side, 'backbone'):
                for block in blocks(side.backbone):
                    fully_shard(block, **settings)
        fully_shard(model, **settings)
        model.data_preprocessor.to(device)
        model.register_load_state_dict_pre_hook(shard_weights)
        return model

    def shard_optimizer(self, wrapper: OptimWrapper, model: nn.Module) -> None:
        """Make the optimizer clip by the norm of the full gradients, and make it save and load full tensors."""
        wrapper.clip_func = clip
        wrapper.optimizer.register_state_dict_post_hook(lambda _, state: on_first_host(state))
        wrapper.optimizer.register_load_state_dict_pre_hook(shard_state)
        if self.stage == 1:

            def exchange_at_last_batch(*_: Any) -> None:
                model.set_requires_gradient_sync(wrapper.should_sync())

            model.register_forward_pre_hook(exchange_at_last_batch, prepend=True)

    def weights(self, model: nn.Module) -> dict[str, Any]:
        return on_first_host(model.state_dict())


@torch.no_grad()
def clip(params: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Clip sharded gradients as torch's `clip_grad_norm_` clips full gradients, and return their norm."""
    grads = [param.grad for param in params]
    total = torch.linalg.vector_norm(norms(grads))
    scale = (max_norm / (total + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_([grad.to_local() for grad in grads], scale)
    return total


def on_first_host(tree: Any) -> Any:
    """Replace each DTensor in a nested structure by its full tensor in the first process, and by None in the others.

    The DTensors are gathered one by one and moved to CPU memory, so that a GPU holds only one full tensor at a time.
    """

    def gather(part: DTensor) -> Tensor | None:
        tensor = part.detach().full_tensor()
        return tensor.cpu() if dist.get_rank() == 0 else None

    return apply_to(tree, lambda part: isinstance(part, DTensor), gather)


def shard_like(value: Tensor, part: Tensor) -> Tensor:
    """Return this process's rows of a full tensor, sharded like `part`."""
    value = value.detach().to(part.device)
    return distribute_tensor(value, part.device_mesh, part.placements)


def shard_weights(model: nn.Module, state: dict[str, Any], *_: Any) -> None:
    """Shard the full tensors of a state dict like the model's parameters. The model calls this function before loading."""
    for name, part in model.named_parameters(remove_duplicate=False):
        if isinstance(part, DTensor) and name in state and state[name].shape == part.shape:
            state[name] = shard_like(state[name], part)


def shard_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Shard the full tensors of an optimizer's state, such as momentum, like their parameters.

    The optimizer calls this function before it loads the state.
    """
    params = [param for group in optimizer.param_groups for param in group['params']]
    sharded = {}
    for number, values in state['state'].items():
        part = params[number]
        sharded[number] = dict(values)
        for key, value in values.items():
            if isinstance(value, Tensor) and value.shape == part.shape:
                sharded[number][key] = shard_like(value, part)
    return {**state, 'state': sharded}
