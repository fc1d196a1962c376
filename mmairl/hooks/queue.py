"""What enters the queue, and when."""

import random

import torch
import torch.distributed as dist
from mmengine.dist import broadcast, get_world_size
from mmengine.hooks import Hook
from mmengine.model import is_model_wrapper
from mmengine.runner import Runner
from torch import Tensor

from mmairl.registry import HOOKS


def gather(keys: Tensor) -> Tensor:
    """The keys of all processes in rank order, by one collective."""
    if get_world_size() == 1:
        return keys
    everyone = keys.new_empty(get_world_size() * len(keys), *keys.shape[1:])
    dist.all_gather_into_tensor(everyone, keys.contiguous())
    return everyone


@HOOKS.register_module()
class QueueHook(Hook):
    """After each optimizer step, enqueues the teacher's keys of all processes; a network without a queue is left alone.

    With keys of several views, one view is drawn at random: from the seed and the step rather than from a
    generator's state, so that all processes and a resumed run draw the same.
    """

    def before_train(self, runner: Runner) -> None:
        self.pending: list[Tensor] = []
        seed = torch.tensor(runner.seed)  # a process's own where processes augment differently
        broadcast(seed)
        self.seed = seed.item()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        model = runner.model.module if is_model_wrapper(runner.model) else runner.model
        if model.queue is None:
            return
        view = random.Random(f'{self.seed}:{runner.iter}').choice(sorted(model.keys))
        self.pending.append(model.keys[view].detach())
        if runner.optim_wrapper.should_update():
            model.queue.enqueue(gather(torch.cat(self.pending)))
            self.pending.clear()
