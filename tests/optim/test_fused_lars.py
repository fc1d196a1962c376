"""The form of LARS that steps on a CPU, held to the plain one."""

import pytest
import torch

from mmairl.optim.lars import LARS, _fused_lars, _single_tensor_lars

HYPER = {'momentum': 0.9, 'weight_decay': 0.05, 'eta': 0.001}


def draw(seed: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Among them zeros, one element, and a size that no vector register divides."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(1,), (37, 5), (4, 3, 3, 3)]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]
    return [*drawn, torch.zeros(3, dtype=dtype)]


@pytest.mark.parametrize('dtype,tolerance', [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize('adapt', [True, False], ids=['adapted', 'excluded'])
def test_twenty_steps_under_a_changing_lr_equal_the_plain_form(adapt, dtype, tolerance):
    results = []
    for form in (_fused_lars, _single_tensor_lars):
        params, buffers = draw(0, dtype), [torch.zeros_like(p) for p in draw(0, dtype)]
        for step in range(20):
            form(params, draw(step + 1, dtype), buffers, lr=0.1 * (step + 1), adapt=adapt, **HYPER)
        results.append(params + buffers)
    for fused, plain in zip(*results):
        torch.testing.assert_close(fused, plain, atol=tolerance, rtol=tolerance)


def test_gradients_are_left_as_they_are():
    params, grads = draw(0), draw(1)
    _fused_lars(params, grads, [torch.zeros_like(p) for p in params], lr=0.1, adapt=True, **HYPER)
    assert all(torch.equal(now, then) for now, then in zip(grads, draw(1)))


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def with_gaps(tensor: torch.Tensor) -> torch.Tensor:
    return torch.stack([tensor, torch.full_like(tensor, 9.0)], dim=-1)[..., 0]


@pytest.mark.parametrize('odd', [channels_last, with_gaps, torch.Tensor.float], ids=['order', 'gaps', 'dtype'])
@pytest.mark.parametrize('which', [(0,), (1,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_tensors_that_lie_differently_in_memory_are_stepped_all_the_same(odd, which):
    start, grad = draw(0)[2], draw(1)[2]
    wanted, wanted_buffer = start.clone(), torch.zeros_like(start)
    _single_tensor_lars([wanted], [grad], [wanted_buffer], lr=0.1, adapt=True, **HYPER)
    tensors = [start.clone(), grad.clone(), torch.zeros_like(start)]
    for index in which:
        tensors[index] = odd(tensors[index])
    _fused_lars(*([tensor] for tensor in tensors), lr=0.1, adapt=True, **HYPER)
    torch.testing.assert_close(tensors[0].double(), wanted, atol=1e-6, rtol=1e-6)


def test_it_is_what_steps_on_a_cpu(monkeypatch):
    called = []
    monkeypatch.setattr('mmairl.optim.lars._fused_lars', lambda *_, **__: called.append(True))
    param = torch.nn.Parameter(torch.ones(3))
    param.grad = torch.ones(3)
    LARS([param], lr=0.1).step()
    assert called == [True]
