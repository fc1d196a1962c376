"""What enters the queue, and when."""

import random

import torch
from mmengine.dist import broadcast
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import Tensor

from mmairl.engine.distributed import network_of
from mmairl.models.heads import unit
from mmairl.models.processes import start_gather
from mmairl.registry import HOOKS


@HOOKS.register_module()
class QueueHook(Hook):
    """After each optimizer step, enqueues the teacher's keys of all processes; a network without a queue is left alone.

    The keys are exchanged while the next step's encoders run.

    Of several views' keys those of one view are enqueued, drawn at random from the seed and the step rather than from a
    generator's state, so that all processes and a resumed run draw the same.
    """

    def before_train(self, runner: Runner) -> None:
        self.collected: list[Tensor] = []
        seed = torch.tensor(runner.seed)  # a process's own where processes augment differently
        broadcast(seed)
        self.seed = seed.item()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch=None, outputs=None) -> None:
        model = network_of(runner)
        queue = getattr(model, 'queue', None)
        if queue is None:
            return
        view = random.Random(f'{self.seed}:{runner.iter}').choice(sorted(queue.fresh))
        self.collected.append(unit(queue.fresh[view].detach()))
        if runner.optim_wrapper.should_update():
            keys, self.collected = torch.cat(self.collected), []
            if runner.optim_wrapper.finite:
                queue.enqueue(*start_gather(keys))
