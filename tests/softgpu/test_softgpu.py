"""Whole runs on a GPU in software (softgpu.py): the CPU's numbers, and no wait for the device.

Where there is a GPU, they are runs on it: `pytest -m gpu`.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import build_runtime
import pytest
import torch

from mmairl import hardware

HERE = Path(__file__).parent
REAL = torch.cuda.is_available()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not REAL and build_runtime.missing() is not None, reason=str(build_runtime.missing())),
]


@pytest.fixture(scope='module')
def run(tmp_path_factory) -> Callable[..., dict]:
    """Run runs.py on a device with a number of processes, and return its results.

    The libraries are built once for these sources and this torch.
    """
    sources = b''.join((HERE / name).read_bytes() for name in ('build_runtime.py', 'cudart.c', 'nccl.c'))
    name = hashlib.sha256(sources + torch.__version__.encode()).hexdigest()[:16]
    cache = hardware.cache() / 'softgpu' / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / 'lock').open('w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not REAL and not (cache / 'built').exists():
            build_runtime.build(cache)
            (cache / 'built').touch()

    def run(device: str, processes: int, selection: str) -> dict:
        if REAL and torch.cuda.device_count() < processes:
            pytest.skip(f'{processes} processes want as many GPUs')
        folder = tmp_path_factory.mktemp(device)
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent), str(HERE)])
        env = {**os.environ, 'PYTHONPATH': path, 'OMP_NUM_THREADS': '1', 'SOFTGPU_DEVICES': str(processes)}
        if device == 'cpu':
            env['CUDA_VISIBLE_DEVICES'] = ''
        elif not REAL:
            env['SOFTGPU'] = str(cache)
        torchrun = ['-m', 'torch.distributed.run', '--standalone', f'--nproc_per_node={processes}']
        command = [sys.executable, *(torchrun if processes > 1 else []), str(HERE / 'runs.py'), device]
        done = subprocess.run(
            [*command, str(folder / 'found.pth'), str(folder), selection],
            env=env,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return torch.load(folder / 'found.pth', weights_only=True)

    return run


@pytest.fixture(scope='module')
def one(run) -> tuple[dict, dict]:
    return run('cuda', 1, 'quick'), run('cpu', 1, 'quick')


@pytest.fixture(scope='module')
def slow(run, one) -> tuple[dict, dict]:
    """The cases of `one` and the slow ones, whose ZeRO runs are compared with quick runs on the CPU."""
    devices = ('cuda', 'cpu')
    return tuple({**found, **run(device, 1, 'slow')} for device, found in zip(devices, one))


@pytest.fixture(scope='module')
def two(run) -> dict:
    return run('cuda', 2, 'quick')


def assert_same_run(there: dict, here: dict, half: bool) -> None:
    """In half precision the CPU's kernels round between operations that the GPU's join."""
    torch.testing.assert_close(there['losses'], here['losses'], rtol=2e-2 if half else 1e-5, atol=0)
    assert there['weights'].keys() == here['weights'].keys()
    for name, value in here['weights'].items():
        if not half and name != 'queue.vectors':  # whose rows several processes fill in another order
            torch.testing.assert_close(there['weights'][name], value, rtol=1e-3, atol=2e-5, msg=name)


# ZeRO's runs are those of whole networks on the CPU.
TWINS = dict(
    zero1='views_on_device',
    zero2='mocov2plus',
    zero2_lars='byol_lars',
    zero3='views_on_device',
    zero2_float16='float16',
)
QUICK = ['mocov2plus', 'bfloat16', 'views_on_device', 'float16', 'zero2_float16']
SLOW = ['mocov1', 'smocov2plus', 'byol_lars', 'zero1', 'zero3']


def assert_equals_the_cpu(found: tuple[dict, dict], case: str) -> None:
    """Compare with the CPU. A wait between two log lines would have ended the run (RefuseWaits)."""
    there, here = found[0][case], found[1][TWINS.get(case, case)]
    assert_same_run(there, here, half='16' in case)
    assert there['knn'] == here['knn']
    assert len(there['knn']) == (case == 'mocov2plus')


@pytest.mark.parametrize('case', QUICK)
def test_run_equals_the_cpu_without_waits(one, case):
    assert_equals_the_cpu(one, case)


@pytest.mark.slow
@pytest.mark.parametrize('case', SLOW)
def test_slow_run_equals_the_cpu_without_waits(slow, case):
    assert_equals_the_cpu(slow, case)


@pytest.mark.slow
@pytest.mark.parametrize('case', ['mocov2plus', 'bfloat16', 'zero2', 'zero2_lars'])
def test_two_gpus_equal_one_cpu_process(slow, two, case):
    assert_same_run(two[case], slow[1][TWINS.get(case, case)], half='16' in case)


@pytest.mark.parametrize('case', ['float16', 'zero2_float16'])
def test_float16_overflow_skips_the_step(one, case):
    found = one[0][case]
    assert found['skipped'] and found['losses'].isfinite().all()
    assert (found['scaler']['scale'], found['scaler']['_growth_tracker']) == (1024.0, 3)


@pytest.mark.skipif(REAL, reason='only the software GPU counts copies')
def test_step_copies_only_its_batch(one):
    """Two views and twice their labels, which the probe wants, from pinned memory where the loader has pinned them."""
    pinned, pageable = (one[0][case]['work'] for case in ('views_on_device', 'mocov2plus'))
    assert pinned['pageable to device'] == 0 < pinned['pinned to device']
    assert pageable['pageable to device'] == 4
    assert pageable['device to device'] <= 4, 'no layer has copies of its own'


def test_resumed_run_equals_the_uninterrupted_one(one):
    whole, left = (one[0]['resumed'][name] for name in ('whole', 'left'))
    assert all(torch.equal(whole['weights'][name], left['weights'][name]) for name in whole['weights'])
    assert whole['scaler'] == left['scaler'] and whole['scaler']['scale'] == 1024.0


def test_evaluation_equals_the_cpu(one):
    there, here = (found['evaluated'] for found in one)
    torch.testing.assert_close(there.pop('features'), here.pop('features'), rtol=1e-4, atol=1e-5)
    assert there == here


@pytest.mark.parametrize('kind', ['wait', 'host_scalar', 'copy', 'storm', 'stream'])
def test_planted_defect_is_found(one, kind):
    """A wait, a number that is put on the device, a copy from pageable memory, many small kernels, a race of streams."""
    planted, clean = one[0]['planted'][kind], one[0]['views_on_device']['work']
    if kind in ('wait', 'host_scalar'):
        assert 'called a synchronizing CUDA operation' in planted['said']
    elif REAL:
        pytest.skip('only the software GPU counts and follows streams')
    elif kind == 'stream':
        assert planted['said'].startswith('CUDASanitizerErrors')
    else:
        counted, least = ('launches', 500) if kind == 'storm' else ('pageable to device', 1)
        assert planted['work'][counted] >= clean[counted] + least


@pytest.mark.skipif(REAL, reason='only the software GPU counts operations')
def test_step_launches_few_operations(one):
    launches = {case: one[0][case]['work']['launches'] for case in QUICK}
    assert max(launches.values()) < 600, launches


def test_heads_equal_the_cpu_without_waits(one):
    there, here = (found['heads'] for found in one)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-4, atol=1e-5, msg=name)
