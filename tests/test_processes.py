"""Two processes on the CPU give the same results as one process with the joined batch, by the same code as on GPUs."""

import socket
from functools import cache
from pathlib import Path

import pytest
import torch
from harness import two_processes as script
from torch.testing import assert_close

# These cases are compared with the case mocov2plus, because they train the same network.
WAYS = ('checkpointing', 'compile')


@pytest.fixture(scope='module')
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> tuple[dict, Path]:
    """Return the results of two processes for each case, and the folder of these results."""
    folder = tmp_path_factory.mktemp('two')
    run_processes(2, script.__file__, folder)
    return torch.load(folder / 'two.pth', weights_only=True), folder


@pytest.fixture(scope='module')
def one(tmp_path_factory, double):
    """Return a function that returns the results of one process for a case."""
    folder = tmp_path_factory.mktemp('one')
    return cache(lambda case: script.train(case, str(folder / case), 'none'))


@pytest.mark.parametrize('case', [case for case in script.CASES if case != 'spoilt'])
def test_two_processes_equal_one_with_the_joined_batch(one, two, case):
    """Compare SyncBN, gradients, teacher, queue and health in float64."""
    expected, outcome = one('mocov2plus' if case in WAYS else case), two[0][case]
    assert outcome['wrapped'] and not expected['wrapped']
    for key, value in expected['weights'].items():
        other = outcome['weights'][key]
        # Two processes enqueue the keys of a batch in another order than one process.
        if key == 'queue.vectors':
            value, other = (rows[rows[:, 0].argsort()] for rows in (value, other))
        assert_close(other, value, atol=1e-9, rtol=1e-7, msg=lambda text, key=key: f'{key}: {text}')
    if case == 'mocov2plus':
        assert len(expected['scalars']) > 20
        assert_close(outcome['scalars'], expected['scalars'], rtol=1e-6, atol=1e-9)


def test_four_processes_normalize_like_one(run_processes, tmp_path):
    run_processes(4, script.__file__, tmp_path, 'checks')


def test_bad_batch_of_one_process_skips_both_steps(two):
    saved, folder = two
    assert saved['spoilt']['skipped'] == 1 and saved['mocov2plus']['skipped'] == 0
    assert all(value.isfinite().all() for value in saved['spoilt']['weights'].values())
    assert len(list((folder / 'spoilt' / 'non_finite').glob('*.json'))) == 2


ELSEWHERE = """
import os, sys
from mmairl.engine.distributed import start_processes
from mmairl.engine.run import require_shared
from mmairl.errors import UserError
from mmairl.signals import stop_processes

start_processes('pytorch')
os.chdir(sys.argv[1])
require_shared('run')
os.chdir(os.environ['RANK'])
try:
    require_shared('run')
except UserError as error:
    print(f'error: {error}')
stop_processes()
"""


def test_unshared_work_dir_raises(tmp_path, run_processes):
    """Each process has its own folder `run`, as on two machines that do not share the work dir."""
    for folder in ('run', '0/run', '1/run'):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / 'two.py').write_text(ELSEWHERE)
    output = run_processes(2, tmp_path / 'two.py', tmp_path)
    sentence = f'error: run: the processes on {socket.gethostname()} do not see this folder'
    assert output.count(sentence) == 2 and not list(tmp_path.rglob('.?*'))
