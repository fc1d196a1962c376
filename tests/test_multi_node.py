"""Several machines by the tools' own scripts: two launches that meet against one, and what Slurm is asked for."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from mmairl.engine.checkpoint import load_checkpoint, newest_checkpoint

ROOT = Path(__file__).parents[1]
CONFIG = 'configs/demo/mocov2plus_shapes.py'
SMALL = [
    'train_cfg.max_epochs=1',
    'train_dataloader.dataset.count=32',
    'total_batch_size=16',
    'model.queue.length=64',
    'log_level=INFO',
    'default_hooks.checkpoint.interval=1',
]
# As Slurm runs a step: the command once for each task, each told which it is; a file keeps what was asked for.
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$ASKED"
for word; do [[ $word == --ntasks=* ]] && tasks=${word#*=}; [[ $word == --ntasks-per-node=* ]] && each=${word#*=}; done
while [[ $1 == -* ]]; do [[ $1 == -p ]] && shift; shift; done
export SLURM_STEP_NUM_TASKS=$tasks SLURM_STEP_ID=0 SLURM_STEP_NODELIST='node[1-2]'
for ((task = 0; task < tasks; task++)); do
    SLURM_PROCID=$task SLURM_LOCALID=$((task % each)) SLURM_NODEID=$((task / each)) "$@" & started+=($!)
done
for process in "${started[@]}"; do wait "$process" || exit 1; done
"""


def start(log: Path, *command: object, **environment: str) -> subprocess.Popen:
    known = {**os.environ, 'PYTHON': sys.executable, 'OMP_NUM_THREADS': '1', **environment}
    with log.open('w') as said:
        return subprocess.Popen(list(map(str, command)), cwd=ROOT, env=known, stdout=said, stderr=subprocess.STDOUT)


def machine(processes: int, work_dir: Path, log: Path, **environment: str) -> subprocess.Popen:
    """What is typed in on one machine."""
    words = (CONFIG, processes, '--work-dir', work_dir, '--seed', 0, '--cfg-options', *SMALL)
    return start(log, 'tools/dist_train.sh', *words, **environment)


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return str(probe.getsockname()[1])


def ended_well(process: subprocess.Popen, log: Path) -> None:
    assert process.wait(timeout=600) == 0, log.read_text()[-4000:]


def weights(work_dir: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(work_dir / 'epoch_1.pth')['state_dict']


def test_two_machines_of_two_processes_equal_one_of_four(tmp_path):
    log = tmp_path / 'one.log'
    ended_well(machine(4, tmp_path / 'one', log), log)
    meeting = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=free_port())
    logs = [tmp_path / f'machine{rank}.log' for rank in (0, 1)]
    machines = [machine(2, tmp_path / 'two', log, NODE_RANK=str(rank), **meeting) for rank, log in enumerate(logs)]
    for process, log in zip(machines, logs):
        ended_well(process, log)
    assert 'total batch 16 = 4 images x 4 processes' in logs[0].read_text(), 'the four are one run'
    one, two = weights(tmp_path / 'one'), weights(tmp_path / 'two')
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-6, rtol=0, msg=lambda text, key=key: f'{key}: {text}')


def test_a_signal_to_the_launcher_stops_its_processes_which_save_themselves(tmp_path):
    log = tmp_path / 'log'
    environment = {'PYTHONUNBUFFERED': '1', 'MASTER_ADDR': '127.0.0.1'}
    words = ('--cfg-options', *SMALL, 'train_cfg.max_epochs=200', 'default_hooks.logger.interval=1')
    run = start(log, 'tools/dist_train.sh', CONFIG, 2, '--work-dir', tmp_path / 'run', *words, **environment)
    deadline = time.monotonic() + 300
    while 'loss:' not in log.read_text() and run.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    run.send_signal(signal.SIGUSR1)
    assert run.wait(timeout=300) == 1, log.read_text()[-4000:]
    assert log.read_text().count('stopped by SIGUSR1 after') == 1
    assert newest_checkpoint(tmp_path / 'run')[0].name.startswith('iter_')


@pytest.fixture
def slurm(tmp_path) -> dict[str, str]:
    """An environment with an `srun` that starts all tasks here, and a `scontrol` that knows the first machine's address."""
    (tmp_path / 'bin').mkdir()
    srun = tmp_path / 'bin/srun'
    srun.write_text(SRUN)
    srun.chmod(0o755)
    scontrol = tmp_path / 'bin/scontrol'
    scontrol.write_text('#!/bin/sh\n[ "$*" = "show hostname node[1-2]" ] && printf "127.0.0.1\\nnode2\\n"\n')
    scontrol.chmod(0o755)
    path = os.pathsep.join([str(tmp_path / 'bin'), str(Path(sys.executable).parent), os.environ['PATH']])
    return dict(PATH=path, ASKED=str(tmp_path / 'asked'), MASTER_PORT=free_port())


def test_slurm_is_asked_for_a_task_a_gpu_and_the_tasks_are_one_run(tmp_path, slurm):
    words = ('PARTITION', 'name', CONFIG, tmp_path / 'run', '--seed', 0, '--cfg-options', *SMALL)
    log = tmp_path / 'slurm.log'
    settings = dict(GPUS='2', GPUS_PER_NODE='1', CPUS_PER_TASK='3', SRUN_ARGS='--time=1:00 --exclusive')
    ended_well(start(log, 'tools/slurm_train.sh', *words, **slurm, **settings), log)
    asked = Path(slurm['ASKED']).read_text().splitlines()
    expected = ['-p', 'PARTITION', '--job-name=name', '--gres=gpu:1', '--ntasks=2', '--ntasks-per-node=1']
    expected += ['--cpus-per-task=3', '--kill-on-bad-exit=1', '--time=1:00', '--exclusive', sys.executable, '-u']
    assert asked[: len(expected)] == expected
    script, config, *rest = asked[len(expected) :]
    assert Path(script) == ROOT / 'tools/train.py' and config == CONFIG
    assert rest[:4] == ['--work-dir', str(tmp_path / 'run'), '--launcher', 'slurm'] and rest[-len(SMALL) :] == SMALL
    assert 'total batch 16 = 8 images x 2 processes' in log.read_text()
    assert weights(tmp_path / 'run')
