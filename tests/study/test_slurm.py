"""Slurm jobs of a study, tested without Slurm. Bash commands stand in for training. `tests/cluster/` uses a real Slurm."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from filelock import FileLock
from harness.errors import raises_code
from harness.processes import wait_for
from study.small_runs import run_in

from mmairl.study import slurm
from mmairl.study.collect import describe
from mmairl.study.runs import status
from mmairl.study.slurm import Cluster, read_cluster

ROOT = Path(__file__).parents[2]


# This script sources signals.sh and runs a command. The functions `squeue` and `scontrol` replace Slurm's commands.
SHELL = """
squeue() { echo "$REASON"; }
scontrol() { echo "$@"; }
source "$0"
start bash -c "$1"
[[ $code != 75 ]] || go_back .
exit $code
"""
LISTENS = "trap 'echo > saved; sleep 0.5; exit {}' USR1; echo > ready; for i in {{1..600}}; do sleep 0.1; done"
DEAF = 'echo > ready; exec sleep 60'  # Like torchrun before it starts its workers, this command handles no signal
# In this command, a worker outlives its launcher.
OUTLIVED = "flock .lock_0 sh -c 'echo > ready; sleep 1; echo > saved' & wait"
AT_ONCE = "trap 'exit 75' USR1; kill -USR1 $PPID; for i in {1..100}; do sleep 0.1; done"
USR1, TERM = signal.SIGUSR1, signal.SIGTERM
ENDS, GOES_ON = (143, 'job 12_3 was canceled and ends\n'), (75, 'job 12_3 is requeued\nrequeue 12_3\n')


@pytest.mark.parametrize('command, signals, reason, expected', [
    # This command exits with 1, as torchrun does after any failure of its workers.
    (LISTENS.format(1), [USR1], '', GOES_ON),
    (LISTENS.format(0), [USR1], '', (0, '')),  # The signal arrives in the last step of the run
    # SIGTERM comes from `scancel`, or from a preemption after which Slurm itself requeues the job.
    (LISTENS.format(75), [TERM], '', ENDS),
    (LISTENS.format(75), [USR1, TERM], '', ENDS),  # The job is canceled while it saves
    # The job reaches its time limit while it saves.
    (LISTENS.format(75), [USR1, TERM], 'TimeLimit', GOES_ON),
    (DEAF, [USR1], '', GOES_ON),
    (OUTLIVED, [TERM], '', ENDS),
    # This is a race: the signal may arrive before the shell knows the process id of its child.
    *[(AT_ONCE, [], '', GOES_ON)] * 15,
])  # fmt: skip
def test_job_script_lets_runs_save_and_requeues(tmp_path, command, signals, reason, expected):
    task = dict(SLURM_ARRAY_JOB_ID='12', SLURM_ARRAY_TASK_ID='3', SLURM_JOB_ID='17', REASON=reason)
    words = ['bash', '-c', SHELL, str(ROOT / 'mmairl/signals.sh'), command]
    process = subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **task}, stdout=-1, text=True)
    for number in signals:
        wait_for((tmp_path / 'ready').is_file)
        process.send_signal(number)
        time.sleep(0.2)  # bash would lose one of two simultaneous signals
    output, _ = process.communicate(timeout=600)
    assert (process.returncode, output) == expected
    assert (tmp_path / 'saved').is_file() == ('saved' in command)


def test_job_script_has_the_options_of_the_site(tmp_path):
    (profile := tmp_path / 'site.yaml').write_text(
        'account: x\ntime: 24:00:00\nconstraint: a&b\ngres: gpu:a100\ncpus: 6\nenvironment: [module load cuda, export A=1]\n'
    )
    out, run = tmp_path / 'my study, 100%j', run_in(tmp_path / 'run')
    on_gpus, on_cpus = (slurm.job_script(2, out, cluster) for cluster in (read_cluster(profile), Cluster(gres='none')))
    for line in ('--account=x', '--time=24:00:00', "'--constraint=a&b'", '--gres=gpu:a100:2'):
        assert f'\n#SBATCH {line}\n' in on_gpus
    assert f'#SBATCH --output="{out}/jobs/slurm.log"'.replace('%', '%%') in on_gpus
    assert '--cpus-per-task=12\n' in on_gpus and '\nmodule load cuda\nexport A=1\n' in on_gpus
    assert '--gres' not in on_cpus and 'OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-16} / 2))' in on_cpus
    explicit = slurm.job_script(2, out, Cluster(gres='none', environment=['export OMP_NUM_THREADS=4']))
    assert explicit.index('OMP_NUM_THREADS=$((') < explicit.index('OMP_NUM_THREADS=4')
    assert '-m mmairl.engine.launcher' in slurm.run_script(run, 2, Cluster())
    profile.write_text('per_node: 4')
    on_nodes = slurm.job_script(6, out, read_cluster(profile))
    assert '--nodes=2 --ntasks-per-node=3 --cpus-per-task=8\n' in on_nodes and '--gres=gpu:3\n' in on_nodes
    with raises_code('unequal-nodes'):
        slurm.run_script(run, 7, read_cluster(profile))


def test_machine_without_slurm_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    with raises_code('no-sbatch'):
        slurm.submit([], 1, tmp_path, Cluster(), print)


def test_plain_commands_run_in_a_shell(tmp_path, monkeypatch):
    """Each line has the name of a run, the names of the runs that must finish before it, and its command."""
    monkeypatch.setattr(slurm, 'commands', lambda run, devices: [['touch', str(run.folder / name)] for name in 'ab'])
    source, anchor = run_in(tmp_path / 'a b' / 'source'), run_in(tmp_path / 'anchor')
    rescaled = run_in(tmp_path / 'rescaled', (source.folder, anchor.folder))
    lines = [line.split('\t') for line in slurm.plain_commands([rescaled, source, anchor], 1)]
    assert [line[:2] for line in lines] == [
        ['source_seed_0', '-'],
        ['anchor_seed_0', '-'],
        ['rescaled_seed_0', 'source_seed_0,anchor_seed_0'],
    ]
    for *_, command in lines:
        subprocess.run(['sh', '-c', command], check=True)
    assert all((run.folder / name).is_file() for run in (source, anchor, rescaled) for name in 'ab')


def test_state_of_a_run_is_read_from_its_folder(tmp_path):
    run, needs = run_in(tmp_path / 'run'), run_in(tmp_path / 'run', (tmp_path / 'source',))
    assert status(run) == ('not begun', '') and status(needs) == ('waiting', '')
    (run.folder / 'log.txt').write_text('training 12%  loss 3.2  0:10:00 left\n\n')
    assert status(run) == ('stopped', 'training 12%  loss 3.2  0:10:00 left')
    # Simulate a node whose clock is ahead of the local clock.
    os.utime(run.folder / 'log.txt', (time.time() + 100,) * 2)
    with FileLock(run.folder / '.lock_0'):
        what, output = status(run)
        on_page = describe(run, tmp_path)
    assert what == 'running' and output.startswith('training 12%  loss 3.2  0:10:00 left (0:00:00 ago)')
    assert on_page['state'] == what and on_page['error'].startswith('training 12%')
    (run.folder / 'failed.txt').write_text('error: the disk is full\n')
    assert status(run) == ('failed', 'error: the disk is full')
