"""Heads in two processes give the same results as one process with the whole batch."""

import heads_over_processes as script
import pytest
import torch


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes):
    path = tmp_path_factory.mktemp('two') / 'two.pth'
    run_processes(2, script.__file__, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize('name', script.HEADS)
def test_two_processes_equal_the_whole_batch(two, name):
    torch.testing.assert_close(two[name], script.step(name), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize('name', script.MASKED)
def test_masked_patches_of_two_processes_equal_the_whole_batch(two, name):
    torch.testing.assert_close(two[name], script.masked_step(name), atol=1e-10, rtol=1e-10)
