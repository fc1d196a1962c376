"""The command `mmairl completion`."""

import argparse
from typing import Literal

from mmairl.errors import UserError


def completion(shell: Literal['bash', 'zsh']) -> None:
    """Print a script for tab completion in a shell

    eval "$(mmairl completion bash)"

    Args:
        shell: choose the shell
    """
    from mmairl.cli.main import COMMANDS, parser_for, summary_of

    try:
        import shtab
    except ImportError as error:
        raise UserError(
            "completion: requires a package ('shtab'); pip install shtab",
            code='missing-shtab',
        ) from error
    root = argparse.ArgumentParser(prog='mmairl')
    commands = root.add_subparsers()
    for name in COMMANDS:
        parents = [parser_for(name)]
        commands.add_parser(name, help=summary_of(name), parents=parents, add_help=False)
    print(shtab.complete(root, shell))
