"""torchrun for one machine: `python -m mmairl.engine.torchrun --nproc_per_node=2 SCRIPT ...`, with torchrun's options.

torch's own listens on all interfaces of the machine, and with --standalone it unpickles what anybody writes there. This one
listens on the loopback, on the port PORT or a free one.
"""

import os
import socket
import sys

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousParameters, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import main as torchrun

from mmairl.errors import UserError, one_sentence_errors

LOOPBACK = '127.0.0.1'
# torchrun dies of the others at once; what it passes on, the processes heed.
PASSED_ON = '--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1'


class LoopbackRendezvous(StaticTCPRendezvous):
    """torch's rendezvous of fixed address, with a store made beforehand: no option of torch says where it listens."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        wanted = os.environ.get('PORT') or '0'
        try:
            listener = socket.create_server((LOOPBACK, int(wanted)))
        except (OSError, ValueError, OverflowError) as error:
            raise UserError(f'PORT={wanted} cannot be listened on ({error}); set a free one, or none') from error
        port = listener.getsockname()[1]
        super().__init__(LOOPBACK, port, rank=0, world_size=1, run_id=parameters.run_id, timeout=600)
        descriptor = listener.detach()
        # only torch's older server takes a socket that listens already
        self._store = TCPStore(
            LOOPBACK, port, 1, True, self.timeout, multi_tenant=True, master_listen_fd=descriptor, use_libuv=False
        )

    def get_backend(self) -> str:
        return 'loopback'


@one_sentence_errors
def main() -> None:
    rendezvous_handler_registry.register('loopback', LoopbackRendezvous)
    torchrun(['--nnodes=1', '--rdzv-backend=loopback', f'--rdzv-endpoint={LOOPBACK}:0', PASSED_ON, *sys.argv[1:]])


if __name__ == '__main__':
    main()
