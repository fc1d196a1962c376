"""Runs on the software GPU (softgpu.py) or a real GPU have the same results as on the CPU, without waits for the device.

Each case has its own process, so a case that fails or hangs fails only its own tests.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import build_runtime
import pytest
import torch
from harness.processes import rank_server

HERE = Path(__file__).parent
REAL = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not REAL and build_runtime.missing() is not None, reason=str(build_runtime.missing())),
]
QUICK = ['mocov2plus', 'views_on_device']
SLOW = [
    'bfloat16',
    'float16',
    'mocov1',
    'smocov2plus',
    'byol_lars',
    'zero1',
    'zero3',
    'zero2_float16',
]
# A ZeRO run is compared with a run of the unsharded network on the CPU.
TWINS = dict(
    zero1='views_on_device',
    zero2='mocov2plus',
    zero2_lars='byol_lars',
    zero3='views_on_device',
    zero2_float16='float16',
)


@pytest.fixture(scope='module')
def result(tmp_path_factory) -> Callable[..., dict]:
    """Return a function that returns the result of a case on a device ('cuda' or 'cpu') with this number of processes.

    Each case runs once for each device and number of processes.
    """
    software = {} if REAL else {'SOFTGPU': str(build_runtime.software_gpu()), 'SOFTGPU_DEVICES': '2'}
    environments = {'cuda': software, 'cpu': {'CUDA_VISIBLE_DEVICES': ''}}
    folders = {device: tmp_path_factory.mktemp(device) for device in environments}
    with (
        rank_server(folders['cuda'] / 'output.txt', environments['cuda'], str(HERE)) as on_gpu,
        rank_server(folders['cpu'] / 'output.txt', environments['cpu'], str(HERE)) as on_cpu,
    ):
        servers = {'cuda': on_gpu, 'cpu': on_cpu}

        @cache
        def outcome(case: str, device: str, processes: int) -> dict | AssertionError:
            folder = folders[device] / str(processes)
            folder.mkdir(exist_ok=True)
            try:
                servers[device](processes, HERE / 'runs.py', folder, case)
            except AssertionError as error:
                return error
            return torch.load(folder / f'{case}.pth', weights_only=True)

        def result(case: str, device: str = 'cuda', processes: int = 1) -> dict:
            if REAL and torch.cuda.device_count() < processes:
                pytest.skip(f'{processes} processes require as many GPUs')
            saved = outcome(case, device, processes)
            if isinstance(saved, AssertionError):
                raise saved
            return saved

        yield result


def assert_same_run(one: dict, other: dict, half: bool) -> None:
    """Compare losses, and also weights if the precision is not half.

    In half precision, the CPU's kernels round between operations that the GPU's kernels combine, so results differ.
    """
    torch.testing.assert_close(one['losses'], other['losses'], rtol=2e-2 if half else 1e-5, atol=0)
    assert one['weights'].keys() == other['weights'].keys()
    for name, value in other['weights'].items():
        # Several processes fill the rows of the queue in another order.
        if not half and name != 'queue.vectors':
            torch.testing.assert_close(one['weights'][name], value, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize('case', [*QUICK, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_run_equals_the_cpu_without_waits(result, case):
    """RefuseWaits (a hook in runs.py) ends a run that waits for the device between two log lines."""
    one, other = result(case), result(TWINS.get(case, case), 'cpu')
    assert_same_run(one, other, half='16' in case)
    assert one['knn'] == pytest.approx(other['knn'])
    assert len(one['knn']) == (case == 'mocov2plus')


@pytest.mark.slow
@pytest.mark.parametrize('case', ['mocov2plus', 'bfloat16', 'zero2', 'zero2_lars'])
def test_two_gpus_equal_one_cpu_process(result, case):
    one, other = result(case, processes=2), result(TWINS.get(case, case), 'cpu')
    assert_same_run(one, other, half='16' in case)


@pytest.mark.slow
@pytest.mark.parametrize('case', ['float16', 'zero2_float16'])
def test_float16_overflow_skips_the_step(result, case):
    outcome = result(case)
    assert outcome['skipped'] and outcome['losses'].isfinite().all()


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(result):
    whole, resumed = (result('resumed')[name] for name in ('whole', 'resumed'))
    assert all(torch.equal(weight, resumed['weights'][name]) for name, weight in whole['weights'].items())
    assert whole['scaler'] == resumed['scaler'] and whole['scaler']['scale'] == 1024.0


def test_evaluation_equals_the_cpu(result):
    one, other = dict(result('evaluated')), dict(result('evaluated', 'cpu'))
    torch.testing.assert_close(one.pop('features'), other.pop('features'), rtol=1e-4, atol=1e-5)
    assert one.pop('waits') <= 2, 'more than the two copies of mean and std wait for the device'
    assert other.pop('waits') == 0
    assert one == other


PLANTED = [
    'wait',
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('host_scalar', 'copy', 'storm', 'stream')),
]


@pytest.mark.parametrize('kind', PLANTED)
def test_planted_defect_is_found(result, kind):
    """The defects are a wait for the device, a host scalar put on the device, a copy from pageable memory, many small
    kernels, and a race between streams.
    """
    waits = kind in ('wait', 'host_scalar')
    if REAL and not waits:
        pytest.skip('only the software GPU counts operations and checks streams')
    outcome = result(f'planted_{kind}')
    if waits:
        assert 'called a synchronizing CUDA operation' in outcome['error']
    elif kind == 'stream':
        assert outcome['error'].startswith('CUDASanitizerErrors')
    else:
        counted, least = ('launches', 500) if kind == 'storm' else ('pageable to device', 1)
        assert outcome['work'][counted] >= result('views_on_device')['work'][counted] + least


@pytest.mark.skipif(REAL, reason='only the software GPU counts operations')
def test_step_launches_few_operations(result):
    launches = {case: result(case)['work']['launches'] for case in QUICK}
    assert max(launches.values()) < 600, launches


def test_heads_equal_the_cpu_without_waits(result):
    one, other = result('heads'), result('heads', 'cpu')
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.slow
def test_epochs_need_no_more_memory(result):
    reserved = result('prefetched')['reserved']
    assert reserved[-1] == reserved[2], reserved


@pytest.mark.slow
@pytest.mark.skipif(REAL, reason='a real GPU may choose another kernel')
def test_default_layout_reaches_cudnn(result):
    assert result('normalized')['launches']['cudnn_batch_norm'] == 2


def test_failing_case_fails_alone(result):
    with pytest.raises(AssertionError, match='KeyError'):
        result('no_such_case', 'cpu')
    assert result('heads', 'cpu')
