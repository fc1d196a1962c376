"""Run a real Slurm on this machine: a controller, one node of 64 CPUs at the loopback address, and munge.

The daemons run as the current user and write to one folder only.
"""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from harness.processes import wait_for

PATH = os.pathsep.join([os.environ['PATH'], '/usr/sbin', '/sbin'])
PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'sbatch')
MISSING = [name for name in PROGRAMS if not shutil.which(name, path=PATH)]
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={short}/munge,cred_expire=5
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmdSpoolDir={short}/node
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
KillWait=20
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SwitchType=switch/none
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={node} CPUs=64
PartitionName=all Nodes=ALL Default=YES
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        servers = [held.enter_context(socket.create_server(('127.0.0.1', 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


def output(*command: object) -> str:
    """Run a command of Slurm, and return its output with its errors."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return done.stdout


def job_state(job: str) -> tuple[str, int]:
    """Return the state of a job and the number of its restarts."""
    words = output('scontrol', '--oneliner', 'show', 'job', job).split()
    fields = dict(word.partition('=')[::2] for word in words)
    return fields['JobState'], int(fields['Restarts'])


@contextmanager
def started(folder: Path) -> Iterator[None]:
    """Start Slurm's daemons. At the end, cancel all jobs and stop the daemons."""
    with ExitStack() as stack:
        # The path of a socket may have at most 107 characters.
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='slurm')))
        short.chmod(0o755)
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        patched.setenv('PATH', PATH)
        patched.setenv('SLURM_CONF', str(folder / 'slurm.conf'))
        for path in (folder / 'munge', folder / 'state', short / 'node'):
            path.mkdir(parents=True, mode=0o700)
        key = folder / 'munge/key'
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        controller, node = free_ports(2)
        values = dict(folder=folder, short=short, controller=controller, node=node)
        values['host'] = socket.gethostname().split('.')[0]
        values['user'] = subprocess.check_output(['id', '-un'], text=True).strip()
        (folder / 'slurm.conf').write_text(CONF.format(**values))

        def daemon(*command: object) -> None:
            log = stack.enter_context((folder / f'{command[0]}.log').open('a'))
            words = [str(word) for word in command]
            process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        files = [f'--{name}-file={folder}/munge/{name}' for name in ('key', 'log', 'seed')]
        sockets = [f'--socket={short}/munge', f'--pid-file={short}/pid']
        daemon('munged', '--foreground', '--force', *files, *sockets)
        wait_for((short / 'munge').exists, what='for munge')
        daemon('slurmctld', '-D', '-i')
        daemon('slurmd', '-D', '-N', 'node1')
        wait_for(lambda: 'idle' in output('sinfo', '-h', '-o', '%T'), what='for the node')
        stack.callback(
            wait_for, lambda: not output('squeue', '-h').strip(), what='for the end of the jobs'
        )
        stack.callback(output, 'scancel', '--user', os.getuid())
        yield
