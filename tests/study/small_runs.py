"""Runs of a study that are folders only."""

from collections.abc import Sequence
from pathlib import Path

from mmairl.study.runs import Run
from mmairl.study.spec import Row


def run_in(folder: Path, tasks: Sequence[str] = ('knn',)) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    return Run(Row(folder.name, 'mocov2plus_r50_200e.py'), 0, folder, tuple(tasks))
