"""The console script `mmairl`. It calls the function of the command that the user names."""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module  # noqa: TID251  the modules of the commands below

from mmairl import __version__
from mmairl.cli.command import parser_of
from mmairl.errors import one_sentence_errors
from mmairl.signals import prepare

COMMANDS = (
    'train',
    'evaluate',
    'study',
    'transfer',
    'convert',
    'normrescale',
    'analyze',
    'report',
    'embed',
    'pack',
    'demo',
    'completion',
)


def find(words: Sequence[str]) -> tuple[Callable[..., None], str, Sequence[str]]:
    """Return the function of a command, the name of its program, and its arguments."""
    command, *arguments = words
    module = import_module(f'mmairl.cli.{command}')
    pages = getattr(module, 'PAGES', {})
    if arguments and arguments[0] in pages:
        return pages[arguments[0]], f'mmairl {command} {arguments[0]}', arguments[1:]
    return getattr(module, command), f'mmairl {command}', arguments


def parser_for(*words: str) -> argparse.ArgumentParser:
    """Return the parser of a command, such as `parser_for('report', 'health')`."""
    function, program, _ = find(words)
    return parser_of(function, program)


def summary_of(command: str) -> str:
    return inspect.getdoc(find([command])[0]).split('\n')[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name.

    Args:
        arguments: The name of a command, followed by its arguments. Default: the arguments of this process.
    """
    prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in COMMANDS:
        lines = [f'  {name:12} {summary_of(name)}' for name in COMMANDS]
        parser = argparse.ArgumentParser(
            prog='mmairl',
            usage='mmairl COMMAND [arguments]',
            description='Run a command; `mmairl COMMAND --help` lists its arguments.',
            epilog='\n'.join(['commands:', *lines]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument('command', choices=COMMANDS, metavar='COMMAND', help='a command below')
        parser.add_argument('--version', action='version', version=f'mmairl {__version__}')
        parser.parse_args(words)
    function, program, rest = find(words)
    values = vars(parser_of(function, program).parse_args(rest))
    one_sentence_errors(partial(function, **values))()
