"""The Triton kernels of batch norm, run in Triton's interpreter, equal a computation in float64."""

from collections.abc import Callable, Iterator

import fused_norm_in_interpreter as script
import pytest
import torch
from harness.processes import rank_server
from torch import Tensor

pytest.importorskip('triton', reason='Triton comes with torch on Linux only')


@pytest.fixture(scope='module')
def run_interpreted(tmp_path_factory) -> Iterator[Callable[..., str]]:
    output = tmp_path_factory.mktemp('fused') / 'output.txt'
    with rank_server(output, {'TRITON_INTERPRET': '1'}) as run:
        yield run


@pytest.fixture(scope='module', params=[1, 2], ids=['one process', 'two processes'])
def results(request, run_interpreted, tmp_path_factory) -> dict[str, dict[str, Tensor]]:
    file = tmp_path_factory.mktemp('results') / 'results.pth'
    run_interpreted(request.param, script.__file__, file)
    return torch.load(file, weights_only=True)


def expected(shape: str, views: int, residual: bool, relu: bool) -> dict[str, Tensor]:
    kind = torch.nn.BatchNorm2d if shape == 'image' else torch.nn.BatchNorm1d
    layer, values = script.seeded(kind, shape)
    layer.double()
    x, other, grad = values.double()
    x.requires_grad_()
    other.requires_grad_()
    y = torch.cat([layer(view) for view in x.chunk(views)])
    y = y + other if residual else y
    y = y.relu() if relu else y
    y.backward(grad)
    return {
        'y': y.detach(),
        'x': x.grad,
        **({'residual': other.grad} if residual else {}),
        **{name: weight.grad for name, weight in layer.named_parameters()},
        'mean': layer.running_mean,
        'var': layer.running_var,
    }


@pytest.mark.parametrize('case', script.CASES, ids=str)
def test_kernels_equal_float64(results, case):
    results_of_case = results[str(case)]
    reference = expected(*case)
    assert results_of_case.keys() == reference.keys()
    for name, value in reference.items():
        scale = value.abs().max().item()
        torch.testing.assert_close(results_of_case[name].double(), value, atol=4e-6 * scale, rtol=1e-5)
