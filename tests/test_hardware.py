"""CPU cores, GPUs and the cache folder of a process, and what the log states about them."""

import os
import re
import subprocess
import sys
from textwrap import dedent

import pytest
import torch

from mmairl import hardware
from mmairl.hardware import cores, unusable_gpu


def test_cores_respect_machine_and_slurm(monkeypatch):
    """Only the limits of machine and Slurm are tested. joblib itself respects CPU affinity and control groups."""
    monkeypatch.setattr(hardware, 'cpu_count', lambda: 64)
    for of_task, expected in (('', 64), ('2', 2), ('0', 1)):
        monkeypatch.setenv('SLURM_CPUS_PER_TASK', of_task)
        assert cores() == expected


def test_unusable_gpu_is_reported_with_its_reason(monkeypatch):
    monkeypatch.setattr(hardware, 'glob', lambda pattern: ['/dev/nvidia0'] if 'nvidia' in pattern else [])
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: False)
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)

    def init() -> None:
        raise RuntimeError('The NVIDIA driver on your system is too old.\nUpdate it.')

    monkeypatch.setattr(torch.cuda, 'init', init)
    assert unusable_gpu() == 'The NVIDIA driver on your system is too old.'
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '')  # The user has hidden the GPUs
    assert unusable_gpu() == ''
    monkeypatch.delenv('CUDA_VISIBLE_DEVICES')
    monkeypatch.setattr(hardware, 'glob', lambda pattern: [])
    assert unusable_gpu() == ''


def test_cache_without_writable_home_is_temporary(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    assert hardware.cache() == tmp_path / 'cache/mmairl'
    monkeypatch.setattr(hardware.tempfile, 'gettempdir', lambda: str(tmp_path))
    # /dev/null is not a folder, and nobody can write to /proc.
    for home in ('/dev/null', '/proc'):
        monkeypatch.setenv('XDG_CACHE_HOME', home)
        assert hardware.cache() == tmp_path / f'mmairl-{os.getuid()}'
    monkeypatch.delenv('XDG_CACHE_HOME')
    monkeypatch.setattr(hardware.Path, 'home', lambda: (_ for _ in ()).throw(RuntimeError('no home')))
    assert hardware.cache() == tmp_path / f'mmairl-{os.getuid()}'


@pytest.mark.parametrize(
    ('level', 'unusable'),
    [('INFO', ''), ('WARNING', 'the driver is too old'), ('ERROR', 'the driver is too old')],
)
def test_run_logs_its_hardware_at_every_level(toy_config, monkeypatch, capfd, level, unusable):
    from mmairl.engine import run

    monkeypatch.setattr(run, 'unusable_gpu', lambda: unusable)
    cfg = toy_config(steps=1, width=4, log_level=level)
    run.train(cfg)
    output = capfd.readouterr().out
    though = ', though there is a GPU (the driver is too old)' if unusable else ''
    line = f'1 x cpu{though}, each with {torch.get_num_threads()} threads and 0 data workers on '
    is_shown = level != 'ERROR'
    assert (
        output.count(line) == is_shown and (f'cache {hardware.cache()}, work dir {cfg.work_dir}' in output) == is_shown
    )
    assert bool(re.search('WARNING.* - 1 x cpu', output)) == (bool(unusable) and level != 'ERROR')


@pytest.mark.skipif('glibc' not in os.confstr('CS_GNU_LIBC_VERSION'), reason='requires glibc')
@pytest.mark.slow
def test_cpu_run_keeps_freed_memory():
    code = """
        import resource, sys
        import torch
        from mmairl.hardware import keep_freed_memory

        def pages(steps):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(steps):
                images = torch.ones(16 << 20, requires_grad=True)  # 64 MiB
                (images * 2).sum().backward()
            return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

        if sys.argv[1] == 'kept':
            keep_freed_memory()
        pages(20)
        print(pages(10))
    """
    pages_by_setting = {}
    for how in ('given back', 'kept'):
        process = subprocess.run([sys.executable, '-c', dedent(code), how], capture_output=True, text=True, check=True)
        pages_by_setting[how] = int(process.stdout)
    assert pages_by_setting['kept'] < pages_by_setting['given back'] / 2
