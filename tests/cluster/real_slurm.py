"""Run a real Slurm on this machine.

Its daemons run as the current user and write to one folder only. The cluster has two nodes of 64 CPUs at loopback
addresses. The first node has two "GPUs", which are empty files. Partitions: `all` (the default), `gpu` (the first
node), `cpu` and `short` (both the second node; `short` has a limit of five minutes).
"""

import os
import random
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness.processes import wait_for

PATH = os.pathsep.join([os.environ['PATH'], '/usr/sbin', '/sbin'])
NEEDED = ('munged', 'slurmctld', 'slurmd', 'sbatch')
CONF = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={short}/s,cred_expire=5
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={short}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
KillWait=20
MinJobAge=3600
ReturnToService=2
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
SwitchType=switch/none
GresTypes=gpu
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=64 Gres=gpu:2
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.2 Port={port2} CPUs=64
PartitionName=all Nodes=ALL Default=YES
PartitionName=gpu Nodes=node1
PartitionName=cpu Nodes=node2
PartitionName=short Nodes=node2 MaxTime=5
"""


def lacking() -> str:
    """Return the reason why Slurm cannot run on this machine, or '' if it can."""
    missing = ', '.join(name for name in NEEDED if not shutil.which(name, path=PATH))
    return (
        f'Slurm is not installed: no {missing} (apt-get install slurmctld slurmd slurm-client munge)' if missing else ''
    )


class Slurm:
    """Start Slurm's daemons. On exit, cancel all jobs and stop the daemons."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.daemons, self.patched = folder, [], pytest.MonkeyPatch()

    def __enter__(self) -> 'Slurm':
        self.patched.setenv('PATH', PATH)
        self.patched.setenv('SLURM_CONF', str(self.folder / 'slurm.conf'))
        self.environment = dict(os.environ)
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        self.patched.undo()

    def start(self) -> None:
        self.short, ports = Path(tempfile.mkdtemp(prefix='slurm', dir='/tmp')), free_ports(3)
        # This short path holds sockets, whose paths may have at most 107 characters.
        self.short.chmod(0o755)
        for name in ('munge', 'state', self.short / 'node1', self.short / 'node2'):
            (self.folder / name).mkdir(parents=True, mode=0o700)
        (self.folder / 'munge/key').write_bytes(os.urandom(128))
        (self.folder / 'munge/key').chmod(0o600)
        for number in range(2):
            (self.folder / f'gpu{number}').touch()
        (self.folder / 'gres.conf').write_text(f'NodeName=node1 Name=gpu File={self.folder}/gpu[0-1]\n')
        values = dict(zip(('port', 'port1', 'port2'), ports), folder=self.folder, short=self.short)
        host, user = socket.gethostname().split('.')[0], subprocess.check_output(['id', '-un'], text=True).strip()
        (self.folder / 'slurm.conf').write_text(CONF.format(**values, host=host, user=user))
        options = [
            f'--{name}={self.folder}/munge/{name.split("-")[0]}' for name in ('key-file', 'log-file', 'seed-file')
        ]
        self._daemon(
            'munged', '--foreground', '--force', *options, f'--socket={self.short}/s', f'--pid-file={self.short}/pid'
        )
        wait_for(lambda: (self.short / 's').exists())
        self._daemon('slurmctld', '-D', '-i', '-f', self.folder / 'slurm.conf')
        for node in ('node1', 'node2'):
            self._daemon('slurmd', '-D', '-f', self.folder / 'slurm.conf', '-N', node)
        wait_for(lambda: self('sinfo', '-h', '-N', '-p', 'all', '-t', 'idle', '-o', '%N').split() == ['node1', 'node2'])

    def _daemon(self, *command: object) -> None:
        with (self.folder / f'{command[0]}.log').open('a') as log:
            words = list(map(str, command))
            self.daemons.append(
                subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, start_new_session=True)
            )

    def stop(self) -> None:
        self('scancel', '--state=PENDING', '--user', str(os.getuid()))
        self('scancel', '--full', '--signal=KILL', '--user', str(os.getuid()))
        self('scancel', '--user', str(os.getuid()))
        self.wait_for(lambda: not self('squeue', '-h').strip(), 30, 'for the end of the jobs')
        for daemon in reversed(self.daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.short)

    def __call__(self, *command: object, **environment: str) -> str:
        """Run a command of Slurm and return its output, including errors."""
        variables = {**self.environment, **environment}
        words = list(map(str, command))
        return subprocess.run(words, env=variables, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=600).stdout

    def submit(self, *words: object, **environment: str) -> str:
        """Submit a job and return its number."""
        number = self('sbatch', '--parsable', *words, **environment).strip()
        assert number.isdigit(), number
        return number

    def job(self, number: str) -> dict[str, str]:
        """Return the fields that `scontrol show job` prints, such as JobState and Restarts."""
        output = self('scontrol', '--oneliner', 'show', 'job', number)
        return dict(word.partition('=')[::2] for word in output.split() if '=' in word)

    def wait_for(self, condition: Callable[[], object], seconds: float = 300, what: str = '') -> None:
        """Wait for a condition. Fail if the daemons write nothing to their logs for this many seconds."""
        wait_for(condition, seconds, what, lambda: [path.stat().st_size for path in sorted(self.folder.glob('*.log'))])

    def ends(self, number: str, seconds: float = 300) -> tuple[str, int]:
        """Wait for the end of a job. Return its last state and the number of its restarts."""
        ended = ('COMPLETED', 'FAILED', 'CANCELLED', 'TIMEOUT', 'NODE_FAIL', 'PREEMPTED')
        self.wait_for(lambda: self.job(number).get('JobState') in ended, seconds, f'for job {number}')
        fields = self.job(number)
        return fields['JobState'], int(fields['Restarts'])


def free_ports(count: int) -> list[int]:
    """Return this number of consecutive free ports below the range that the system uses for outgoing connections."""
    while True:
        first = random.randrange(12000, 15000)
        with ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.create_server(('127.0.0.1', port)))
            except OSError:
                continue
        return list(range(first, first + count))
