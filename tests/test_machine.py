"""Cores and GPUs by what a process is given."""

import os
from pathlib import Path

import pytest
import torch

from mmairl import machine
from mmairl.machine import cores, unusable_gpu


@pytest.mark.parametrize('files, expected', [
    ({}, 64),
    ({'proc/self/cgroup': '0::/job\n', 'sys/fs/cgroup/job/cpu.max': 'max 100000\n'}, 64),
    ({'proc/self/cgroup': '0::/slice/job\n', 'sys/fs/cgroup/slice/cpu.max': '650000 100000\n'}, 6),  # of the group around it
    ({'proc/self/cgroup': '0::/\n', 'sys/fs/cgroup/cpu.max': '50000 100000\n'}, 1),  # half a core is one
    ({'proc/self/cgroup': '3:cpu,cpuacct:/docker/17\n2:memory:/docker/17\n',  # where the path is the host's
      'sys/fs/cgroup/cpu/cpu.cfs_quota_us': '300000\n', 'sys/fs/cgroup/cpu/cpu.cfs_period_us': '100000\n'}, 3),
])  # fmt: skip
def test_cores_are_those_that_affinity_and_control_groups_leave(tmp_path, monkeypatch, files, expected):
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(64)))
    monkeypatch.delenv('SLURM_CPUS_PER_TASK', raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cores(tmp_path) == expected
    monkeypatch.setenv('SLURM_CPUS_PER_TASK', '2')
    assert cores(tmp_path) == min(expected, 2)


def test_a_gpu_that_is_there_and_cannot_be_used_is_told_with_the_reason(monkeypatch):
    monkeypatch.setattr(machine, 'glob', lambda pattern: ['/dev/nvidia0'] if 'nvidia' in pattern else [])
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)

    def init() -> None:
        raise RuntimeError('The NVIDIA driver on your system is too old.\nUpdate it.')

    monkeypatch.setattr(torch.cuda, 'init', init)
    assert unusable_gpu() == 'The NVIDIA driver on your system is too old.'
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')  # hidden on purpose
    assert unusable_gpu() == ''
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES')
    monkeypatch.setattr(machine, 'glob', lambda pattern: [])
    assert unusable_gpu() == ''


def test_the_cache_lies_with_the_temporary_files_where_the_home_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    assert machine.cache() == tmp_path / 'cache/mmairl'
    monkeypatch.setattr(machine.tempfile, 'gettempdir', lambda: str(tmp_path))
    for home in ('/dev/null', '/proc'):  # not a folder; a folder where nobody can write
        monkeypatch.setenv('XDG_CACHE_HOME', home)
        assert machine.cache() == tmp_path / f'mmairl-{os.getuid()}'
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setattr(machine.Path, 'home', lambda: (_ for _ in ()).throw(RuntimeError('no home')))
    assert machine.cache() == tmp_path / f'mmairl-{os.getuid()}'


def test_a_run_says_at_its_start_what_it_uses(toy_config, monkeypatch, capfd):
    from mmairl.engine import launch

    monkeypatch.setattr(launch, 'unusable_gpu', lambda: 'the driver is too old')
    cfg = toy_config(steps=1, width=4, log_level='WARNING')
    launch.train(cfg)
    said = ''.join(capfd.readouterr())
    threads = torch.get_num_threads()
    line = f'1 x cpu, though there is a GPU (the driver is too old), each with {threads} threads and 0 data workers on '
    assert 'WARNING' in said and line in said and f'cache {machine.cache()}, work dir {cfg.work_dir}' in said
    assert list(launch.places(dict(type='A', dataset=dict(root='data', views=[])))) == [str(Path('data').absolute())]
