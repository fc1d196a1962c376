"""Two processes on the CPU give the same results as one process with the joined batch, by the same code as on GPUs."""

import pytest
import torch
from harness import two_processes as script
from torch.testing import assert_close


@pytest.fixture(scope='module')
def double():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes) -> dict:
    """Return the results of two processes for each case."""
    folder = tmp_path_factory.mktemp('two')
    run_processes(2, script.__file__, folder)
    return torch.load(folder / 'two.pth', weights_only=True)


@pytest.mark.parametrize('case', script.CASES)
def test_two_processes_equal_one_with_the_joined_batch(two, double, tmp_path, case):
    """Compare SyncBN, gradients, teacher, queue and health in float64."""
    # Compilation is compared with the same network without it.
    expected = script.train('mocov2plus' if case == 'compile' else case, str(tmp_path), 'none')
    outcome = two[case]
    assert outcome['wrapped']
    assert not expected['wrapped']
    for key, value in expected['weights'].items():
        other = outcome['weights'][key]
        # Two processes enqueue the keys of a batch in another order than one process.
        if key == 'queue.vectors':
            value, other = (rows[rows[:, 0].argsort()] for rows in (value, other))
        assert_close(other, value, atol=1e-9, rtol=1e-7, msg=lambda text, key=key: f'{key}: {text}')
    if case == 'mocov2plus':
        assert len(expected['scalars']) > 8
        assert_close(outcome['scalars'], expected['scalars'], rtol=1e-6, atol=1e-9)


def test_four_processes_normalize_and_evaluate_like_one(run_processes, tmp_path):
    run_processes(4, script.__file__, tmp_path, 'checks')
