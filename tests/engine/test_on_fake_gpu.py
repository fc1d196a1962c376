"""What can be seen of a GPU without one: what a step moves and launches, and that batches are copied ahead."""

from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from mmengine.optim import build_optim_wrapper
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mmairl.engine import runner
from mmairl.engine.fast import lay_out
from mmairl.models import batchnorm
from mmairl.models.heads import unit
from mmairl.optim.autocast import FiniteFlag
from mmairl.optim.lars import LARS
from mmairl.registry import MODELS
from projects.benchmark.step import Size, siamese

BATCHES = [dict(inputs=name, data_samples=number) for number, name in enumerate('abc')]
NO_KERNEL = {
    'empty',
    'empty_strided',
    'empty_like',
    'new_empty',
    'new_empty_strided',
    'detach',
    'alias',
    'lift_fresh',
    'view',
    '_unsafe_view',
}


class Kernels(TorchDispatchMode):
    """Counts the kernels that operations launch, a multi-tensor one as one, and the bytes that these read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.launches, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        name, results = func.overloadpacket.__name__, [result.alias_info for result in func._schema.returns]
        is_view = results and all(result is not None and not result.is_write for result in results)
        if func.namespace == 'aten' and name not in NO_KERNEL and not is_view:
            twice = args[:3] if name == 'convolution_backward' else ()
            self.count(name, args, kwargs, twice, made)
        return made

    def count(self, name: str, *tensors: object) -> None:
        self.launches[name] += 1
        self.bytes[name] += sum(
            one.numel() * one.element_size() for one in tree_leaves(tensors) if isinstance(one, Tensor)
        )


def fused_kernels(seen: Kernels) -> dict:
    """torch's kernels for batch norm over processes, which have no fake form: the shapes they put out, the bytes they move."""

    def of_channels(count: int, name: str):
        def kernel(x: Tensor, *rest: object) -> list[Tensor]:
            read = [rest[0]] if name == 'reduce' else []
            seen.count(name, x, read)
            return [x.new_empty(x.shape[1], dtype=torch.float32) for _ in range(count)]

        return kernel

    def elemt(x: Tensor, *_: object, out: Tensor) -> None:
        seen.count('elemt', x, out)

    def backward_elemt(grad: Tensor, x: Tensor, *_: object) -> Tensor:
        seen.count('backward_elemt', grad, x, x)
        return torch.empty_like(x)

    return dict(
        batch_norm_stats=of_channels(2, 'stats'),
        batch_norm_gather_stats_with_counts=of_channels(2, 'gather'),
        batch_norm_elemt=elemt,
        batch_norm_backward_reduce=of_channels(4, 'reduce'),
        batch_norm_backward_elemt=backward_elemt,
    )


SGD = dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)


@pytest.fixture
def eight(monkeypatch):
    """This process is the first of eight, whose exchanges do nothing."""
    dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize('optimizer', [SGD], ids=['SGD'])
def test_a_step_of_one_of_eight_moves_no_more_than_it_must(optimizer, eight, monkeypatch):
    """MoCo v2+ on ResNet-50, 128 images, bfloat16 and channels last, from the bytes of the views to the queue."""
    seen, size = Kernels(), Size(depth=50, image=224, batch=128, features=2048, hidden=4096, queue=65_536)
    monkeypatch.setattr(batchnorm, 'CPUKernels', SimpleNamespace(**fused_kernels(seen)))
    monkeypatch.setattr(FiniteFlag, 'read', lambda flag: True)
    model = siamese(size, 'mocov2plus')
    lay_out(model, dict(channels_last=True))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cpu')
        wrapper = build_optim_wrapper(model, dict(type='AutocastOptimWrapper', dtype='bfloat16', optimizer=optimizer))
        wrapper._waits = False  # as on a GPU
        batch = dict(inputs=[torch.empty(128, 3, 224, 224, dtype=torch.uint8) for _ in range(2)], data_samples={})
        for counted in (nullcontext(), seen):  # the first step makes the momenta
            seen.launches.clear(), seen.bytes.clear()
            with counted:
                model.train_step(batch, wrapper)
                model.teacher.follow(model, 0.99)
                model.queue.enqueue(unit(model.queue.fresh[0]))
    assert seen.bytes.total() < 200e9
    assert seen.launches.total() <= 3400


def test_optimizer_and_teacher_launch_no_kernel_for_each_weight(toy_config):
    model = MODELS.build(toy_config('byol_lars_r50_200e.py').model).to('meta')
    with FakeTensorMode(allow_non_fake_inputs=True):  # what is done there computes nothing
        model.to_empty(device='cuda')
        weights = [param for param in model.parameters() if param.requires_grad]
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = LARS(weights, lr=0.1, momentum=0.9, weight_decay=1e-6)
        optimizer.step()  # makes its momenta
        with Kernels() as seen:
            optimizer.step()
            model.teacher.follow(model, 0.99)
    assert seen.launches.total() < len(weights) / 2


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
