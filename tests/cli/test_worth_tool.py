"""The command line of worth: what it says when it is told to stop."""

import pytest

from mmairl.apis import worth
from mmairl.signals import AGAIN, Stopped


def test_a_comparison_that_is_told_to_stop_says_that_the_same_command_goes_on(run_tool, monkeypatch, capsys):
    def stopped(**_: object) -> None:
        raise Stopped('stopped by SIGTERM after 4 iterations: iter_4.pth is written; go on with --resume')

    monkeypatch.setattr(worth, 'worth', stopped)
    with pytest.raises(SystemExit) as left:
        run_tool('tools/worth.py', 'images')
    assert left.value.code == AGAIN
    assert capsys.readouterr().err.splitlines()[-1] == (
        'stopped by SIGTERM after 4 iterations: iter_4.pth is written; the same command goes on'
    )
