"""Training on two machines: a script on each machine equals a Slurm job, and srun gets the right options."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness.processes import free_port

from mmairl.engine.checkpoint import load_checkpoint

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
# This script replaces srun: it runs the command twice, as a step of two tasks on two machines
# would, each time with its own rank. It writes its arguments to the file $ASKED.
SRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$ASKED"
while [[ $1 == -* ]]; do [[ $1 == -p ]] && shift; shift; done
export SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST='node[1-2]' SLURM_LOCALID=0
SLURM_PROCID=1 "$@" &
SLURM_PROCID=0 "$@" && wait $!
"""


def start(log: Path, *command: object, **environment: str) -> subprocess.Popen:
    variables = {**os.environ, 'PYTHON': sys.executable, 'OMP_NUM_THREADS': '1', **environment}
    with log.open('w') as output:
        return subprocess.Popen(
            list(map(str, command)),
            cwd=ROOT,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def ended_well(process: subprocess.Popen, log: Path) -> None:
    assert process.wait(timeout=600) == 0, log.read_text()[-4000:]


@pytest.fixture
def slurm(tmp_path) -> dict[str, str]:
    """Return an environment whose `srun` starts all tasks on this machine, and whose `scontrol` prints the address of the
    first machine.
    """
    (tmp_path / 'bin').mkdir()
    scontrol = '#!/bin/sh\n[ "$*" = "show hostname node[1-2]" ] && printf "127.0.0.1\\nnode2\\n"\n'
    for name, text in dict(srun=SRUN, scontrol=scontrol).items():
        (tmp_path / 'bin' / name).write_text(text)
        (tmp_path / 'bin' / name).chmod(0o755)
    path = os.pathsep.join(
        [str(tmp_path / 'bin'), str(Path(sys.executable).parent), os.environ['PATH']]
    )
    return dict(PATH=path, ASKED=str(tmp_path / 'asked'), MASTER_PORT=str(free_port()))


@pytest.mark.slow
def test_slurm_and_two_launches_train_the_same(tmp_path, slurm):
    """One process runs on each of two machines. Either `srun` starts both processes, or a script runs on each machine."""
    words = ('PARTITION', 'name', CONFIG, tmp_path / 'slurm', '--seed', 0, '--cfg-options', *SMALL)
    settings = dict(
        GPUS='2', GPUS_PER_NODE='1', CPUS_PER_TASK='3', SRUN_ARGS='--time=1:00 --exclusive'
    )
    logs = [tmp_path / f'{name}.log' for name in ('slurm', 'first', 'second')]
    ended_well(start(logs[0], 'tools/slurm_train.sh', *words, **slurm, **settings), logs[0])
    arguments = Path(slurm['ASKED']).read_text().splitlines()
    expected = ['-p', 'PARTITION', '--job-name=name', '--gres=gpu:1', '--ntasks=2']
    expected += ['--ntasks-per-node=1', '--cpus-per-task=3', '--kill-on-bad-exit=0', '--wait=120']
    expected += ['--time=1:00', '--exclusive']
    expected += [sys.executable, '-u', str(ROOT / 'tools/train.py'), CONFIG]
    expected += ['--work-dir', str(tmp_path / 'slurm'), '--launcher', 'slurm']
    assert arguments[: len(expected)] == expected
    assert arguments[-len(SMALL) :] == SMALL

    words = (CONFIG, 1, '--work-dir', tmp_path / 'machines', '--seed', 0, '--cfg-options', *SMALL)
    meeting = dict(NNODES='2', MASTER_ADDR='127.0.0.1', PORT=str(free_port()))
    machines = [
        start(log, 'tools/dist_train.sh', *words, NODE_RANK=str(rank), **meeting)
        for rank, log in enumerate(logs[1:])
    ]
    for process, log in zip(machines, logs[1:]):
        ended_well(process, log)
    for log in logs[:2]:
        assert '2 x cpu; total batch 16' in log.read_text(), (
            'the two processes did not form one run'
        )
    one, two = (
        load_checkpoint(tmp_path / name / 'epoch_1.pth')['state_dict']
        for name in ('slurm', 'machines')
    )
    for key, value in one.items():
        torch.testing.assert_close(
            two[key], value, atol=1e-6, rtol=0, msg=lambda text, key=key: f'{key}: {text}'
        )
