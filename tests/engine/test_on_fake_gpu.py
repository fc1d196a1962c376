"""CUDA tensors without numbers: every tensor of a pass lies on the device, and the optimizer launches few kernels."""

from collections import Counter

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from mmairl.engine.fast import make_fast
from mmairl.engine.memory import build
from mmairl.optim.lars import LARS

DEVICE = torch.device('cuda')


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
