"""The curves of a run, read from the lines of JSON that mmengine's local visualizer wrote."""

import json
from collections.abc import Iterator
from pathlib import Path

from mmairl.errors import UserError

Curve = tuple[list[int], list[float]]


def read_scalars(work_dir: str | Path) -> dict[str, Curve]:
    """Every scalar of the run in `work_dir`, resumed or not, by name: its steps and values.

    >>> steps, losses = read_scalars('work_dirs/demo')['loss']  # doctest: +SKIP
    """
    curves: dict[str, dict[int, float]] = {}
    for own in _starts(work_dir):  # where two have a step, the later start counts
        for name, values in own.items():
            kept = {step: value for step, value in curves.get(name, {}).items() if step < min(values)}
            curves[name] = {**kept, **values}
    return {name: (list(values), list(values.values())) for name, values in curves.items()}


def first_steps(work_dir: str | Path) -> list[int]:
    """The first step that each start of the run logged: the second and later ones are where it went on."""
    return [min(step for values in own.values() for step in values) for own in _starts(work_dir) if own]


def _starts(work_dir: str | Path) -> Iterator[dict[str, dict[int, float]]]:
    """What each start of the run logged, by name and step."""
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise UserError(f'there is no */vis_data/scalars.json under {work_dir}; give the work_dir of a training run')
    for file in files:
        own: dict[str, dict[int, float]] = {}
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was killed while writing it
            step = record.pop('step', record.get('iter'))
            for name, value in record.items():
                if isinstance(value, int | float) and step is not None:
                    own.setdefault(name, {})[step] = value
        yield own
