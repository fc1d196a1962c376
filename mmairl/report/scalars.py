"""The curves of a run, read from the lines of JSON that mmengine's local visualizer wrote."""

import json
from pathlib import Path

from mmairl.errors import UserError

Curve = tuple[list[int], list[float]]


def read_scalars(work_dir: str | Path) -> dict[str, Curve]:
    """Every scalar of the latest run in `work_dir`, by name: its steps and values.

    >>> steps, losses = read_scalars('work_dirs/demo')['loss']  # doctest: +SKIP
    """
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise UserError(f'there is no */vis_data/scalars.json under {work_dir}; give the work_dir of a training run')
    curves: dict[str, Curve] = {}
    for line in files[-1].read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line of a run that was killed while writing it
        step = record.pop('step', record.get('iter'))
        for name, value in record.items():
            if isinstance(value, int | float) and step is not None:
                steps, values = curves.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    return curves
