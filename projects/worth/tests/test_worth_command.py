"""Test the command line of projects.worth."""

import pytest

from mmairl.signals import AGAIN, Stopped
from projects.worth import worth


def test_a_stopped_comparison_names_the_same_command(run_tool, monkeypatch, capsys):
    def stopped(**_: object) -> None:
        raise Stopped(
            'stopped by SIGTERM after 4 iterations: iter_4.pth is written; go on with --resume'
        )

    monkeypatch.setattr(worth, 'worth', stopped)
    with pytest.raises(SystemExit) as exit_info:
        run_tool('projects/worth/__main__.py', 'images')
    assert exit_info.value.code == AGAIN
    assert capsys.readouterr().err.splitlines()[-1] == (
        'stopped by SIGTERM after 4 iterations: iter_4.pth is written; run the same command to continue'
    )
