"""Two processes against one with the joined batch, for the heads of methods."""

import heads_over_processes as script
import pytest
import torch


@pytest.fixture(scope='module')
def two(tmp_path_factory, run_processes):
    path = tmp_path_factory.mktemp('two') / 'two.pth'
    run_processes(2, script.__file__, path)
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize('name', script.HEADS)
def test_two_processes_equal_the_joined_batch(two, name):
    expected = script.step(name)
    assert two[name].keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(
            two[name][key], value, atol=1e-10, rtol=1e-10, msg=lambda text, key=key: f'{key}: {text}'
        )
