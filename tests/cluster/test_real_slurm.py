"""What Slurm does to our jobs, under a real one on this machine; small bash commands stand for what trains."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import real_slurm
import torch
from real_slurm import Slurm, lacking
from waiting import wait_for

from mmairl.engine.checkpoint import load_checkpoint
from mmairl.engine.distributed import TOLD, _take_names_from_slurm
from mmairl.study import slurm as jobs
from mmairl.study.runs import Run
from mmairl.study.spec import Row

pytestmark = pytest.mark.skipif(bool(lacking()), reason=lacking())
ROOT = Path(__file__).parents[2]
# A run that heeds signals as ours do: it saves and leaves with 75. Started again, it is done.
RUN = """
[[ ! -e saved ]] || { echo done >> log; exit 0; }
trap 'sleep 1; echo saved >> log; touch saved; exit 75' TERM INT HUP USR1 USR2
touch ready
for i in {1..3000}; do sleep 0.1; done
exit 3
"""


@pytest.fixture(scope='module')
def slurm(tmp_path_factory):
    with Slurm(tmp_path_factory.mktemp('slurm')) as started:
        yield started


@pytest.fixture
def folder(tmp_path) -> Path:
    """With signs that mean something to Slurm and to a shell."""
    (path := tmp_path / 'my runs, 100%j').mkdir()
    return path


def pattern(path: Path) -> str:
    """The path as sbatch takes it."""
    return str(path).replace('%', '%%')


def run_in(folder: Path, name: str = 'run', needs: tuple[Path, ...] = ()) -> Run:
    (folder / name).mkdir()
    return Run(Row(name, 'x.py'), 0, folder / name, ('knn',), needs)


def submit(slurm: Slurm, run: Run, command: str, partition: str = 'gpu', devices: int = 1, **more: object) -> str:
    """A study's job of a bash command. Returns its number."""
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(run.folder)
        patched.setattr(jobs, 'commands', lambda run, devices: [['bash', '-c', command]])
        (run.folder / 'job.sh').write_text(
            jobs.job(run, devices, jobs.Cluster(partition=partition, gres='none', **more))
        )
    return slurm.submit(run.folder / 'job.sh')


# By what a study's job is told to stop: how it ends, how often it was started again, and what its run has done.
CANCELLED, ENDED, WENT_ON = ('CANCELLED', 0, 'saved\n'), ('FAILED', 0, 'saved\n'), ('COMPLETED', 1, 'saved\ndone\n')
TOLD_TO_STOP = {
    'scancel JOB': CANCELLED,
    'scancel --batch --signal=USR1 JOB; scancel JOB': CANCELLED,  # while it saves
    **{f'scancel --batch --signal={name} JOB': ENDED for name in ('TERM', 'INT', 'HUP')},  # with 143
    'scancel --full --signal=TERM JOB': ENDED,
    **{f'scancel {to} --signal={name} JOB': WENT_ON for to in ('--batch', '--full') for name in ('USR1', 'USR2')},
    'scontrol requeue JOB': WENT_ON,
    'scontrol update nodename=node2 state=down reason=test': WENT_ON,
}


def tell(slurm: Slurm, commands: str, number: str) -> None:
    for command in commands.replace('JOB', number).split(';'):
        slurm(*command.split())


@pytest.fixture(scope='module')
def told(slurm, tmp_path_factory) -> dict[str, tuple[str, Path]]:
    """A job for each, told to stop as soon as it heeds signals: all at once, since Slurm lets a job wait before it goes on."""
    started = {}
    for number, command in enumerate(TOLD_TO_STOP):
        run = run_in(tmp_path_factory.mktemp('told'), f'my run, 100%j {number}')
        started[command] = submit(slurm, run, RUN, 'cpu' if 'node2' in command else 'gpu'), run.folder
    for command, (number, folder) in started.items():
        wait_for((folder / 'ready').is_file, what=f'for the job: {slurm("squeue")}')
        tell(slurm, command, number)
    wait_for((folder / 'saved').is_file)
    slurm('scontrol', 'update', 'nodename=node2', 'state=resume')
    return started


@pytest.mark.parametrize('command', TOLD_TO_STOP)
def test_a_study_job_that_is_told_to_stop_saves_and_comes_back_unless_it_was_cancelled(slurm, told, command):
    number, folder = told[command]
    state, restarts, log = TOLD_TO_STOP[command]
    assert slurm.ends(number) == (state, restarts), (folder / 'log.txt').read_text()
    wait_for(lambda: (folder / 'log').is_file() and (folder / 'log').read_text() == log)


# One process of a run on several nodes.
ONE_OF_SEVERAL = """
[[ ! -e saved$SLURM_PROCID ]] || { echo "$SLURMD_NODENAME $SLURM_CPUS_PER_TASK $OMP_NUM_THREADS $*" > done$SLURM_PROCID; exit; }
trap 'sleep $SLURM_PROCID; touch saved$SLURM_PROCID; exit 75' TERM INT HUP USR1 USR2
touch ready$SLURM_PROCID
for i in {1..3000}; do sleep 0.1; done
"""


def test_a_study_job_of_two_nodes_saves_in_all_its_processes_and_comes_back_unless_it_was_cancelled(slurm, folder):
    expected = {
        'scancel JOB': ('CANCELLED', 0),
        'scancel --full --signal=TERM JOB': ('FAILED', 0),  # with 143
        'scancel --batch --signal=USR1 JOB': ('COMPLETED', 1),
    }
    started = {}
    for number, command in enumerate(expected):
        run = run_in(folder, str(number))
        started[command] = submit(slurm, run, ONE_OF_SEVERAL, 'all', devices=2, per_node=1, cpus=3), run.folder
    for command, (number, own) in started.items():
        wait_for(lambda: all((own / f'ready{task}').is_file() for task in (0, 1)), what=slurm('squeue'))  # noqa: B023
        tell(slurm, command, number)
    for command, (number, own) in started.items():
        assert slurm.ends(number) == expected[command], (own / 'log.txt').read_text()
        wait_for(lambda: all((own / f'saved{task}').is_file() for task in (0, 1)))  # noqa: B023
        done = [path.read_text() for path in sorted(own.glob('done*'))]
        assert done == (['node1 3 3 slurm\n', 'node2 3 3 slurm\n'] if expected[command][1] else [])


def test_a_run_that_leaves_with_75_by_itself_comes_back_and_one_that_fails_does_not(slurm, folder):
    run = run_in(folder)
    number = submit(
        slurm, run, '[[ -e again ]] || { touch again; exit 75; }; echo "error: what is wrong" >&2; echo =====; exit 2'
    )
    assert slurm.ends(number) == ('FAILED', 1)
    assert (run.folder / 'failed.txt').read_text() == 'error: what is wrong\n'


def test_runs_wait_for_those_whose_weights_they_take_and_end_where_these_fail(slurm, folder, monkeypatch):
    """Also where the source goes back into the queue meanwhile."""
    once = '[[ -e {0}/again ]] || {{ touch {0}/again; exit 75; }}; date +%s%N > {0}/end'
    source, broken = run_in(folder, 'source'), run_in(folder, 'broken')
    rescaled = run_in(folder, 'rescaled', (source.folder,))
    never = run_in(folder, 'never', (source.folder, broken.folder))
    does = {
        source: once,
        broken: 'sleep 1; exit 1',
        rescaled: 'date +%s%N > {0}/begin',
        never: 'touch {0}/begin',
    }
    monkeypatch.setattr(
        jobs, 'commands', lambda run, devices: [['bash', '-c', does[run].format(shlex.quote(str(run.folder)))]]
    )
    said = slurm(
        jobs.slurm_jobs([never, rescaled, source, broken], 1, folder, jobs.Cluster(partition='cpu', gres='none'))
    )
    numbers = {name: number for number, name in re.findall(r'submitted (\d+): (\w+)_seed_0', said)}
    assert len(numbers) == 4, said
    states = {name: slurm.ends(number)[0] for name, number in numbers.items()}
    assert states == dict(source='COMPLETED', broken='FAILED', rescaled='COMPLETED', never='CANCELLED')
    assert int((rescaled.folder / 'begin').read_text()) > int((source.folder / 'end').read_text())
    assert not (never.folder / 'begin').exists()


def test_a_partition_that_does_not_exist_is_one_sentence(slurm, folder):
    said = slurm(jobs.slurm_jobs([run_in(folder)], 1, folder, jobs.Cluster(partition='none', gres='none')))
    assert said == (
        'error: Slurm refuses the job of run_seed_0: Invalid partition name specified; correct the profile, and give the '
        "study's command again\n"
    )


def test_a_study_begun_where_its_node_cannot_see_it_is_one_sentence(slurm, folder, monkeypatch):
    run, gone = run_in(folder), folder / 'gone'
    gone.mkdir()
    monkeypatch.chdir(gone)
    (run.folder / 'job.sh').write_text(jobs.job(run, 1, jobs.Cluster(partition='cpu', gres='none')))
    monkeypatch.chdir(folder)
    gone.rmdir()
    number = slurm.submit('--chdir', '/', run.folder / 'job.sh')
    assert slurm.ends(number) == ('FAILED', 0)
    assert re.fullmatch(
        'error: .+ cannot see the folder that the study was begun in; .+\n', (run.folder / 'failed.txt').read_text()
    )


# A run that holds its lock as the worker does.
LOCKED = """
exec 9>.lock_0
flock -n 9 || { echo found >> log; sleep 1; exit 75; }
[[ ! -e end ]] || exit 0
date +%s >> begin
sleep 40
date +%s >> end
"""


@pytest.mark.slow
def test_a_run_on_a_node_that_cannot_be_reached_any_more_is_never_in_two_places(tmp_path, folder, monkeypatch):
    """Its daemon stops, and its processes go on; Slurm starts the job on the other node."""
    monkeypatch.setattr(real_slurm, 'CONF', real_slurm.CONF + 'SlurmdTimeout=6\n')
    (daemons := tmp_path / 'daemons').mkdir()
    with Slurm(daemons) as slurm:
        run = run_in(folder)
        number = submit(slurm, run, LOCKED, 'all')
        wait_for((run.folder / 'begin').is_file)
        daemon = slurm.daemons[2 if slurm.job(number)['NodeList'] == 'node1' else 3]
        daemon.send_signal(signal.SIGSTOP)
        try:
            wait_for((run.folder / 'end').is_file, 60)
        finally:
            daemon.send_signal(signal.SIGCONT)
        assert slurm.ends(number, 100)[0] == 'COMPLETED'
    assert (run.folder / 'log').read_text().startswith('found\n'), 'it was started elsewhere meanwhile'
    assert len((run.folder / 'begin').read_text().split()) == len((run.folder / 'end').read_text().split()) == 1


def test_a_step_is_believed_and_not_the_job_around_it(slurm, folder, monkeypatch):
    """A step of two tasks on the second node, another beside it in the same job, one in another job; and the job's shell."""
    (folder / 'job.sh').write_text(
        '#!/bin/bash\ncd "$1"\nenv -0 > batch\n'
        "srun -w node2 -N1 -n2 --overlap bash -c 'env -0 > second$SLURM_PROCID'\n"
        "srun -N2 -n2 --overlap bash -c 'env -0 > both$SLURM_PROCID'\n"
    )
    options = ('-N2', '-n4', '--ntasks-per-node=2', '--output', pattern(folder / 'log'))
    numbers = [slurm.submit(*options, folder / 'job.sh', folder / name) for name in 'ab' if not (folder / name).mkdir()]
    assert [slurm.ends(number) for number in numbers] == [('COMPLETED', 0)] * 2, (folder / 'log').read_text()

    def taken(name: str) -> tuple[str, ...]:
        of_step = dict(word.split('=', 1) for word in (folder / name).read_text().split('\0') if '=' in word)
        assert set(TOLD['slurm']) <= of_step.keys()
        names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MASTER_ADDR', 'MASTER_PORT')
        with monkeypatch.context() as inside:
            for key in names:  # so that they are taken back
                inside.setenv(key, '')
                inside.delenv(key)
            for key, value in {**of_step, **slurm.environment}.items():
                inside.setenv(key, value)
            _take_names_from_slurm()
            return tuple(os.environ[key] for key in names)

    found = {name: taken(name) for name in ('a/second0', 'a/second1', 'a/both0', 'a/both1', 'b/second0')}
    assert found['a/second0'][:4] == ('0', '2', '0', 'node2') and found['a/second1'][:4] == ('1', '2', '1', 'node2')
    assert found['a/both0'][:4] == ('0', '2', '0', 'node1') and found['a/both1'][:4] == ('1', '2', '0', 'node1')
    ports = {name: found[name][4] for name in found}
    assert ports['a/second0'] == ports['a/second1'] and ports['a/both0'] == ports['a/both1']
    assert len({ports['a/second0'], ports['a/both0'], ports['b/second0']}) == 3, 'they may share a machine'
    batch = (folder / 'a/batch').read_text()
    assert not all(f'\0{name}=' in f'\0{batch}' for name in TOLD['slurm']), 'a batch script is not a step'


# In the place of tools/train.py: each task saves when it is told, and is done when it is started again.
TASK = """
[[ $2 == */train.py ]] || exit 9
for word; do [[ $before != --work-dir ]] || cd "$word"; before=$word; done
[[ ! -e saved$SLURM_PROCID ]] || { echo "done on $SLURM_CPUS_PER_TASK" > done$SLURM_PROCID; exit 0; }
trap 'sleep $SLURM_PROCID; echo "$*" > saved$SLURM_PROCID; exit 75' TERM INT HUP USR1 USR2
touch ready$SLURM_PROCID
for i in {1..3000}; do sleep 0.1; done
"""


@pytest.fixture
def python(folder) -> str:
    (folder / 'python').write_text('#!/bin/bash\n' + TASK)
    (folder / 'python').chmod(0o755)
    return str(folder / 'python')


def test_the_job_of_the_docs_saves_in_all_its_tasks_and_goes_on_unless_it_was_cancelled(slurm, folder, python):
    expected = {
        'scancel JOB': ('CANCELLED', 0),
        'scancel --signal=USR1 JOB; scancel JOB': ('CANCELLED', 0),
        'scancel --batch --signal=TERM JOB': ('FAILED', 0),  # with 143
        'scancel --signal=USR1 JOB': ('COMPLETED', 1),  # to the tasks, as Slurm does before the time limit
        'scancel --batch --signal=USR2 JOB': ('COMPLETED', 1),
        'scancel --full --signal=USR1 JOB': ('COMPLETED', 1),
        'scontrol requeue JOB': ('COMPLETED', 1),
    }
    started = {}
    for number, command in enumerate(expected):
        (own := folder / str(number)).mkdir()
        options = ('-n2', '-c2', '--chdir', ROOT, '--output', pattern(own / 'log'), ROOT / 'tools/slurm_job.sh')
        started[command] = slurm.submit(*options, 'x.py', own, '--seed', 3, PYTHON=python), own
    for command, (number, own) in started.items():
        wait_for(lambda: all((own / f'ready{task}').is_file() for task in (0, 1)), what=slurm('squeue'))  # noqa: B023
        tell(slurm, command, number)
    for command, (number, own) in started.items():
        assert slurm.ends(number) == expected[command], (own / 'log').read_text()
        wait_for(lambda: all((own / f'saved{task}').is_file() for task in (0, 1)))  # noqa: B023
        assert (own / 'saved1').read_text().endswith('--launcher slurm --resume --seed 3\n')
        done = [path.read_text() for path in sorted(own.glob('done*'))]
        assert done == (['done on 2\n'] * 2 if expected[command][1] else [])


# What `tools/slurm_train.sh` is told: a signal to itself, one to all of its terminal's processes, and one while it still waits.
TOLD_SRUN = [*((name, os.kill, '') for name in ('TERM', 'INT', 'HUP', 'USR1', 'USR2')),
             ('INT', os.killpg, ''), ('HUP', os.killpg, ''), ('TERM', os.kill, '--begin=now+1hour')]  # fmt: skip


def test_srun_passes_on_what_its_script_is_told_and_all_tasks_save(slurm, folder, python):
    """srun itself would kill them on TERM and HUP, and ask on INT. All at once, as the tasks wait most of the time."""
    running = []
    for number, (_, _, waits) in enumerate(TOLD_SRUN):
        (own := folder / f'srun {number}').mkdir()
        words = ('bash', ROOT / 'tools/slurm_train.sh', 'gpu', 'name', 'x.py', own)
        known = dict(GPUS='2', CPUS_PER_TASK='1', PYTHON=python, SRUN_ARGS=f'--gres=none {waits}')
        log = (own / 'log').open('w')
        process = subprocess.Popen(
            list(map(str, words)),
            env={**slurm.environment, **known},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        running.append((process, own))
    for (process, own), (name, send, waits) in zip(running, TOLD_SRUN):
        begun = [own / f'ready{task}' for task in (0, 1)]
        wait_for(lambda: 'queued' in (own / 'log').read_text() if waits else all(map(Path.is_file, begun)))  # noqa: B023
        send(process.pid, signal.Signals[f'SIG{name}'])
    for (process, own), (*_, waits) in zip(running, TOLD_SRUN):
        assert process.wait(120) == 75, (own / 'log').read_text()
        assert [(own / f'saved{task}').is_file() for task in (0, 1)] == [not waits] * 2


def test_one_task_of_an_array_goes_back_alone(slurm, folder, python):
    """While the other one goes on, and the other way round."""
    for name in '12':
        (folder / name).mkdir()
    (folder / 'array.sh').write_text(
        f'#!/bin/bash\ncd {ROOT}\nsource tools/slurm_job.sh x.py "{folder}/$SLURM_ARRAY_TASK_ID"\n'
    )
    number = slurm.submit(
        '--array=1-2', '-n1', '--requeue', '--output', pattern(folder / 'log'), folder / 'array.sh', PYTHON=python
    )
    wait_for(lambda: all((folder / task / 'ready0').is_file() for task in '12'))
    slurm('scancel', '--signal=USR1', f'{number}_2')
    wait_for(lambda: slurm.job(f'{number}_2')['Restarts'] == '1')
    assert not (folder / '1/saved0').exists() and slurm.job(f'{number}_1')['JobState'] == 'RUNNING'
    slurm('scancel', '--signal=USR1', f'{number}_1')
    assert [slurm.ends(f'{number}_{task}') for task in '12'] == [('COMPLETED', 1)] * 2


def test_gpus_are_asked_for_where_the_partition_has_some(slurm, folder):
    """And the tasks have the CPUs that were asked for, where sbatch's --cpus-per-task was set as well."""
    (folder / 'python').write_text('#!/bin/bash\necho "$SLURM_CPUS_PER_TASK CPUs, ${SLURM_GPUS_ON_NODE-0} GPUs"\n')
    (folder / 'python').chmod(0o755)
    words = (ROOT / 'tools/slurm_train.sh', 'PARTITION', 'name', 'x.py', folder)
    settings = dict(GPUS='2', GPUS_PER_NODE='2', CPUS_PER_TASK='3', PYTHON=str(folder / 'python'))
    for partition, gpus in dict(gpu=2, cpu=0).items():
        said = slurm(*(partition if word == 'PARTITION' else word for word in words), **settings)
        assert said == f'3 CPUs, {gpus} GPUs\n' * 2, said


@pytest.mark.slow
def test_a_study_job_goes_on_after_its_time_limit(slurm, folder):
    run = run_in(folder)
    number = submit(slurm, run, RUN.replace('300', '3000'), time='3')  # minutes; told two before
    assert slurm.ends(number, 200) == ('COMPLETED', 1)
    assert (run.folder / 'log').read_text() == 'saved\ndone\n'


# A run that is still saving when Slurm ends its job.
SLOW = """
[[ ! -e saved ]] || { echo done >> log; exit 0; }
trap '' USR1 TERM
for i in {1..300}; do [[ $(squeue -h -j $SLURM_JOB_ID -o %r) != TimeLimit ]] || break; sleep 1; done
echo saved >> log; touch saved
exit 75
"""


@pytest.mark.slow
def test_a_study_job_that_is_still_saving_when_its_time_is_up_goes_on(slurm, folder):
    run = run_in(folder)
    number = submit(slurm, run, SLOW, time='1')
    assert slurm.ends(number, 300) == ('COMPLETED', 1)
    assert (run.folder / 'log').read_text() == 'saved\ndone\n'


SMALL = [
    'train_cfg.max_epochs=6',
    'train_dataloader.dataset.count=64',
    'total_batch_size=16',
    'model.queue.length=64',
    'default_hooks.logger.interval=1',
    'default_hooks.checkpoint.interval=6',
    'log_level=INFO',
]


@pytest.mark.slow
def test_a_run_of_two_nodes_that_goes_back_into_the_queue_ends_as_one_that_was_left_alone(slurm, tmp_path):
    """The real thing: the job of the docs, its signal and its requeue; no value of the checkpoint differs."""
    words = ('configs/demo/mocov2plus_shapes.py', '--seed', 0, '--cfg-options', *SMALL)
    options = ('-N2', '-n2', '--chdir', ROOT, '--output')
    known = dict(PYTHON=sys.executable, OMP_NUM_THREADS='1', MASTER_ADDR='127.0.0.1')  # its nodes have no names here
    numbers = {}
    for name in ('alone', 'told'):
        log, script = tmp_path / f'{name}.log', ROOT / 'tools/slurm_job.sh'
        numbers[name] = slurm.submit(*options, log, script, words[0], tmp_path / name, *words[1:], **known)
    wait_for(lambda: list((tmp_path / 'told').glob('*/vis_data/scalars.json')), 300)
    slurm('scancel', '--signal=USR1', numbers['told'])
    states = {name: slurm.ends(number, 500) for name, number in numbers.items()}
    assert states == dict(alone=('COMPLETED', 0), told=('COMPLETED', 1)), (tmp_path / 'told.log').read_text()[-4000:]
    assert 'stopped by SIGUSR1 after' in (tmp_path / 'told.log').read_text()
    alone, told = (load_checkpoint(tmp_path / name / 'epoch_6.pth')['state_dict'] for name in numbers)
    differ = [key for key, value in alone.items() if not torch.equal(value, told[key])]
    assert not differ and alone.keys() == told.keys()
