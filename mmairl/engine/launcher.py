"""Start the processes of a run like torchrun, and stop them cleanly after a signal.

Usage: `python -m mmairl.engine.launcher --nproc_per_node=2 SCRIPT ...`. The options are torchrun's.

After a signal, the launcher passes the signal to all processes, gives them time to save, and exits with code 75. It also exits
with code 75 if one of its processes stopped because of a signal. Torch's launcher would exit with code 1, and it may restart
processes that have stopped. A signal during its imports would kill it.

Without the option --nnodes, all processes are on one machine, and the launcher listens only on the loopback interface, on the
port in the environment variable PORT or on a free port. Torch's launcher listens on all interfaces. With --standalone, it
unpickles whatever it receives.
"""

if __name__ == '__main__':
    from mmairl.signals import prepare

    # This call handles signals that arrive during the imports below, which take seconds.
    prepare()

import os
import signal
import socket
import sys
from contextlib import closing

from torch.distributed import TCPStore
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.launcher import api
from torch.distributed.run import main as torchrun

from mmairl.errors import explained, one_sentence_errors
from mmairl.signals import AGAIN, GRACE, Listener

LOOPBACK = '127.0.0.1'


class LoopbackRendezvous(StaticTCPRendezvous):
    """Torch's static rendezvous, except that its store listens only on the loopback interface."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        port = os.environ.get('PORT') or '0'
        errors = (OSError, ValueError, OverflowError)
        with explained(
            f"PORT: cannot listen on this port ('{port}')",
            'set a free port',
            errors,
            code='bad-port',
        ):
            listener = socket.create_server((LOOPBACK, int(port)))
        port = listener.getsockname()[1]
        super().__init__(
            LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=600
        )
        descriptor = listener.detach()
        # Only torch's older server (`use_libuv=False`) accepts a socket that is already open.
        self._store = TCPStore(
            LOOPBACK,
            port,
            1,
            True,
            self.timeout,
            multi_tenant=True,
            master_listen_fd=descriptor,
            use_libuv=False,
        )

    def get_backend(self) -> str:
        return 'loopback'


class PatientAgent(LocalElasticAgent):
    """Torch's agent, but it does not restart processes stopped by a signal, and gives processes GRACE seconds to exit."""

    starting = False
    received = 0

    @classmethod
    def stop(cls, number: int) -> None:
        """Raise torch's exception for a signal. `Listener` calls this method only for the first signal.

        A second exception would make torch abandon its processes. If the signal arrives while processes start, the exception
        is raised after all of them have started.
        """
        cls.received = number
        if not cls.starting:
            raise SignalException(
                f'process {os.getpid()} got {signal.Signals(number).name}', signal.Signals(number)
            )

    def _start_workers(self, worker_group):
        PatientAgent.starting = True
        try:
            return super()._start_workers(worker_group)
        finally:
            PatientAgent.starting = False
            if self.received:
                self.stop(self.received)

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if any(failure.exitcode == AGAIN for failure in result.failures.values()):
            self._remaining_restarts = 0
        return result

    # Torch 2.14 calls this method with an additional argument, a timeout.
    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, **others) -> None:
        if self._pcontext:
            self._pcontext.close(death_sig, GRACE)
        super()._shutdown(death_sig, **others)


@one_sentence_errors
def main() -> None:
    rendezvous_handler_registry.register('loopback', LoopbackRendezvous)
    api.LocalElasticAgent = PatientAgent
    # Torch requires at least one signal that it handles itself. `Listener` does not handle SIGQUIT.
    options = ['--signals-to-handle=SIGQUIT']
    if not any(word.startswith('--nnodes') for word in sys.argv[1:]):
        options += ['--nnodes=1', '--rdzv-backend=loopback', f'--rdzv-endpoint={LOOPBACK}:0']
    try:
        with closing(Listener(PatientAgent.stop)):
            torchrun([*options, *sys.argv[1:]])
    except SignalException:
        sys.exit(AGAIN)
    except ChildFailedError as failed:
        if any(failure.exitcode == AGAIN for failure in failed.failures.values()):
            sys.exit(AGAIN)
        raise


if __name__ == '__main__':
    main()
