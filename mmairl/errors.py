"""Errors that users can fix, and the exit codes of commands."""

import difflib
import functools
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from mmairl.signals import AGAIN, Listener, Stopped, leave, process_group, stop_processes

# This pattern finds URLs in a text. Its groups are the scheme, the user, the host with the path, and the rest: query, fragment
# or parameters. One slash after the scheme is enough, because pathlib removes the second slash. A chained URL
# (`zip://a::s3://b`) matches as two URLs. URLs of local files (`file://`) do not match, because the name of a local file may
# contain any character.
URL = re.compile(
    r"""(\b(?!file:)\w+:/{1,2})([^\s/?#'":]*:(?![:/])[^\s?#'"]*@|[^\s/?#'"]*@)?"""
    r"""((?:(?!::)[^\s?#;'"]|['"](?=[\w./-]))*)([?#;]\S*)?"""
)
AFTER_URL = '\'".,:;?#!)]}>'  # punctuation that may follow a URL in a text
# The only queries that a URL may have. Any other query may be a secret, whatever its name.
PLAIN_QUERY = re.compile(r'\?(versionId=[\w.+/=-]+|download=(true|1))(&download=(true|1))?')


def without_secrets(text: object) -> str:
    """Shorten every URL in a text to scheme, host and path, because the other parts may be a password or a signature.

    >>> without_secrets('no answer from https://me:pw@host/a.tar?sig=x')
    'no answer from https://host/a.tar'
    """
    return URL.sub(lambda url: url[1] + url[3] + _split_extra(url[4])[1], str(text))


def holds_secret(text: str) -> bool:
    """Return whether a URL in the text has a part that may be a secret.

    These parts are a password, the user of an HTTP URL, a query other than PLAIN_QUERY, a fragment, and parameters.
    """
    for scheme, user, _, extra in URL.findall(_joined(text)):
        if user and (':' in user or scheme.startswith('http')):
            return True
        extra, _ = _split_extra(extra)
        if extra and not PLAIN_QUERY.fullmatch(extra):
            return True
    return False


def refuse_secret(text: str, where: str) -> None:
    """Raise if a URL in the text may hold a secret. Call this function before the text reaches a file, a log or a terminal."""
    if holds_secret(text):
        raise UserError(
            f"{where}: the URL has a user, a query, a fragment or a parameter, which may be a secret ('{_joined(text)}'); "
            'remove this part, and configure credentials for the client of the storage instead',
            code='secret-in-url',
        )


def _joined(text: str) -> str:
    """Escape the spaces in a text that is a single URL. Otherwise the search for secrets would stop at the first space."""
    return re.sub(r'\s', '%20', text.strip()) if re.match(r'\s*[\w+.:-]+:/', text) else text


def _split_extra(extra: str | None) -> tuple[str, str]:
    """Split the text after a URL's path in two: the query, fragment or parameters, and punctuation that follows the URL."""
    query = (extra or '').rstrip(AFTER_URL)
    return query, (extra or '')[len(query) :]


class UserError(ValueError):
    """An error that users can fix. The message is one line that says where the error is, what is wrong, and what to do.

    Commands print it without a traceback. Secrets in URLs are removed and control characters are escaped.

    Args:
        message: The message. If it is the traceback of a data worker, only its last line is kept.
        code: A short, stable identifier such as ``'no-queue'``, for tests and for programs that handle the error.
    """

    def __init__(self, message: object = '', code: str = '') -> None:
        text = without_secrets(message).strip()
        if text.startswith('Caught '):
            text = re.sub(r'^mmairl\.[\w.]+: ', '', text.splitlines()[-1])
        super().__init__(printable(text))
        self.code = code


class Diverged(UserError):
    """An error for weights, losses or features that are not finite. A hyperparameter search ranks a trial with this
    error last.
    """


Kinds = tuple[type[Exception], ...]


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
    """Yield an error, then its cause, then the cause of the cause, and so on.

    If an error has no explicit cause, the error during whose handling it was raised counts as the cause.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def printable(name: object) -> str:
    r"""Escape line breaks and other control characters in a name, so that it can be printed on one line.

    >>> printable('cat\n\x1b[2J.jpg')
    'cat\\n\\x1b[2J.jpg'
    """
    return ''.join(
        char if char.isprintable() else char.encode('unicode_escape').decode() for char in str(name)
    )


def closest(name: str, known: Iterable[str], cutoff: float = 0.8) -> str:
    """Return `; did you mean 'NAME'?` with the known name closest to a misspelled name, or '' if none is close."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"; did you mean '{close[0]}'?" if close else ''


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
            print(f'error: {error}', file=sys.stderr)
            sys.exit(2)

    return run


@contextmanager
def cleared_frames() -> Iterator[None]:
    """If the block raises an error, clear the local variables in its traceback.

    A notebook keeps the last traceback, and the variables in it would keep data workers alive.
    """
    try:
        yield
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
        raise
