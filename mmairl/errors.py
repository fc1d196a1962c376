"""What goes wrong as one sentence, and how a command ends."""

import difflib
import functools
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

import torch.distributed as dist
from mmengine.dist import is_main_process

# In the frames of these, nothing is called but what a config names.
BUILDERS = (('mmengine.registry.build_functions', 'build_from_cfg'), ('mmairl.engine.launch', 'build'))


class UserError(ValueError):
    """What is wrong, where, and what to do, in one sentence; command lines print it without a traceback."""


# Schedulers, launchers and terminals ask with these for an end; SIGQUIT and SIGKILL end a process at once.
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
# EX_TEMPFAIL: try again later. torchrun restarts on any code but 0; a scheduler should requeue on this one.
REQUEUE = 75


class Stopped(BaseException):
    """The command was asked to end; the text says by what, what is saved, and how it goes on."""


# Functions that know the sentence for some errors of other libraries, and give None for all others.
EXPLAINERS: list[Callable[[BaseException], UserError | None]] = []


def explanation(error: BaseException) -> UserError | None:
    """The sentence for an error, or None where it is a bug."""
    if isinstance(error, UserError):
        if str(error).startswith('Caught '):  # in a data worker: a whole traceback, whose last line is the sentence
            return UserError(re.sub(r'^mmairl\.[\w.]+: ', '', str(error).strip().splitlines()[-1]))
        return error
    return next((said for explainer in (*EXPLAINERS, _of_building) if (said := explainer(error))), None)


def _of_building(error: BaseException) -> UserError | None:
    """What a part says about the values that the config gives it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    builds = any((frame.f_globals.get('__name__'), frame.f_code.co_name) in BUILDERS for frame in frames)
    if not builds or isinstance(error, (OSError, ImportError)):
        return None
    kinds = [
        frame.f_locals['obj_cls'].__name__ for frame in frames if hasattr(frame.f_locals.get('obj_cls'), '__name__')
    ]
    said = ' '.join(str(error).split())[:200]
    return UserError(
        f'{kinds[-1] if kinds else "the run"} cannot be built from what the config says ({type(error).__name__}: {said}); '
        'correct it there (MMAIRL_TRACEBACK=1 shows where)'
    )


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was raised from, and so on to the first."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def printable(name: object) -> str:
    r"""A file's name on one line that a terminal only shows: every character that would act on it is escaped.

    >>> printable('cat\n\x1b[2J.jpg')
    'cat\\n\\x1b[2J.jpg'
    """
    return ''.join(one if one.isprintable() else one.encode('unicode_escape').decode() for one in str(name))


def closest(name: str, known: Iterable[str], cutoff: float = 0.8) -> str:
    """The end of a sentence about a misspelt name: `; did you mean '...'?`, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ''


def one_sentence_errors(main: Callable[[], None]) -> Callable[[], None]:
    """Print a UserError as one line and leave with exit code 2; MMAIRL_TRACEBACK=1 shows where it was raised.

    A command that is asked to end leaves with 75, which asks for another try.
    """

    @functools.wraps(main)
    def run() -> None:
        try:
            with heeding_signals():
                main()
        except Stopped as stopped:
            if is_main_process():
                print(stopped, file=sys.stderr)
            stop_processes()
            sys.exit(REQUEUE)
        except Exception as error:
            said = explanation(error)
            if said is None or os.environ.get('MMAIRL_TRACEBACK'):
                raise
            print(f'error: {printable(str(said).strip())}', file=sys.stderr)
            sys.exit(2)

    return run


@contextmanager
def as_user_errors() -> Iterator[None]:
    """For what is called from Python: the sentence that a command would print is raised as a UserError."""
    try:
        yield
    except Exception as error:
        said = explanation(error)
        traceback.clear_frames(error.__traceback__)  # a notebook keeps the traceback, and with it the data workers
        if said in (None, error):
            raise
        raise said from error


@contextmanager
def heeding_signals() -> Iterator[None]:
    """A signal raises Stopped, once, as Ctrl-C raises KeyboardInterrupt. One that is ignored stays so, as SIGHUP by nohup."""
    reset_signals_in_forks()

    def leave(number: int, frame: FrameType | None) -> None:
        told.append(number)
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        stopped = Stopped(f'stopped by {signal.Signals(number).name}; the same command goes on where it can')
        if not dist.is_initialized():
            raise stopped
        if is_main_process():
            print(stopped, file=sys.stderr, flush=True)
        os._exit(REQUEUE)  # the others may wait for this process: no way out is common to all

    before, told = {}, []
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if told or signal.getsignal(number) is leave:  # a run that leaves has set its own
                signal.signal(number, handler)


@functools.cache
def reset_signals_in_forks() -> None:
    """From now on, a child that this process forks, as libraries do for their pools, ends by SIGNALS and not by our handlers.

    Signals wait during the fork: Python loses one that comes before the child has set itself up, and a pool that ends its
    workers would wait for that one for ever.
    """
    masks = []

    def block() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS))

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def release_child() -> None:
        for number in SIGNALS:
            if callable(signal.getsignal(number)):  # not what is ignored, as SIGHUP by nohup
                signal.signal(number, signal.SIG_DFL)
        release()

    os.register_at_fork(before=block, after_in_parent=release, after_in_child=release_child)


def stop_processes() -> None:
    """Leave the process group together: gloo's threads abort a process that exits while they still run."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
