"""Processes for tests: start ranks as torchrun would, wait for a condition, or find a free port.

As a program (`python -m harness.processes`), this module is a server that starts ranks. It imports everything once,
which takes ten seconds, and then forks the ranks. Each line of its input is a JSON request: the number of ranks, the
file for their output, and the script with its arguments. The answer to a request is the list of exit statuses.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

# A rank is killed after this number of seconds.
LIMIT = 600


def wait_for(
    condition: Callable[[], object],
    seconds: float = 120,
    what: str = '',
    progress: Callable[[], object] = bool,
) -> None:
    """Wait until `condition` is true. After every `seconds`, fail if `progress()` is false or unchanged."""
    seen = None
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            now = progress()
            assert now and now != seen, f'no progress while waiting {what}'
            seen = now
            deadline = time.monotonic() + seconds
        time.sleep(0.05)


def ended(pid: int | str) -> bool:
    """Return whether a process has ended.

    A zombie counts as ended, since the first process of a container may never reap it.
    """
    try:
        return 'State:\tZ' in Path(f'/proc/{pid}/status').read_text()
    except OSError:
        return True


def free_port() -> int:
    """Return a port on which no program listens at the moment."""
    with socket.create_server(('127.0.0.1', 0)) as free:
        return free.getsockname()[1]


def run_rank(rank: int, ranks: int, port: int, output: str, command: list[str]) -> int:
    names = dict(
        RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, MASTER_PORT=port
    )
    os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR='127.0.0.1')
    file = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(file, stream)
    signal.alarm(LIMIT)
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    try:
        runpy.run_path(command[0], run_name='__main__')
    except SystemExit as stop:
        return int(bool(stop.code))
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(ranks: int, output: str, command: list[str]) -> list[int]:
    port = free_port()
    running = set()
    statuses = []
    for rank in range(ranks):
        if not (child := os.fork()):
            status = run_rank(rank, ranks, port, output, command)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        running.add(child)
    while running:
        child, status = os.wait()
        running.discard(child)
        statuses.append(os.waitstatus_to_exitcode(status))
        if statuses[-1]:
            for other in running:
                os.kill(other, signal.SIGKILL)
    return statuses


def serve() -> None:
    answers = os.fdopen(os.dup(1), 'w')
    # Libraries may print on import, which must not mix with the answers.
    os.dup2(2, 1)
    from harness import toy  # noqa: F401  imports what the scripts need
    from mmairl.engine import run as launch

    launch.register()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)


@contextmanager
def rank_server(
    output: Path, environment: dict[str, str], *folders: str
) -> Iterator[Callable[..., str]]:
    """Start a server of ranks.

    Args:
        output: The file to which the ranks print.
        environment: Environment variables to add.
        folders: Folders to add to the import path.

    Yields:
        A function that runs a script in a number of processes and returns what they print. The
        function raises AssertionError with the end of the output if a process fails.
    """
    tests = Path(__file__).parents[1]
    path = [str(tests.parent), str(tests), *folders, os.environ.get('PYTHONPATH', '')]
    # With NVML, mmengine's search for GPUs on import does not initialize CUDA. Otherwise, forked
    # processes could not use CUDA.
    added = {
        'OMP_NUM_THREADS': '1',
        'PYTORCH_NVML_BASED_CUDA_CHECK': '1',
        'PYTHONPATH': os.pathsep.join(path),
    }
    command = [sys.executable, '-m', 'harness.processes']
    with (
        output.open('a') as early,
        subprocess.Popen(
            command,
            env={**os.environ, **added, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=early,
            text=True,
        ) as server,
    ):

        def run(processes: int, script: Path | str, *args: object) -> str:
            assert server.poll() is None, (server.returncode, output.read_text()[-6000:])
            output.write_text('')
            request = dict(
                ranks=processes, output=str(output), command=[str(script), *map(str, args)]
            )
            print(json.dumps(request), file=server.stdin, flush=True)
            statuses = json.loads(server.stdout.readline() or '"the server of ranks has ended"')
            assert statuses == [0] * processes, (statuses, output.read_text()[-6000:])
            return output.read_text()

        yield run


if __name__ == '__main__':
    serve()
