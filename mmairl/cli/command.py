"""Make a command of a function: its signature gives the arguments, and its docstring gives their help.

A parameter before `*` is a positional argument, and a keyword-only parameter `per_gpu` is the option `--per-gpu`.
Imports at the top of this module must be fast, because `--help` must be fast.
"""

import argparse
import ast
import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import yaml


class How:
    """How argparse reads a parameter, as in `Annotated[int, How(metavar='N')]`."""

    def __init__(self, **options: Any) -> None:
        self.options = options


def parser_of(function: Callable[..., None], program: str) -> argparse.ArgumentParser:
    """Return the parser of a command."""
    text, _, documented = inspect.getdoc(function).partition('\n\nArgs:\n')
    parser = argparse.ArgumentParser(
        prog=program,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    kinds = typing.get_type_hints(function, include_extras=True)
    lines = re.findall(r'^    (\w+): (.*(?:\n {8}.*)*)', documented, re.MULTILINE)
    helps = {name: ' '.join(help.split()) for name, help in lines}
    for name, parameter in inspect.signature(function).parameters.items():
        add_argument(parser, parameter, kinds[name], helps[name])
    return parser


def add_argument(
    parser: argparse.ArgumentParser, parameter: inspect.Parameter, kind: Any, text: str
) -> None:
    """Add the argument for a parameter of this type. The help states the default unless the text states it."""
    options = options_of(kind)
    name = parameter.name
    required = parameter.default is parameter.empty
    if not required:
        options['default'] = parameter.default
        if parameter.default and '(default' not in text:
            text += f' (default: {parameter.default})'
    if parameter.kind is parameter.KEYWORD_ONLY:
        name = '--' + name.replace('_', '-')
        options['required'] = required
    elif not required:
        options.setdefault('nargs', '?')
    parser.add_argument(name, help=text.replace('%', '%%'), **options)


def options_of(kind: Any) -> dict[str, Any]:
    """Return the options with which argparse reads a value of this type."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return options_of(parts[0]) | parts[1].options
    if origin in (types.UnionType, typing.Union):  # such as `int | None`
        return options_of(parts[0])
    if origin is Literal:
        return dict(choices=parts)
    if origin is list:
        return options_of(parts[0]) | dict(nargs='+')
    return dict(action='store_true') if kind is bool else dict(type=kind)


def number(kind: type, above: float, below: float = math.inf) -> Callable[[str], float]:
    """Return a function that parses numbers between two limits."""

    def parse(text: str) -> float:
        value = kind(text)
        if not above < value < below:
            raise argparse.ArgumentTypeError(
                f'{text!r}: expected a number above {above}; correct the number'
            )
        return value

    # argparse names the function in errors.
    parse.__name__ = kind.__name__
    return parse


class KeyValues(argparse.Action):
    """Parse `key=value ...` like OpenMMLab's tools, but keep spaces in text and accept dictionaries such as `{a: 1}`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Sequence[str],
        option: str | None = None,
    ) -> None:
        options = dict(getattr(namespace, self.dest) or {})
        for word in values:
            key, equals, text = word.partition('=')
            if not equals:
                raise argparse.ArgumentError(self, f'{word}: expected key=value')
            try:
                options[key] = value_of(text.strip())
            except yaml.YAMLError as error:
                reason = ' '.join(str(error).split())
                raise argparse.ArgumentError(self, f'{word}: {reason}') from error
        setattr(namespace, self.dest, options)


def value_of(text: str) -> Any:
    """Parse the value of a config key: a Python literal, a YAML list or mapping, a list without brackets, or text.

    >>> value_of('(1, [2, a])')
    (1, [2, 'a'])
    """
    try:
        value = ast.literal_eval(text)
        return list(value) if isinstance(value, tuple) and text[0] != '(' else value
    except (ValueError, SyntaxError):
        pass
    # This import takes a while, and most values are Python literals.
    from mmairl.io import PlainLoader

    if text.startswith('('):
        return tuple(yaml.load(f'[{text[1:-1]}]', PlainLoader))
    if text.startswith(('[', '{')) or text.lower() in ('true', 'false'):
        return yaml.load(text, PlainLoader)
    return [value_of(part) for part in text.split(',')] if ',' in text else text


Count = Annotated[int, How(type=number(int, -1), metavar='N')]
Positive = Annotated[int, How(type=number(int, 0), metavar='N')]
Seed = Annotated[int, How(type=number(int, -1, 2**32))]
AboveZero = Annotated[float, How(type=number(float, 0))]
Options = Annotated[dict, How(nargs='+', action=KeyValues, metavar='KEY=VALUE', type=str)]
Part = Literal['student', 'teacher']
Launcher = Literal['none', 'pytorch', 'slurm']
