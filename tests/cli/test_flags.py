"""Types of command-line values: numbers within a range, available devices, and config options."""

import argparse

import pytest

from mmairl.cli import flags


@pytest.mark.parametrize(
    'kind,good,bad',
    [
        (flags.positive, {'1': 1, '20': 20}, ['0', '1.5', 'x']),
        (flags.seed, {'0': 0, '4294967295': 2**32 - 1}, ['-1', '4294967296']),
        (flags.fraction, {'0': 0.0, '0.25': 0.25}, ['1.5', '-0.1', 'nan', 'x']),
        (flags.above_zero, {'0.1': 0.1, '3': 3.0}, ['0', '-1', 'inf', 'nan', 'x']),
        (flags.device, {'cpu': 'cpu'}, ['foo', 'cuda:99', '']),
    ],
)
def test_value_outside_of_its_range_is_an_error(kind, good, bad):
    assert {text: kind(text) for text in good} == good
    for text in bad:
        with pytest.raises(argparse.ArgumentTypeError, match='expected|not available'):
            kind(text)


def parsed(*words: str) -> dict:
    parser = argparse.ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=flags.ConfigOptions)
    return parser.parse_args(['--cfg-options', *words]).cfg_options


def test_options_keep_spaces_and_nest():
    assert parsed('root=my images', 'a.b=1e-3', 'c=[1,2]', 'd=(x,y)', 'e=None', 'f= true', 'g=', 'pair=(1, [2, a])') == {
        'root': 'my images', 'a.b': 1e-3, 'c': [1, 2], 'd': ('x', 'y'), 'e': None, 'f': True, 'g': '', 'pair': (1, [2, 'a']),
    }  # fmt: skip
    assert parsed("h={type: 'SGD', lr: 1e-1}", 'i="two words"') == {'h': dict(type='SGD', lr=0.1), 'i': 'two words'}


@pytest.mark.parametrize('word', ['epochs', 'a={b: [', 'a=[1,2', 'a={b: !!python/name:os.mkdir }'])
def test_option_that_cannot_be_parsed_is_an_error(word, capsys):
    with pytest.raises(SystemExit) as exit_error:
        parsed(word)
    assert exit_error.value.code == 2 and 'argument --cfg-options' in capsys.readouterr().err
