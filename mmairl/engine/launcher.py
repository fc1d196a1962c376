"""Start torchrun, and exit without its traceback, because the process that failed has already printed its error.

Usage: `python -m mmairl.engine.launcher --nproc-per-node=2 SCRIPT ...`. The options are torchrun's. Without --nnodes, all
processes are on this machine and meet on the loopback interface, at the port in the environment variable PORT or at a free
port. The exit code is 75 if a signal stopped the run, or else that of the process that failed first.
"""

import logging
import os
import socket
import sys

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import parse_args, run

from mmairl.signals import AGAIN

LOOPBACK = '127.0.0.1'
SIGNALS = 'SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1'


def free_port() -> str:
    with socket.create_server((LOOPBACK, 0)) as server:
        return str(server.getsockname()[1])


def main() -> None:
    # torchrun would log that a process failed, but that process has printed its error.
    logging.disable()
    # torchrun and mmengine set these variables to 1, too, but with warnings.
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ.setdefault(name, '1')
    options = [f'--signals-to-handle={SIGNALS}']
    if not any(word.startswith('--nnodes') for word in sys.argv[1:]):
        port = os.environ.get('PORT') or free_port()
        options += [
            f'--master-addr={LOOPBACK}',
            f'--local-addr={LOOPBACK}',
            f'--master-port={port}',
        ]
    try:
        run(parse_args([*options, *sys.argv[1:]]))
    except SignalException:
        sys.exit(AGAIN)
    except ChildFailedError as failed:
        codes = [failure.exitcode for failure in failed.failures.values()]
        sys.exit(AGAIN if AGAIN in codes else max(*codes, 1))


if __name__ == '__main__':
    main()
