"""CPU cores, GPUs and the cache folder of a process, and its random numbers."""

import os
import random

import numpy as np
import pytest
import torch

from mmairl import hardware
from mmairl.randomness import random_state, same_randomness, set_random_state


@pytest.mark.parametrize('of_task, expected', [('', 64), ('2', 2), ('0', 1)])
def test_cores_respect_machine_and_slurm(monkeypatch, of_task, expected):
    monkeypatch.setattr(hardware, 'cpu_count', lambda: 64)
    monkeypatch.setenv('SLURM_CPUS_PER_TASK', of_task)
    assert hardware.cores() == expected


def test_cache_without_writable_home_is_temporary(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    assert hardware.cache() == tmp_path / 'cache/mmairl'
    monkeypatch.setattr(hardware.tempfile, 'gettempdir', lambda: str(tmp_path))
    monkeypatch.setenv('XDG_CACHE_HOME', '/dev/null')
    assert hardware.cache() == tmp_path / f'mmairl-{os.getuid()}'


def draw() -> tuple[float, float, float]:
    return random.random(), np.random.rand(), torch.rand(()).item()


def test_random_state_is_restored():
    state = random_state()
    expected = draw(), draw()
    set_random_state(state)
    first = draw()
    with same_randomness():
        draw()
        torch.manual_seed(5)
    assert (first, draw()) == expected
