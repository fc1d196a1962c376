"""What torch says when a data worker dies or hangs, as the sentence that a user can act on."""

import re
import traceback

from torch.utils.data import dataloader

from mmairl.errors import UserError, chain, explains

GO_ON = ', then go on with --resume.'
ENDED = (
    'A data worker ended without a word, which memory that ran out does as well as a crash; lower '
    'train_dataloader.num_workers, or set it to 0 to see the error itself' + GO_ON
)
# From the most telling to the least: the bare 'exited unexpectedly' often stands in front of the signal that explains it.
EXPLANATIONS = {
    r'DataLoader worker .* is killed by signal: Killed': (
        'A data worker was killed, most likely because the machine ran out of memory; lower train_dataloader.num_workers '
        'or the size of the stored images' + GO_ON
    ),
    r'DataLoader worker .* is killed by signal: Bus error': (
        'A data worker ran out of shared memory (/dev/shm); make it larger (docker run --shm-size=16g, or mount -o '
        'remount,size=16G /dev/shm), or lower train_dataloader.num_workers' + GO_ON
    ),
    r'/torch_\d+.*No space left on device|shared memory object .*No space left on device|unable to write to file </torch_': (
        'Shared memory (/dev/shm) is full; make it larger (docker run --shm-size=16g, or mount -o remount,size=16G '
        '/dev/shm), or lower train_dataloader.num_workers' + GO_ON
    ),
    r'DataLoader worker .* is killed by signal: Terminated': (
        'A data worker was terminated from outside, by the scheduler or by hand; start the run again with --resume.'
    ),
    r'DataLoader worker .* is killed by signal: ([^.]+)\.': (
        'A data worker crashed ({0}), most likely in the library that decodes images; upgrade Pillow, or find the file '
        'with train_dataloader.num_workers=0' + GO_ON
    ),
    r'DataLoader timed out after ([\d.]+) seconds': (
        'No data worker delivered a batch within {0} s, so the file system below the images hangs or is too slow; '
        'check the mount or raise train_dataloader.timeout' + GO_ON
    ),
    r'Too many open files|received \d+ items of ancdata': (
        'The data workers ran out of file handles; raise the limit (ulimit -n 65536) or lower '
        'train_dataloader.num_workers' + GO_ON
    ),
    r'^\[Errno 12\] Cannot allocate memory': (
        'There is not enough memory to start the data workers; lower train_dataloader.num_workers' + GO_ON
    ),
    r'DataLoader worker .* exited unexpectedly|Pin memory thread exited unexpectedly': ENDED,
}


@explains
def explain_worker_failure(error: BaseException) -> UserError | None:
    """The sentence for an error of the data workers, or None for any other error.

    >>> try:
    ...     runner.train()
    ... except Exception as error:
    ...     raise explain_worker_failure(error) or error
    """
    if isinstance(error, UserError):
        return None
    links = list(chain(error))
    said = [str(link) for link in links if isinstance(link, (RuntimeError, OSError))]
    for pattern, sentence in EXPLANATIONS.items():
        for text in said:
            if found := re.search(pattern, text):
                return UserError(sentence.format(*found.groups()))
    return UserError(ENDED) if any(map(hung_up, links)) else None


def hung_up(error: BaseException) -> bool:
    """Whether the connection to a worker broke while its batch was taken over, before its death was noticed."""
    if not isinstance(error, (ConnectionError, EOFError, FileNotFoundError)):
        return False
    frames = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(code.co_name == '_try_get_data' and code.co_filename == dataloader.__file__ for code in frames)
