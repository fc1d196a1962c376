"""A study's runs as Slurm jobs, with small bash commands in the place of what trains and a stub in the place of Slurm."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from filelock import FileLock
from study.small_runs import run_in
from waiting import wait_for

from mmairl.errors import UserError
from mmairl.study import slurm
from mmairl.study.collect import describe
from mmairl.study.runs import status
from mmairl.study.slurm import Cluster, read_cluster


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Run a job of bash commands. Returns its exit code and what it asked of Slurm.

    The signals are sent to it once the command has made the file `ready`.
    """
    run, stubs, asked = run_in(tmp_path / 'run'), tmp_path / 'bin', tmp_path / 'asked'
    stubs.mkdir()
    monkeypatch.chdir(tmp_path)  # where a job goes first
    (stubs / 'scontrol').write_text(f'#!/bin/sh\necho "$@" >> "{asked}"\n')
    (stubs / 'squeue').write_text('#!/bin/sh\necho ${REASON:-None}\n')
    for stub in stubs.iterdir():
        stub.chmod(0o755)

    def start(*commands: str, signals: tuple[int, ...] = (), **environment: str) -> tuple[int, str]:
        monkeypatch.setattr(slurm, 'commands', lambda run, devices: [['bash', '-c', command] for command in commands])
        (tmp_path / 'job.sh').write_text(slurm.job(run, 2, Cluster(partition='gpu')))
        path = f'{stubs}:{os.environ["PATH"]}'
        own = {**os.environ, 'PATH': path, 'SLURM_JOB_ID': '17', **environment}
        process = subprocess.Popen(['bash', str(tmp_path / 'job.sh')], env=own)
        for number in signals:
            wait_for((tmp_path / 'ready').is_file)
            process.send_signal(number)
            time.sleep(0.2)  # bash forgets one of two signals that come at the same moment
        return process.wait(60), asked.read_text() if asked.is_file() else ''

    return start


LISTENS = "trap 'echo > saved; sleep 0.5; exit {}' USR1; echo > ready; for i in {{1..600}}; do sleep 0.1; done"
DEAF = 'echo > ready; exec sleep 60'  # torchrun, before its workers are there
USR1, TERM = signal.SIGUSR1, signal.SIGTERM
AGAIN = (0, 'requeue 17\n')


@pytest.mark.parametrize('commands, signals, reason, expected', [
    (['exit 0'], (), '', (0, '')),
    (['exit 75', 'echo > second'], (), '', AGAIN),
    (['kill -USR1 $$'], (), '', AGAIN),  # of `scancel --full`, before the run listened
    (['echo "error: it is wrong" > run/log.txt; exit 2', 'echo > second'], (), '', (2, '')),
    (['kill -KILL $$', 'echo > second'], (), '', (137, '')),
    (['exit 0', 'exit 75'], (), '', AGAIN),
    ([LISTENS.format(1)], (USR1,), '', AGAIN),  # torchrun, whatever its workers exit with
    ([DEAF], (USR1,), '', AGAIN),
    ([LISTENS.format(0)], (USR1,), '', (0, '')),  # it was in its last step
    ([LISTENS.format(0), 'echo > second'], (USR1,), '', AGAIN),
    ([LISTENS.format(75)], (TERM,), '', (143, '')),  # scancel, or a preemption after which Slurm itself requeues
    ([DEAF], (TERM,), '', (143, '')),
    ([LISTENS.format(75)], (USR1, TERM), '', (143, '')),  # cancelled while it saved
    ([LISTENS.format(75)], (USR1, TERM), 'TimeLimit', AGAIN),  # its time was up while it saved
])  # fmt: skip
def test_a_job_lets_its_run_save_and_goes_back_into_the_queue_when_it_should(
    job, tmp_path, commands, signals, reason, expected
):
    assert job(*commands, signals=signals, REASON=reason) == expected
    assert (tmp_path / 'saved').is_file() == ('USR1; echo' in commands[0]) and not (tmp_path / 'second').exists()
    failed = tmp_path / 'run/failed.txt'
    assert (
        not failed.exists()
        if expected[0] in (0, 143)
        else failed.read_text() in ('error: it is wrong\n', 'exit code 137\n')
    )


def test_a_task_of_an_array_puts_only_itself_back(job):
    assert job('exit 75', SLURM_ARRAY_JOB_ID='12', SLURM_ARRAY_TASK_ID='3') == (0, 'requeue 12_3\n')


def test_a_job_stays_until_workers_that_outlive_their_launcher_have_saved(job, tmp_path):
    (tmp_path / 'run').mkdir(exist_ok=True)
    worker = "flock run/.lock_0 sh -c 'echo > ready; sleep 1; echo > saved' & wait"
    assert job(worker, signals=(signal.SIGTERM,)) == (143, '')
    assert (tmp_path / 'saved').is_file()


def test_a_job_that_is_signalled_while_it_starts_its_run_passes_that_on(job):
    """As soon as there is a child, whose process id the script may not have yet: often enough in fifteen times."""
    at_once = "trap 'exit 75' USR1; kill -USR1 $PPID; for i in {1..100}; do sleep 0.1; done"
    for times in range(1, 16):  # one that gets no signal ends by itself, with 0
        assert job(at_once) == (0, 'requeue 17\n' * times)


def test_jobs_are_submitted_in_the_order_in_which_they_need_each_other(tmp_path, monkeypatch):
    """The script, with a stub of sbatch that numbers the jobs; folders with spaces and signs that mean something to Slurm."""
    out = tmp_path / 'my study, 100%j'
    source, anchor = run_in(out / 'source'), run_in(out / 'anchor')
    rescaled = run_in(out / 'rescaled', (source.folder, anchor.folder))
    (stub := tmp_path / 'sbatch').write_text(
        f'#!/bin/sh\necho "$@" >> "{tmp_path}/calls"\nwc -l < "{tmp_path}/calls" | tr -d " \\n"; echo ";cluster"\n'
    )
    stub.chmod(0o755)
    monkeypatch.setenv('PATH', f'{tmp_path}:{os.environ["PATH"]}')
    submit = slurm.slurm_jobs([rescaled, source, anchor], 1, out, Cluster())
    subprocess.run([str(submit)], check=True, capture_output=True)
    calls = (tmp_path / 'calls').read_text().splitlines()
    assert [Path(call).stem for call in calls] == ['source_seed_0', 'anchor_seed_0', 'rescaled_seed_0']
    assert calls[2].startswith('--parsable --dependency=afterok:1:2 --kill-on-invalid-dep=yes ')
    assert '--dependency' not in calls[0] + calls[1]
    elsewhere = subprocess.run(['/bin/bash', submit], env={'PATH': '/none'}, capture_output=True, text=True)
    assert elsewhere.returncode == 2 and elsewhere.stderr == 'error: there is no sbatch here; run this where Slurm is\n'
    text = (out / 'jobs' / 'source_seed_0.sh').read_text()
    assert f'#SBATCH --output="{out}/source/log.txt"'.replace('%', '%%') in text


def test_a_job_asks_for_what_the_site_wants(tmp_path):
    run = run_in(tmp_path / 'run')
    (profile := tmp_path / 'site.yaml').write_text(
        'account: x\ntime: 24:00:00\nconstraint: a&b\ngres: gpu:a100\ncpus: 6\nenvironment: [module load cuda, export A=1]\n'
    )
    on_gpus, on_cpus = slurm.job(run, 2, read_cluster(profile)), slurm.job(run, 2, Cluster(gres='none'))
    for line in ('--account=x', '--time=24:00:00', "'--constraint=a&b'", '--gres=gpu:a100:2'):
        assert f'\n#SBATCH {line}\n' in on_gpus
    assert '--cpus-per-task=12\n' in on_gpus and '\nmodule load cuda\nexport A=1\n' in on_gpus
    assert '--gres' not in on_cpus and 'OMP_NUM_THREADS=$((${SLURM_CPUS_PER_TASK:-16} / 2))' in on_cpus
    assert '-m mmairl.engine.torchrun' in on_gpus
    profile.write_text('per_node: 4')
    on_nodes = slurm.job(run, 6, read_cluster(profile))
    assert '--nodes=2 --ntasks-per-node=3 --cpus-per-task=8\n' in on_nodes and '--gres=gpu:3\n' in on_nodes
    with pytest.raises(UserError, match='--per-run 7 cannot be shared by 2 nodes of at most 4; give a multiple of 2'):
        slurm.job(run, 7, read_cluster(profile))


@pytest.mark.parametrize('text, sentence', [
    ('acount: x', "has 'acount', which nothing reads; did you mean 'account'?; known are partition, account, time"),
    ('cpus: many', 'cpus: expected a whole number, and is text'),
    ('time: [1, 2]', 'time: expected text, and is a list'),
    ('environment: module load cuda', 'environment: expected a list of texts, and is text'),
])  # fmt: skip
def test_a_mistake_in_a_profile_is_one_sentence(tmp_path, text, sentence):
    (path := tmp_path / 'site.yaml').write_text(text)
    with pytest.raises(UserError) as caught:
        read_cluster(path)
    assert sentence in str(caught.value) and str(path) in str(caught.value) and '\n' not in str(caught.value)


def test_the_plain_commands_of_a_study_run_it_in_a_shell(tmp_path, monkeypatch):
    """As a loop over the lines would start them: each after those that it names."""
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


def test_what_a_run_does_is_read_from_its_folder(tmp_path):
    run, needs = run_in(tmp_path / 'run'), run_in(tmp_path / 'run', (tmp_path / 'source',))
    assert status(run) == ('not begun', '') and status(needs) == ('waiting', '')
    (run.folder / 'log.txt').write_text('training 12%  loss 3.2  0:10:00 left\n\n')
    assert status(run) == ('stopped', 'training 12%  loss 3.2  0:10:00 left')
    os.utime(run.folder / 'log.txt', (time.time() + 100,) * 2)  # by a node whose clock is ahead
    with FileLock(run.folder / '.lock_0'):
        what, said = status(run)
        on_page = describe(run, tmp_path)
    assert what == 'running' and said.startswith('training 12%  loss 3.2  0:10:00 left (0:00:00 ago)')
    assert on_page['state'] == what and on_page['error'].startswith('training 12%')
    (run.folder / 'failed.txt').write_text('error: the disk is full\n')
    assert status(run) == ('failed', 'error: the disk is full')
