"""What torch says when a data worker dies or hangs, as the sentence that a user can act on."""

import re
import traceback

from torch.utils.data import dataloader

from mmairl.errors import UserError, chain, explains

FEWER = '; lower train_dataloader.num_workers, then go on with --resume'
SHARED_MEMORY = (
    'the data workers ran out of shared memory (/dev/shm); make it larger (docker run --shm-size=16g, or mount -o '
    'remount,size=16G /dev/shm), or lower train_dataloader.num_workers, then go on with --resume'
)
ENDED = (
    'a data worker ended without a message, because the memory ran out or by a crash; lower '
    'train_dataloader.num_workers, or set it to 0 to see the error itself, then go on with --resume'
)
# The first that matches is told: torch's bare 'exited unexpectedly' often hides the signal that explains it.
EXPLANATIONS = {
    r'killed by signal: Killed': f'a data worker was killed, most likely because the machine ran out of memory{FEWER}',
    r'killed by signal: Bus error|torch_\d+.*No space left on device': SHARED_MEMORY,
    r'killed by signal: Terminated': 'a data worker was terminated by the scheduler or by hand; go on with --resume',
    r'killed by signal: ([^.]+)\.': (
        'a data worker crashed ({0}), most likely in the library that decodes images; upgrade Pillow, or find the file '
        'with train_dataloader.num_workers=0, then go on with --resume'
    ),
    r'DataLoader timed out after ([\d.]+) seconds': (
        'no data worker delivered a batch within {0} s, so the file system below the images hangs or is too slow; '
        'check the mount or raise train_dataloader.timeout, then go on with --resume'
    ),
    r'Too many open files|received \d+ items of ancdata': (
        'the data workers ran out of file handles; raise the limit (ulimit -n 65536) or lower '
        'train_dataloader.num_workers, then go on with --resume'
    ),
    r'^\[Errno 12\] Cannot allocate memory': f'there is not enough memory to start the data workers{FEWER}',
    r'(DataLoader worker|Pin memory thread) .*exited unexpectedly': ENDED,
}


@explains
def explain_worker_failure(error: BaseException) -> UserError | None:
    """The sentence for an error of the data workers, or None for any other error."""
    if isinstance(error, UserError):
        return None
    links = list(chain(error))
    messages = [str(link) for link in links if isinstance(link, (RuntimeError, OSError))]
    for pattern, sentence in EXPLANATIONS.items():
        for message in messages:
            if found := re.search(pattern, message):
                return UserError(sentence.format(*found.groups()))
    return UserError(ENDED) if any(map(hung_up, links)) else None


def hung_up(error: BaseException) -> bool:
    """Whether the connection to a worker broke while its batch was received, before torch noticed its death."""
    if not isinstance(error, (ConnectionError, EOFError, FileNotFoundError)):
        return False
    # A private name: torch has no public sign of where the error came from.
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(code.co_name == '_try_get_data' and code.co_filename == dataloader.__file__ for code in frames)
