"""The console script `mmairl`. It calls the function of the command that the user names."""

import argparse
import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module  # noqa: TID251  the modules of the commands below

from mmairl import __version__
from mmairl.cli.command import parser_of
from mmairl.errors import UserError, one_sentence_errors
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
)
SHELLS = ('bash', 'zsh')


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


def parse(arguments: Sequence[str]) -> list[str]:
    """Return the name of a command and its arguments. Answer `--help`, `--version` and `--print-completion`."""
    parser = argparse.ArgumentParser(
        prog='mmairl',
        usage='mmairl COMMAND [arguments]',
        description='Run one of the commands of mmairl; `mmairl COMMAND --help` lists its arguments.',
        epilog='commands:\n' + '\n'.join(f'  {name:12} {summary_of(name)}' for name in COMMANDS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'command', choices=COMMANDS, metavar='COMMAND', help='choose one of the commands below'
    )
    parser.add_argument(
        '--print-completion',
        choices=SHELLS,
        action=PrintCompletion,
        help='print a script for tab completion in this shell and exit',
    )
    parser.add_argument('--version', action='version', version=f'mmairl {__version__}')
    if not arguments:
        parser.print_help(sys.stderr)
        parser.exit(2)
    parser.parse_args(arguments[:1] if arguments[0] in COMMANDS else arguments)
    return list(arguments)


class PrintCompletion(argparse.Action):
    """Print a script for tab completion, which shtab generates from the parsers of all commands, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str,
        option: str | None = None,
    ) -> None:
        one_sentence_errors(print_completion)(values)
        parser.exit()


def print_completion(shell: str) -> None:
    """Print the script for tab completion in a shell.

    Raises:
        UserError: If shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise UserError(
            "--print-completion requires a package ('shtab'); pip install shtab",
            code='missing-shtab',
        ) from error
    root = argparse.ArgumentParser(prog='mmairl')
    commands = root.add_subparsers()
    for name in COMMANDS:
        parents = [parser_for(name)]
        commands.add_parser(name, help=summary_of(name), parents=parents, add_help=False)
    print(shtab.complete(root, shell))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name.

    Args:
        arguments: The name of a command, followed by its arguments. Default: the arguments of this process.
    """
    prepare()
    words = parse(sys.argv[1:] if arguments is None else arguments)
    function, program, rest = find(words)
    values = vars(parser_of(function, program).parse_args(rest))
    one_sentence_errors(partial(function, **values))()
