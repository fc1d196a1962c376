"""Starts the ranks of the tests as torchrun would, forked from one process that has imported everything: imports take 10 s.

Reads requests from its standard input, a line of JSON each: the number of ranks, the file for what they print, and the
script with its arguments. Answers each with the exit statuses.
"""

import json
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path

answers = os.fdopen(os.dup(1), 'w')
os.dup2(2, 1)  # what libraries print while they are imported is no answer

import toy  # noqa: E402, F401  all that the scripts import
from waiting import free_port  # noqa: E402

from mmairl.engine import run as launch  # noqa: E402

LIMIT = 600  # seconds


def run_rank(rank: int, ranks: int, port: int, output: str, command: list[str]) -> int:
    names = dict(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=ranks, LOCAL_WORLD_SIZE=ranks, MASTER_PORT=port)
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
    running, statuses = set(), []
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


if __name__ == '__main__':
    launch.register()
    for line in sys.stdin:
        print(json.dumps(run(**json.loads(line))), file=answers, flush=True)
