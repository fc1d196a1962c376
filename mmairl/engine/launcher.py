"""Start torchrun, and exit without its traceback, because the process that failed has already printed its error.

Usage: `python -m mmairl.engine.launcher --nproc-per-node=2 SCRIPT ...`. The options are torchrun's. Without --nnodes, all
processes are on this machine and meet on the loopback interface, at the port in the environment variable PORT or at a free
port. The exit code is 75 if a signal stopped the run, or else that of the process that failed.
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


def main() -> None:
    # torchrun would log that a process failed, but that process has printed its error.
    logging.disable()
    # torchrun and mmengine set these variables to 1, too, but with warnings.
    for name in ('OMP_NUM_THREADS', 'MKL_NUM_THREADS'):
        os.environ.setdefault(name, '1')
    options = ['--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1', *sys.argv[1:]]
    if not any('nnodes' in word for word in options):
        with socket.create_server((LOOPBACK, 0)) as free:
            port = os.environ.get('PORT') or free.getsockname()[1]
        address = f'--master-addr={LOOPBACK} --local-addr={LOOPBACK} --master-port={port}'
        options[:0] = address.split()
    try:
        run(parse_args(options))
    except SignalException:
        sys.exit(AGAIN)
    except ChildFailedError as failed:
        codes = {failure.exitcode for failure in failed.failures.values()}
        sys.exit(AGAIN if AGAIN in codes else max(1, *codes))


if __name__ == '__main__':
    main()
