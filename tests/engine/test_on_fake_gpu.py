"""What can be seen of a GPU without one: the optimizer launches few kernels, and batches are copied ahead."""

from contextlib import nullcontext
from unittest.mock import Mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmairl.engine import runner
from mmairl.optim.lars import LARS
from mmairl.registry import MODELS

BATCHES = [dict(inputs=name, data_samples=number) for number, name in enumerate('abc')]


class Launches(TorchDispatchMode):
    """Counts the operations that come to the device; a multi-tensor one is one."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.namespace == 'aten'
        return func(*args, **(kwargs or {}))


def test_optimizer_and_teacher_launch_no_kernel_for_each_weight(toy_config):
    model = MODELS.build(toy_config('byol_lars_r50_200e.py').model).to('meta')
    with FakeTensorMode(allow_non_fake_inputs=True):  # what is done there computes nothing
        model.to_empty(device='cuda')
        weights = [param for param in model.parameters() if param.requires_grad]
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = LARS(weights, lr=0.1, momentum=0.9, weight_decay=1e-6)
        optimizer.step()  # makes its momenta
        with Launches() as seen:
            optimizer.step()
            model.teacher.follow(model, 0.99)
    assert seen.count < len(weights) / 2


def test_the_next_batch_is_copied_before_a_step_and_the_step_waits_for_its_own_alone(monkeypatch):
    said = []
    ours = Mock(**{'record_event.side_effect': lambda: f'copy of {said[-1]}'})
    now = Mock(**{'wait_event.side_effect': lambda event: said.append(f'wait for the {event}')})
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: True)
    monkeypatch.setattr(torch.cuda, 'Stream', lambda: ours)
    monkeypatch.setattr(torch.cuda, 'stream', lambda stream: nullcontext() if stream is ours else None)
    monkeypatch.setattr(torch.cuda, 'current_stream', lambda: now)
    monkeypatch.setattr(runner, 'to_device', lambda inputs: said.append(inputs) or inputs)
    taken = [said.append(f'step {batch["inputs"]}') or batch for batch in runner.sent_ahead(iter(BATCHES))]
    assert taken == BATCHES
    steps = [f'wait for the copy of {name}, step {name}' for name in 'abc']
    assert ', '.join(said) == f'a, b, {steps[0]}, c, {steps[1]}, {steps[2]}'
