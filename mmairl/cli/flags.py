"""Create the parsers of commands, and parse the values of arguments.

Imports at the top of this module must be fast, because `--help` must be fast.
"""

import argparse
import ast
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PARTS = ('student', 'teacher')


class CommandParser(argparse.ArgumentParser):
    """The parser of a command's arguments.

    In the context `inspecting`, `parse_args` parses nothing. It raises ParserBuilt with the parser, which `parser_for` in
    main.py returns.
    """

    inspected = False

    def parse_args(self, *arguments: Any, **options: Any) -> argparse.Namespace:
        if CommandParser.inspected:
            raise ParserBuilt(self)
        return super().parse_args(*arguments, **options)


class ParserBuilt(Exception):
    """Raised in the context `inspecting` to pass the parser of a command to `parser_for`."""


@contextmanager
def inspecting() -> Iterator[None]:
    """Make each command raise ParserBuilt instead of parsing its arguments, as soon as its parser is complete."""
    CommandParser.inspected = True
    try:
        yield
    finally:
        CommandParser.inspected = False


def parser_of(command: str, description: str | None) -> CommandParser:
    """Return the parser of a command. The help keeps the line breaks of the description."""
    formatter = argparse.RawDescriptionHelpFormatter
    return CommandParser(
        prog=f'mmairl {command}', description=description, formatter_class=formatter
    )


def add_switch(parser: Any, flag: str, help: str) -> None:
    """Add an option that takes no value and is off by default."""
    parser.add_argument(flag, action='store_true', help=help)


def add_part(
    parser: argparse.ArgumentParser, flag: str = '--part', checkpoint: str = 'the checkpoint'
) -> None:
    """Add the option that chooses between student and teacher."""
    parser.add_argument(
        flag,
        choices=PARTS,
        default='student',
        help=f'choose the network in {checkpoint} (default: student)',
    )


def add_network(parser: argparse.ArgumentParser) -> None:
    """Add the option for the config of a network, which is required if the network cannot be detected from its tensors."""
    parser.add_argument(
        '--config',
        help='build the network of this config; required for networks other than ResNets and ViTs (default: detect it)',
    )


def add_loading(parser: argparse.ArgumentParser, batch: str = '--batch') -> None:
    """Add the options for the batch size, the data workers and the device of a computation on images."""
    parser.add_argument(batch, type=positive, default=64, help='set the batch size (default: 64)')
    parser.add_argument(
        '--workers', type=count, default=0, help='load images in this many processes (default: 0)'
    )
    parser.add_argument(
        '--device', type=device, help='compute on this device (default: the GPU if any)'
    )


def add_launcher(parser: Any, **settings: Any) -> None:
    """Add the option for the launcher of a run with several processes."""
    parser.add_argument(
        '--launcher',
        choices=['none', 'pytorch', 'slurm'],
        help='set the launcher that started the processes of this run (default: none)',
        **settings,
    )


def add_prefix(
    parser: argparse.ArgumentParser, flag: str = '--prefix', file: str = 'the file'
) -> None:
    """Add the option for the prefix that the keys of a backbone have in a file."""
    parser.add_argument(
        flag,
        help=f'set the prefix of the backbone in the keys of {file} (default: detect it)',
    )


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """Return a function that parses whole numbers from `least` to `most`, to use as the type of an argument."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r'-?\d+', text) else None
        if value is None or not least <= value <= most:
            values = f'from {least} to {most}' if most < math.inf else f'of {least} or more'
            raise argparse.ArgumentTypeError(
                f'{text!r}: expected a whole number {values}; correct the number'
            )
        return value

    return parse


positive = whole(1)
count = whole(0)
seed = whole(0, 2**32 - 1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # NaN is in no range, so callers report an error


def fraction(text: str) -> float:
    """Parse a number from 0 to 1."""
    if not 0 <= (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(
            f'{text!r}: expected a number from 0 to 1; correct the number'
        )
    return value


def above_zero(text: str) -> float:
    """Parse a finite number above 0."""
    if not 0 < (value := _number(text)) < math.inf:
        raise argparse.ArgumentTypeError(f'{text!r}: expected a number above 0; correct the number')
    return value


def device(text: str) -> str:
    """Parse the name of a device, and raise if torch cannot use this device on this machine."""
    if text == 'cpu':
        return text
    import torch

    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(
            f'{text!r}: the device is not available ({reason}); give cpu, cuda or cuda:N'
        ) from error
    return text


def add_config_options(
    parser: argparse.ArgumentParser, flag: str = '--cfg-options', **settings: Any
) -> None:
    """Add the option `--cfg-options key=value ...`."""
    parser.add_argument(
        flag,
        nargs='+',
        action=ConfigOptions,
        default={},
        metavar='KEY=VALUE',
        help='override config keys, such as optim_wrapper.optimizer.lr=0.1 (default: none)',
        **settings,
    )


class ConfigOptions(argparse.Action):
    """Parse `--cfg-options key=value ...` like mmengine, but keep spaces in text and accept dictionaries such as `{a: 1}`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        options = dict(getattr(namespace, self.dest) or {})
        for word in values:
            key, equals, text = word.partition('=')
            try:
                if not equals:
                    raise ValueError('no =')
                options[key] = option_value(text)
            except ValueError as error:
                reason = ' '.join(str(error).split())
                message = f'{word}: expected key=value ({reason})'
                raise argparse.ArgumentError(self, message) from error
        setattr(namespace, self.dest, options)


def option_value(text: str) -> Any:
    """Parse the value of a config option.

    >>> option_value('(1, [2, a])')
    (1, [2, 'a'])
    """
    text = text.strip()
    if text.startswith('{'):
        return _mapping(text)
    if len(text) > 1 and text[0] == text[-1] and text[0] in '"\'':
        return text[1:-1]
    if text[:1] in ('[', '(') or ',' in text:
        return _items(text)
    return _scalar(text)


def _mapping(text: str) -> Any:
    import yaml

    from mmairl.io import PlainLoader

    try:
        return yaml.load(text, Loader=PlainLoader)
    except yaml.YAMLError as error:
        raise ValueError(error) from error


def _items(text: str) -> Any:
    """Parse lists and tuples, which may be nested. Spaces in them are dropped, as in mmengine."""
    words = re.sub(r'[^][(),]+', lambda word: repr(word[0].strip('\'"')), text.replace(' ', ''))
    closed = re.sub(r'(?<=[^(,])\)', ',)', words)  # Python requires a comma in a tuple of one item
    try:
        return _typed(ast.literal_eval(closed if text[0] in '[(' else f'[{closed}]'))
    except (ValueError, SyntaxError) as error:
        raise ValueError(f'unbalanced brackets in {text}') from error


def _typed(value: Any) -> Any:
    return _scalar(value) if isinstance(value, str) else type(value)(map(_typed, value))


def _scalar(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    words = {'true': True, 'false': False}
    return None if text == 'None' else words.get(text.lower(), text)
