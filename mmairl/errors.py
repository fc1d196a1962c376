"""Errors that users can fix, and the exit codes of commands."""

import difflib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from mmairl.signals import AGAIN, Listener, Stopped, leave, process_group, stop_processes

Kinds = tuple[type[Exception], ...]


class UserError(ValueError):
    """An error that users can fix. The message is one line that says where the error is, what is wrong, and what to do.

    Commands print it without a traceback.

    Args:
        message: The message. If it is the traceback of a data worker, only its last line is kept.
        code: A short, stable identifier such as ``'no-queue'``, for tests and for programs that handle the error.
    """

    def __init__(self, message: object = '', code: str = '') -> None:
        text = str(message).strip()
        if text.startswith(
            'Caught '
        ):  # torch raises the error of a data worker again, with the whole traceback as its message
            text = text.splitlines()[-1].partition(': ')[2]
        super().__init__(' '.join(text.split('\n')))
        self.code = code


class Diverged(UserError):
    """An error for weights, losses or features that are not finite. A hyperparameter search ranks a trial with this
    error last.
    """


@contextmanager
def explained(
    what: str, then: str, kinds: Kinds = (Exception,), but: Kinds = (), code: str = ''
) -> Iterator[None]:
    """Convert an error that the block raises into a UserError with the message `what (the error); then`.

    Only errors of the types `kinds` are converted. A UserError and errors of the types `but` pass unchanged.
    """
    try:
        yield
    except (UserError, *but):
        raise
    except kinds as error:
        reason = ' '.join(str(error).split())[:200]
        raise UserError(f'{what} ({type(error).__name__}: {reason}); {then}', code) from error


def building(what: str) -> AbstractContextManager[None]:
    """Convert errors in the block, which builds a class from a config, into a UserError about the values in the config."""
    return explained(
        f'{what}: cannot be built from its values in the config',
        'correct these values (set MMAIRL_TRACEBACK=1 to see the traceback)',
        but=(OSError, ImportError),
        code='bad-value',
    )


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error, then the error that caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def closest(name: str, known: Iterable[str], cutoff: float = 0.8) -> str:
    """Return `; did you mean 'NAME'?` with the known name closest to a misspelled name, or '' if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ''


def short_traceback(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function of the Python API, so that the traceback of a UserError shows its caller and no earlier errors.

    If the environment variable MMAIRL_TRACEBACK is set, the traceback stays complete.
    """

    @functools.wraps(function)
    def call(*arguments: object, **named: object) -> Any:
        try:
            return function(*arguments, **named)
        except UserError as error:
            if os.environ.get('MMAIRL_TRACEBACK'):
                raise
            raise error.with_traceback(None) from None

    return call


def one_sentence_errors(main: Callable[..., None]) -> Callable[..., None]:
    """Decorate the main function of a command, so that it prints a UserError as one line and exits with code 2.

    If the environment variable MMAIRL_TRACEBACK is set, the full traceback is printed instead. If a signal stops the command,
    it exits with code 75, and running the same command again resumes the work.
    """

    @functools.wraps(main)
    def run(*arguments: object) -> None:
        try:
            with closing(Listener(leave)):
                main(*arguments)
        except Stopped as stopped:
            group = process_group()
            if group is None or group.get_rank() == 0:
                print(stopped, file=sys.stderr)
            stop_processes()
            sys.exit(AGAIN)
        except UserError as error:
            if os.environ.get('MMAIRL_TRACEBACK'):
                raise
            # The launcher ends the other processes before they print the same error again.
            if os.environ.get('RANK', '0') != '0':
                time.sleep(30)
            print(f'error: {error}', file=sys.stderr)
            sys.exit(2)

    return run
