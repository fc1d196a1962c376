"""Jobs of studies in a real Slurm on this machine. Short bash commands stand in for training."""

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest
import real_slurm
from real_slurm import Slurm, lacking
from study.small_runs import run_in

from mmairl.engine.distributed import VARIABLES
from mmairl.errors import UserError
from mmairl.study import slurm as jobs
from mmairl.study.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(lacking()), reason=lacking())]
ROOT = Path(__file__).parents[2]
# This script handles signals like a training run: it saves and exits with 75. Its second start
# finishes.
RUN = """
n=${SLURM_PROCID:-0}  # a batch script has no SLURM_PROCID
[[ -z ${KILLED:-} || -e killed$n ]] || { touch killed$n; [[ $n != 1 ]] || kill -KILL $$; exit 1; }
[[ ! -e saved$n ]] || { echo "$SLURMD_NODENAME $SLURM_CPUS_PER_TASK $OMP_NUM_THREADS $*" > done$n; exit 0; }
trap 'sleep 1; echo "$*" >> saved$n; exit 75' TERM INT HUP USR1 USR2
touch ready$n
for i in {1..3000}; do sleep 0.1; done
exit 3
"""


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp('slurm')) as started:
        yield started


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder whose path has characters with a special meaning in Slurm and in shells."""
    (path := tmp_path / 'my runs, 100%j').mkdir()
    return path


def pattern(path: Path) -> str:
    """Return a path as a file-name pattern of sbatch, in which % must be doubled."""
    return str(path).replace('%', '%%')


def submit(does: dict[Run, str], partition: str = 'cpu', devices: int = 1, **more: object) -> list[str]:
    """Submit runs that are bash commands, each in its own folder. Return the numbers of their jobs."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            jobs, 'commands', lambda run, devices: [['bash', '-c', f'cd {shlex.quote(str(run.folder))}; {does[run]}']]
        )
        profile = jobs.Cluster(partition=partition, gres='none', **more)
        jobs.submit(list(does), devices, next(iter(does)).folder.parent, profile, lambda line: None)
    return [jobs.job_of(run) for run in does]


def left(folder: Path, name: str) -> list[str]:
    """Return the contents of the files that the processes of a run have written: NAME0, NAME1, and so on."""
    return [path.read_text() for path in sorted(folder.glob(f'{name}[0-9]'))]


# Each key is a command that stops a job, or that a job executes. The value is the job's number and folder.
Started = dict[str, tuple[str, Path]]


def tell(slurm: Slurm, started: Started, tasks: int) -> None:
    """Run the command that stops each job as soon as the job handles signals."""
    for commands, (number, folder) in started.items():
        slurm.wait_for(lambda: len(left(folder, 'ready')) == tasks)  # noqa: B023
        for command in commands.replace('JOB', number).split(';'):
            slurm(*command.split())


def ended(slurm: Slurm, job: tuple[str, Path], expected: tuple[str, int], tasks: int) -> list[str]:
    """Wait for the expected end of a job whose processes saved once. Return what the processes wrote after the restart."""
    number, folder = job
    assert slurm.ends(number) == expected, (folder / 'log.txt').read_text()
    slurm.wait_for(lambda: len(left(folder, 'saved')) == tasks)
    assert all(text.count('\n') == 1 for text in left(folder, 'saved'))
    return left(folder, 'done')


CANCELLED, FAILED, WENT_ON, DONE = ('CANCELLED', 0), ('FAILED', 0), ('COMPLETED', 1), ('COMPLETED', 0)
# For each command that stops a job: the last state of the job and the number of its restarts.
TOLD_TO_STOP = {
    'scancel JOB': CANCELLED,
    # The job is canceled while it saves.
    'scancel --batch --signal=USR1 JOB; scancel JOB': CANCELLED,
    # The processes save, and the batch script then ends with the status 143.
    **{f'scancel --batch --signal={name} JOB': FAILED for name in ('TERM', 'INT', 'HUP')},
    'scancel --full --signal=TERM JOB': FAILED,
    **{f'scancel {to} --signal={name} JOB': WENT_ON for to in ('--batch', '--full') for name in ('USR1', 'USR2')},
    'scontrol requeue JOB': WENT_ON,
    'scontrol update nodename=node2 state=down reason=test': WENT_ON,
}
ONCE = '[[ -e again ]] && exit; touch again; '
# For each command that a run executes: the last state of its job, the number of restarts, and the
# text of failed.txt.
BY_ITSELF = {
    'exit 75': (*WENT_ON, ''),
    # `scancel --full` may signal a run before it handles signals.
    'kill -USR1 $$': (*WENT_ON, ''),
    'kill -KILL $$': (*DONE, ''),
    'echo "error: it is wrong"; exit 2': (*FAILED, 'error: it is wrong\n'),
    # The run is killed at each start.
    'rm again; kill -KILL $$': (*FAILED, 'exit code 137\n'),
}


@pytest.fixture(scope='module')
def started(slurm, tmp_path_factory) -> Started:
    """Submit all jobs, then run the commands that stop jobs.

    All jobs are tasks of one array, except for the job whose node goes down.
    """
    folder = tmp_path_factory.mktemp('told') / 'my runs, 100%j'
    runs = {command: run_in(folder / str(number)) for number, command in enumerate([*TOLD_TO_STOP, *BY_ITSELF])}
    does = {run: RUN if command in TOLD_TO_STOP else ONCE + command for command, run in runs.items()}
    stranded = runs['scontrol update nodename=node2 state=down reason=test']
    numbers = submit({run: action for run, action in does.items() if run is not stranded}, 'gpu', cpus=1)
    assert len({number.partition('_')[0] for number in numbers}) == 1
    submit({stranded: RUN})
    started = {command: (jobs.job_of(run), run.folder) for command, run in runs.items()}
    tell(slurm, {command: started[command] for command in TOLD_TO_STOP}, 1)
    slurm.wait_for(lambda: left(stranded.folder, 'saved'))
    slurm('scontrol', 'update', 'nodename=node2', 'state=resume')
    return started


@pytest.mark.parametrize('command', TOLD_TO_STOP)
def test_signaled_job_saves_and_requeues(slurm, started, command):
    expected = TOLD_TO_STOP[command]
    assert bool(ended(slurm, started[command], expected, 1)) == (expected == WENT_ON)


@pytest.mark.parametrize('command', BY_ITSELF)
def test_job_ends_as_its_run_does(slurm, started, command):
    """A killed run is restarted at most three times."""
    (number, folder), (state, restarts, message) = started[command], BY_ITSELF[command]
    assert slurm.ends(number) == (state, restarts), (folder / 'log.txt').read_text()
    failed = folder / 'failed.txt'
    assert (failed.read_text() if failed.is_file() else '') == message


def test_signaled_job_of_two_nodes_saves_and_requeues(slurm, folder, monkeypatch):
    """At the first start of each job, one process is killed and the other exits with an error.

    The signal comes after the restart.
    """
    commands = ('scancel JOB', 'scancel --full --signal=TERM JOB', 'scancel --batch --signal=USR1 JOB')
    runs = {command: run_in(folder / str(number)) for number, command in enumerate(commands)}
    monkeypatch.setenv('KILLED', '1')
    numbers = submit(dict.fromkeys(runs.values(), RUN), 'all', devices=2, per_node=1, cpus=3)
    started = {command: (number, run.folder) for number, (command, run) in zip(numbers, runs.items())}
    tell(slurm, started, 2)
    for command, job in started.items():
        second_starts = ended(slurm, job, TOLD_TO_STOP[command], 2)
        assert second_starts == (['node1 3 3 slurm\n', 'node2 3 3 slurm\n'] if TOLD_TO_STOP[command] == WENT_ON else [])


def test_runs_wait_for_their_sources(slurm, folder, monkeypatch):
    """The source run is requeued while others wait for it, and the study is submitted twice."""
    source, broken = run_in(folder / 'source'), run_in(folder / 'broken')
    rescaled = run_in(folder / 'rescaled', (source.folder,))
    never = run_in(folder / 'never', (source.folder, broken.folder))
    does = {
        never: 'touch begin',
        rescaled: 'date +%s%N > begin',
        broken: 'sleep 1; exit 1',
        source: '[[ -e again ]] || { touch again; exit 75; }; date +%s%N > end',
    }
    numbers = submit(does)
    assert submit(does) == numbers, 'a running study was submitted again'
    assert [slurm.ends(number)[0] for number in numbers] == ['CANCELLED', 'COMPLETED', 'FAILED', 'COMPLETED']
    assert int((rescaled.folder / 'begin').read_text()) > int((source.folder / 'end').read_text())
    assert not (never.folder / 'begin').exists() and jobs.status_in(jobs.read_queue([never]), never)[0] == 'cancelled'


def test_runs_are_submitted_in_portions(tmp_path, folder, monkeypatch):
    """This Slurm accepts few jobs at a time. Each run is still submitted exactly once, and all runs finish."""
    monkeypatch.setattr(real_slurm, 'CONF', real_slurm.CONF.replace('=3600', '=2') + 'MaxJobCount=12\nMaxArraySize=5\n')
    result = (
        """while [[ ! -e ../go ]]; do sleep 0.1; done; echo >> times; """
        """echo '{"labels": {"knn": "knn"}}' > part; mv part result.json"""
    )
    does = {run_in(folder / str(number)): result for number in range(16)}
    (daemons := tmp_path / 'daemons').mkdir()
    with Slurm(daemons) as slurm:
        for submitted in (11, 0):
            message = f'temporarily unable.*MaxJobCount = 12.*; {submitted} of .* runs have been submitted'
            with pytest.raises(UserError, match=message):
                submit(does, 'all', cpus=4)
        expected = ['running'] * 11 + ['not begun'] * 5
        slurm.wait_for(lambda: states_of(does) == expected)
        (folder / 'go').touch()
        slurm.wait_for(lambda: not slurm('squeue', '-h', '--states=all').strip())
        assert states_of(does) == ['done'] * 11 + ['not begun'] * 5
        submit(does, 'all', cpus=4)
        slurm.wait_for(lambda: states_of(does) == ['done'] * 16)
    assert all((run.folder / 'times').read_text() == '\n' for run in does)


def states_of(runs: Iterable[Run]) -> list[str]:
    queue = jobs.read_queue(list(runs))
    return [jobs.status_in(queue, run)[0] for run in runs]


def test_queue_states_of_runs(slurm, folder):
    limited, cancelled, unseen, requeued = runs = [run_in(folder / name) for name in 'abcd']
    numbers = [*submit(dict.fromkeys(runs[:3], 'sleep 100'), 'short', time='9'), *submit({requeued: 'sleep 100'})]
    slurm('scancel', numbers[1])
    slurm.wait_for((requeued.folder / 'begun.txt').is_file)
    slurm('scontrol', 'requeue', numbers[3])
    (folder / 'jobs').rename(folder / 'gone')
    slurm('scontrol', 'update', f'jobid={numbers[2]}', 'timelimit=1')
    slurm.ends(numbers[2])
    slurm.wait_for(lambda: states_of(runs)[3] == 'requeued')
    queue = jobs.read_queue(runs)
    expected = {
        limited: rf'pending: Partition\w+ \(job {numbers[0]}\)',
        cancelled: rf'never started: job {numbers[1]} ended before the run began \(no longer in the queue\); can the .*/b\?',
        unseen: rf'never started: job {numbers[2]} ended before the run began \(FAILED, JobLaunchFailure\); .*',
        requeued: rf'requeued: \w+ \(job {numbers[3]}\)',
    }
    for run, pattern in expected.items():
        assert re.fullmatch(pattern, ': '.join(jobs.status_in(queue, run)))
    slurm('scancel', *numbers)


def test_folder_invisible_to_a_node_is_reported(slurm, folder, monkeypatch):
    run, missing_folder = run_in(folder / 'run'), folder / 'gone'
    missing_folder.mkdir()
    monkeypatch.chdir(missing_folder)
    script = jobs.job_script(1, folder, jobs.Cluster(partition='cpu', gres='none'))
    monkeypatch.chdir(folder)
    missing_folder.rmdir()
    (folder / 'jobs').mkdir()
    (folder / 'job.sh').write_text(script)
    number = slurm.submit('--chdir', '/', '--array=0', folder / 'job.sh', run.folder)
    assert slurm.ends(f'{number}_0') == FAILED
    assert re.fullmatch(
        'error: .+ cannot read mmairl, or the folder in which the study was started; .+\n',
        (run.folder / 'failed.txt').read_text(),
    )


# This script locks its folder as the worker of a study does.
LOCKED = """
exec 9>.lock_0
flock -n 9 || { echo found >> log; sleep 1; exit 75; }
[[ ! -e end ]] || exit 0
date +%s >> begin
sleep 40
date +%s >> end
"""


def test_run_on_a_lost_node_never_runs_twice(tmp_path, folder, monkeypatch):
    """The daemon of the node stops while the processes of the job continue. Slurm then starts the job on the other node."""
    monkeypatch.setattr(real_slurm, 'CONF', real_slurm.CONF + 'SlurmdTimeout=6\n')
    (daemons := tmp_path / 'daemons').mkdir()
    with Slurm(daemons) as slurm:
        run = run_in(folder / 'run')
        (number,) = submit({run: LOCKED}, 'all')
        slurm.wait_for((run.folder / 'begin').is_file)
        daemon = slurm.daemons[2 if slurm.job(number)['NodeList'] == 'node1' else 3]
        daemon.send_signal(signal.SIGSTOP)
        try:
            slurm.wait_for((run.folder / 'end').is_file)
        finally:
            daemon.send_signal(signal.SIGCONT)
        assert slurm.ends(number)[0] == 'COMPLETED'
    assert (run.folder / 'log').read_text().startswith('found\n'), 'the second start did not find the folder locked'
    assert len((run.folder / 'begin').read_text().split()) == len((run.folder / 'end').read_text().split()) == 1


def test_step_differs_from_its_batch_script(slurm, folder):
    """The job has two nodes, and both tasks of its step run on the second one."""
    (folder / 'job.sh').write_text(
        "#!/bin/bash\nenv -0 > batch\nsrun -w node2 -N1 -n2 bash -c 'env -0 > task$SLURM_PROCID'\n"
    )
    options = ('-N2', '-n4', '--ntasks-per-node=2', '--chdir', folder, '--output', pattern(folder / 'log'))
    number = slurm.submit(*options, folder / 'job.sh')
    assert slurm.ends(number) == DONE, (folder / 'log').read_text()
    batch, *tasks = (
        dict(word.split('=', 1) for word in (folder / name).read_text().split('\0') if '=' in word)
        for name in ('batch', 'task0', 'task1')
    )
    assert not batch.keys() >= set(VARIABLES['slurm'])
    for rank, task in enumerate(tasks):
        assert [task[name] for name in VARIABLES['slurm'] if name != 'SLURM_STEP_ID'] == [str(rank)] * 2 + [
            '2',
            'node2',
        ]


@pytest.fixture
def python(folder) -> str:
    """Write a script that stands in for Python: it runs RUN in the work dir that tools/train.py would use."""
    to_its_folder = (
        '[[ $2 == */train.py ]] || exit 9\nfor word; do [[ $before != --work-dir ]] || cd "$word"; before=$word; done'
    )
    (folder / 'python').write_text(f'#!/bin/bash\n{to_its_folder}\n{RUN}')
    (folder / 'python').chmod(0o755)
    return str(folder / 'python')


def test_documented_job_saves_and_requeues(slurm, folder, python):
    """At the first start of each job, one process is killed. The signal comes after the restart."""
    expected = {
        'scancel JOB': CANCELLED,
        # This command signals only the tasks, without the batch script, as Slurm does before the
        # time limit.
        'scancel --signal=USR1 JOB': WENT_ON,
        'scancel --batch --signal=USR2 JOB': WENT_ON,
    }
    started = {}
    for number, command in enumerate(expected):
        (work_dir := folder / str(number)).mkdir()
        options = (
            '-n2',
            '-c2',
            '--chdir',
            ROOT,
            '--output',
            pattern(work_dir / 'log.txt'),
            ROOT / 'tools/slurm_job.sh',
        )
        started[command] = slurm.submit(*options, 'x.py', work_dir, '--seed', 3, PYTHON=python, KILLED='1'), work_dir
    tell(slurm, started, 2)
    for command, job in started.items():
        second_starts = ended(slurm, job, expected[command], 2)
        assert left(job[1], 'saved')[1].endswith('--launcher slurm --resume --seed 3\n')
        assert [line.split()[1] for line in second_starts] == (['2', '2'] if expected[command] == WENT_ON else [])


# `tools/slurm_train.sh` is signaled in three ways: alone, with all processes of its terminal, and
# while its job is pending.
TOLD_SRUN = [
    ('TERM', os.kill, ''),
    ('HUP', os.kill, ''),
    ('INT', os.killpg, ''),
    ('TERM', os.kill, '--begin=now+1hour'),
]


def test_srun_forwards_signals_to_all_tasks(slurm, folder, python):
    """Without tools/slurm_train.sh, srun would kill its tasks at TERM and HUP, and would ask for a second INT."""
    # If the tests run under nohup, they ignore HUP, and a shell cannot trap a signal that its parent ignores.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    running = []
    for number, (_, _, waits) in enumerate(TOLD_SRUN):
        (work_dir := folder / f'srun {number}').mkdir()
        words = ('bash', ROOT / 'tools/slurm_train.sh', 'gpu', 'name', 'x.py', work_dir)
        variables = dict(GPUS='2', CPUS_PER_TASK='1', PYTHON=python, SRUN_ARGS=f'--gres=none {waits}')
        log = (work_dir / 'log').open('w')
        process = subprocess.Popen(
            list(map(str, words)),
            env={**slurm.environment, **variables},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        running.append((process, work_dir))
    signal.signal(signal.SIGHUP, before)
    for (process, work_dir), (name, send, waits) in zip(running, TOLD_SRUN):
        ready, log = [work_dir / f'ready{task}' for task in (0, 1)], work_dir / 'log'
        slurm.wait_for(lambda: 'queued' in log.read_text() if waits else all(map(Path.is_file, ready)))  # noqa: B023
        send(process.pid, signal.Signals[f'SIG{name}'])
    for (process, work_dir), (*_, waits) in zip(running, TOLD_SRUN):
        slurm.wait_for(lambda: process.poll() is not None)  # noqa: B023
        assert process.returncode == 75, (work_dir / 'log').read_text()
        assert [(work_dir / f'saved{task}').is_file() for task in (0, 1)] == [not waits] * 2


def test_gpus_are_requested_if_the_partition_has_any(slurm, folder):
    (folder / 'python').write_text('#!/bin/bash\necho "$SLURM_CPUS_PER_TASK CPUs, ${SLURM_GPUS_ON_NODE-0} GPUs"\n')
    (folder / 'python').chmod(0o755)
    words = (ROOT / 'tools/slurm_train.sh', 'PARTITION', 'name', 'x.py', folder)
    settings = dict(GPUS='2', GPUS_PER_NODE='2', CPUS_PER_TASK='3', PYTHON=str(folder / 'python'))
    for partition, gpus in dict(gpu=2, cpu=0).items():
        output = slurm(*(partition if word == 'PARTITION' else word for word in words), **settings)
        assert output == f'3 CPUs, {gpus} GPUs\n' * 2, output


# This run is still saving when its job reaches the time limit.
SLOW = """
[[ ! -e saved0 ]] || { touch done0; exit 0; }
trap '' USR1 TERM
for i in {1..300}; do [[ $(squeue -h -j $SLURM_JOB_ID -o %r) != TimeLimit ]] || break; sleep 1; done
touch saved0
exit 75
"""


def test_job_resumes_after_its_time_limit(slurm, folder):
    """The first job has a limit of three minutes and gets its signal two minutes before the limit.

    The second job is still saving when it reaches its limit of one minute.
    """
    longer = RUN.replace('{1..3000}', '{1..30000}')
    runs = [(run_in(folder / 'told'), longer, '3'), (run_in(folder / 'late'), SLOW, '1')]
    for (number,), run in [(submit({run: command}, time=minutes), run) for run, command, minutes in runs]:
        assert slurm.ends(number) == WENT_ON
        assert left(run.folder, 'saved') and left(run.folder, 'done')
