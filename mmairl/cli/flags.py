"""The kinds of values that command lines take: each flag of each tool is checked here, where it is parsed."""

import argparse
import re
from collections.abc import Callable
from typing import Any

import torch
import yaml
from mmengine.config import DictAction

from mmairl.config import PlainLoader
from mmairl.errors import without_secrets


def whole(least: int, most: float = float('inf')) -> Callable[[str], int]:
    """A whole number from `least` on."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r'-?\d+', text) else None
        if value is None or not least <= value <= most:
            upto = f' to {most}' if most < float('inf') else ' or more'
            raise argparse.ArgumentTypeError(f'{text!r} is not a whole number of {least}{upto}; give one')
        return value

    return parse


positive = whole(1)
count = whole(0)
seed = whole(0, 2**32 - 1)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float('nan')  # which lies in no range


def fraction(text: str) -> float:
    """A number from 0 to 1."""
    if not 0 <= (value := _number(text)) <= 1:
        raise argparse.ArgumentTypeError(f'{text!r} is not a fraction; give a number from 0 to 1')
    return value


def above_zero(text: str) -> float:
    """A finite number above 0."""
    if not 0 < (value := _number(text)) < float('inf'):
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0; give one')
    return value


def device(text: str) -> str:
    """A device that torch knows and this machine has."""
    try:
        torch.empty(0, device=text)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise argparse.ArgumentTypeError(f'{text!r} is no device here ({reason}); give cpu, cuda or cuda:N') from error
    return text


class ConfigOptions(DictAction):
    """mmengine's `--cfg-options key=value ...`, which keeps spaces in text and takes `{a: 1}` for a nested value."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        try:
            super().__call__(parser, namespace, values, option)
        except (AssertionError, yaml.YAMLError, ValueError) as error:
            said = without_secrets(f'{" ".join(values)} is not of the form key=value ({" ".join(str(error).split())})')
            raise argparse.ArgumentError(self, said) from error

    @staticmethod
    def _parse_iterable(val: str) -> Any:
        text = val.strip()
        if text.startswith('{'):
            return yaml.load(text, Loader=PlainLoader)
        if len(text) > 1 and text[0] == text[-1] and text[0] in '"\'':
            return text[1:-1]
        if text[:1] in ('[', '(') or ',' in text:
            return DictAction._parse_iterable(text)  # lists and tuples, in which mmengine drops spaces
        return DictAction._parse_int_float_bool(text)
