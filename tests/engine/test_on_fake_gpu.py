"""CUDA tensors without numbers: every tensor of a pass lies on the device, and the optimizer launches few kernels."""

from collections import Counter
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmairl.engine import runner
from mmairl.engine.fast import make_fast
from mmairl.engine.memory import build
from mmairl.optim.lars import LARS

DEVICE = torch.device('cuda')
BATCHES = [dict(inputs=name, data_samples=number) for number, name in enumerate('abc')]


class Launches(TorchDispatchMode):
    """Counts the operations that come to the device; a multi-tensor one is one."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == 'aten':
            self.count[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def on_gpu(toy_config):
    """A network and its views, there; what follows computes nothing."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def make(name: str, **fast):
        model = build(toy_config(name))
        mode.__enter__()
        views = [torch.empty(16, 3, 32, 32, device=DEVICE) for _ in range(2)]
        return make_fast(model.to_empty(device=DEVICE), fast), views

    yield make
    mode.__exit__(None, None, None)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    'name, fast',
    [
        ('mocov2_r50_200e.py', {}),
        ('mocov2plus_r50_200e.py', {}),
        ('mocov2plus_r50_200e.py', dict(compile=dict(backend='eager'))),
        ('smocov2plus_r50_200e.py', {}),
        ('byol_lars_r50_200e.py', {}),
    ],
)
def test_every_tensor_of_a_forward_pass_is_on_the_device(on_gpu, name, fast):
    model, views = on_gpu(name, **fast)
    with torch.autocast('cuda', torch.bfloat16):
        found = model.loss(views)
    assert found['loss'].device.type == 'cuda'
    with pytest.raises(RuntimeError, match='device'):  # a planted defect: it is seen
        model.loss([views[0], views[1].cpu()])


def test_optimizer_and_teacher_launch_no_kernel_for_each_weight(on_gpu):
    model, _ = on_gpu('byol_lars_r50_200e.py')
    weights = [param for param in model.parameters() if param.requires_grad]
    for weight in weights:
        weight.grad = torch.empty_like(weight)
    optimizer = LARS(weights, lr=0.1, momentum=0.9, weight_decay=1e-6)
    optimizer.step()  # makes its momenta
    with Launches() as seen:
        optimizer.step()
        model.teacher.follow(model, 0.99)
    assert sum(seen.count.values()) < len(weights) / 2, seen.count


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
