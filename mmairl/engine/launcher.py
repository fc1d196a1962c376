"""torchrun with one meaning of being told to stop: `python -m mmairl.engine.launcher --nproc_per_node=2 SCRIPT ...`.

It takes torchrun's options. Told to stop, it passes that on, gives its processes the time to save, and leaves with 75; so it
does when one of its processes was told. torch's own leaves with 1, starts such processes again where it may restart them, and
dies of a signal that comes while it imports.

On one machine it listens on the loopback, on the port PORT or a free one. torch's own listens on all interfaces of the
machine, and with --standalone it unpickles what anybody writes there.
"""

if __name__ == '__main__':
    from mmairl.startup import prepare

    prepare()  # before the imports below, which take seconds

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
    """torch's rendezvous of fixed address, with a store made beforehand: no option of torch says where it listens."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        wanted = os.environ.get('PORT') or '0'
        kinds = (OSError, ValueError, OverflowError)
        with explained(f'PORT={wanted} cannot be listened on', 'set a free one, or none', kinds):
            listener = socket.create_server((LOOPBACK, int(wanted)))
        port = listener.getsockname()[1]
        super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=600)
        descriptor = listener.detach()
        # only torch's older server takes a socket that listens already
        self._store = TCPStore(
            LOOPBACK, port, 1, True, self.timeout, multi_tenant=True, master_listen_fd=descriptor, use_libuv=False
        )

    def get_backend(self) -> str:
        return 'loopback'


class PatientAgent(LocalElasticAgent):
    """Starts no process again that was told to stop, and waits GRACE for them, not 30 s; torch has no option for either."""

    starting, heard = False, 0

    @classmethod
    def stop(cls, number: int) -> None:
        """Answer a signal as torch's own handler does, but once: its second signal leaves the processes behind.

        One that comes while processes start waits until all of them are known, or some would be left behind.
        """
        cls.heard = number
        if not cls.starting:
            raise SignalException(f'process {os.getpid()} got {signal.Signals(number).name}', signal.Signals(number))

    def _start_workers(self, worker_group):
        PatientAgent.starting = True
        try:
            return super()._start_workers(worker_group)
        finally:
            PatientAgent.starting = False
            if self.heard:
                self.stop(self.heard)

    def _monitor_workers(self, worker_group):
        result = super()._monitor_workers(worker_group)
        if any(failure.exitcode == AGAIN for failure in result.failures.values()):
            self._remaining_restarts = 0
        return result

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, **others) -> None:  # torch 2.14 has a timeout there
        if self._pcontext:
            self._pcontext.close(death_sig, GRACE)
        super()._shutdown(death_sig, **others)


@one_sentence_errors
def main() -> None:
    rendezvous_handler_registry.register('loopback', LoopbackRendezvous)
    api.LocalElasticAgent = PatientAgent
    options = ['--signals-to-handle=SIGQUIT']  # the others are ours; torch wants one
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
