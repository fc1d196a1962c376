"""Training steps on a simulated GPU move little memory and launch few kernels."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from harness.kernels import Kernels
from mmengine.optim import build_optim_wrapper
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

from mmairl.engine.optim.autocast import FiniteFlag
from mmairl.engine.optim.lars import LARS
from mmairl.engine.speed import lay_out
from mmairl.models import sync_norm
from mmairl.models.heads.base import unit
from mmairl.registry import MODELS
from projects.benchmark.step import Size, siamese


def fused_kernels(seen: Kernels) -> dict:
    """Return stand-ins for torch's kernels of synchronized batch norm. They create the outputs and count the bytes moved."""

    def of_channels(count: int, name: str) -> Callable:
        def kernel(x: Tensor, *rest: object) -> list[Tensor]:
            inputs = [rest[0]] if name == 'reduce' else []
            seen.count(name, x, inputs)
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
def eight():
    """Act as the first of eight processes. Collectives do nothing."""
    dist.init_process_group('fake', store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.slow
def test_step_of_one_of_eight_launches_few_kernels(eight, monkeypatch):
    """The first of eight processes takes a step of MoCo v2+ with ResNet-50, 128 images, bfloat16 and channels last.

    The step begins with uint8 views and ends with the update of the queue.
    """
    seen, size = Kernels(), Size(depth=50, image=224, batch=128, features=2048, hidden=4096, queue=65_536)
    monkeypatch.setattr(sync_norm, 'CPUKernels', SimpleNamespace(**fused_kernels(seen)))
    monkeypatch.setattr(FiniteFlag, 'read', lambda flag: True)
    model = siamese(size, 'mocov2plus')
    lay_out(model, dict(channels_last=True))
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cpu')
        wrapper = build_optim_wrapper(model, dict(type='AutocastOptimWrapper', dtype='bfloat16', optimizer=SGD))
        # On a GPU, the wrapper does not wait for the check of the gradients.
        wrapper._waits = False
        check_gradients, check = wrapper._check_gradients, Kernels()
        monkeypatch.setattr(wrapper, '_check_gradients', lambda: check.run(check_gradients))
        batch = dict(inputs=[torch.empty(128, 3, 224, 224, dtype=torch.uint8) for _ in range(2)], data_samples={})
        # The first step creates the momenta, so only the second one is counted.
        for counted in (nullcontext(), seen):
            seen.launches.clear(), seen.bytes.clear(), check.launches.clear()
            with counted:
                model.train_step(batch, wrapper)
                model.teacher.follow(model, 0.99)
                model.queue.enqueue(unit(model.keys[0]))
    assert seen.bytes.total() < 195e9 and seen.launches.total() < 2400
    assert check.launches.total() <= 10


def test_optimizer_launches_no_kernel_per_weight(toy_config):
    model = MODELS.build(toy_config('byol_lars_r50_200e.py').model).to('meta')
    # In FakeTensorMode, operations compute nothing.
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device='cuda')
        weights = [param for param in model.parameters() if param.requires_grad]
        for weight in weights:
            weight.grad = torch.empty_like(weight)
        optimizer = LARS(weights, lr=0.1, momentum=0.9, weight_decay=1e-6)
        # The first step creates the momenta, so it is not counted.
        optimizer.step()
        with Kernels() as seen:
            optimizer.step()
            model.teacher.follow(model, 0.99)
    assert seen.launches.total() <= 24
