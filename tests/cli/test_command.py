"""Parsers that are made of functions, and the values of arguments."""

import argparse
from pathlib import Path
from typing import Literal

import pytest

from mmairl.cli.command import AboveZero, Count, Options, Positive, Seed, parser_of, value_of


def example(
    source: str,
    out: Path | None = None,
    *,
    kind: Literal['a', 'b'] = 'a',
    number: Positive | None = None,
    count: Count = 3,
    seed: Seed = 0,
    rate: AboveZero = 0.1,
    names: list[str] = (),
    fast: bool = False,
    options: Options = {},  # noqa: B006
) -> None:
    """Do something

    Args:
        source: read this
            file
        out: write this file (default: none)
        kind: choose a kind
        number: set a number
        count: set a count
        seed: set the seed
        rate: set the rate
        names: list names
        fast: be fast
        options: set options
    """


def parsed(*words: str) -> argparse.Namespace:
    return parser_of(example, 'example').parse_args(words)


def test_signature_gives_arguments_and_defaults():
    args = parsed(
        'a',
        'b',
        '--kind',
        'b',
        '--number',
        '2',
        '--names',
        'x',
        'y',
        '--fast',
        '--options',
        'a.b=1e-3',
    )
    assert vars(args) == dict(
        source='a', out=Path('b'), kind='b', number=2, count=3, seed=0, rate=0.1, names=['x', 'y'], fast=True,
        options={'a.b': 1e-3},
    )  # fmt: skip
    assert parsed('a').out is None and parsed('a').names == ()
    text = parser_of(example, 'example').format_help()
    assert (
        text.count('(default: 3)') == 1
        and 'read this file' in text
        and text.startswith('usage: example')
    )


@pytest.mark.parametrize(
    'words',
    [
        [],
        ['a', '--number', '0'],
        ['a', '--count', '-1'],
        ['a', '--seed', '4294967296'],
        ['a', '--rate', 'nan'],
        ['a', '--rate', '0'],
        ['a', '--kind', 'c'],
        ['a', '--options', 'lr'],
        ['a', '--options', 'a={b: ['],
        ['a', '--options', 'a={b: !!python/name:os.mkdir }'],
    ],
)
def test_wrong_words_are_an_error(words):
    with pytest.raises(SystemExit, match='2'):
        parsed(*words)


@pytest.mark.parametrize(
    'text, value',
    [
        ('my images', 'my images'),
        ('1e-3', 1e-3),
        ('[1,2]', [1, 2]),
        ('1,2', [1, 2]),
        ('a,b', ['a', 'b']),
        ('(x,y)', ('x', 'y')),
        ('(1, [2, a])', (1, [2, 'a'])),
        ('None', None),
        ('true', True),
        ('', ''),
        ('"1"', '1'),
        ('data/a-1', 'data/a-1'),
        ("{type: 'SGD', lr: 1e-1}", dict(type='SGD', lr=0.1)),
        ('[{type: Resize}]', [dict(type='Resize')]),
    ],
)
def test_values_are_read_as_by_openmmlab(text, value):
    assert value_of(text) == value
