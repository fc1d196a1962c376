"""The console script `mmairl`. It calls the module of the command that the user names."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module  # noqa: TID251  the modules of the commands below

from mmairl import __version__
from mmairl.cli import prepare
from mmairl.cli.flags import ParserBuilt, inspecting
from mmairl.errors import UserError, one_sentence_errors

COMMANDS = {
    'train': 'pre-train a model from a config',
    'evaluate': 'measure a checkpoint: k-NN, linear, logistic regression, SVM, fine-tuning',
    'transfer': 'run the detection, segmentation and classification tasks that papers use to compare backbones',
    'study': 'run a study: train, evaluate and compare several configs',
    'demo': 'pre-train a small model and write a page about it, in minutes on a CPU',
    'normrescale': 'rescale a LARS-trained backbone to the weight norms of another checkpoint',
    'convert': 'write a backbone in another format',
    'analyze': 'compare representations: weight norms, CKA, geometry',
    'report': 'write a page about results, one or several runs, or augmented views, or draw a map of images',
    'pack': 'pack a data set into tar archives, or measure its channel statistics',
}
SHELLS = ('bash', 'zsh')


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    width = max(map(len, COMMANDS))
    lines = [f'  {name:{width}}  {summary}' for name, summary in COMMANDS.items()]
    parser = argparse.ArgumentParser(
        prog='mmairl',
        usage='mmairl COMMAND [arguments]',
        description='Run one of the commands of mmairl; `mmairl COMMAND --help` lists its arguments.',
        epilog='\n'.join(['commands:', *lines]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        'command', choices=COMMANDS, metavar='COMMAND', help='choose one of the commands below'
    )
    parser.add_argument('arguments', nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
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
    return parser.parse_args(arguments)


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
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=summary, parents=[parser_for(name)], add_help=False)
    print(shtab.complete(root, shell))


def parser_for(command: str, *words: str) -> argparse.ArgumentParser:
    """Return the parser of a command, such as `parser_for('report', 'health')`, for completion and documentation."""
    with inspecting():
        try:
            import_module(f'mmairl.cli.{command}').main(words)
        except ParserBuilt as built:
            return built.args[0]
    raise AssertionError(f'{command} has no parser')


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that the arguments name.

    Args:
        arguments: The name of a command, followed by its arguments. Default: the arguments of this process.
    """
    prepare()
    args = parse(sys.argv[1:] if arguments is None else arguments)
    command = import_module(f'mmairl.cli.{args.command}')
    one_sentence_errors(command.main)(args.arguments)
