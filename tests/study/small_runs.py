"""Runs of a study that are folders only, and waiting with an end."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mmairl.study.runs import Run
from mmairl.study.spec import Row


def run_in(folder: Path, tasks: Sequence[str] = ('knn',)) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    return Run(Row(folder.name, 'mocov2plus_r50_200e.py'), 0, folder, tuple(tasks))


def wait_for(condition: Callable[[], bool], seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, 'waited in vain'
        time.sleep(0.02)
