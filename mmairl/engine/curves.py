"""Read the curves and the config of a run from the files that its visualizer and its runner wrote."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmairl.errors import UserError
from mmairl.io import read_json

# A curve is the list of steps at which a scalar was logged, and the list of its values.
Curve = tuple[list[int], list[float]]
# The runner writes the config of each start to this file in the folder of its log.
CONFIG = 'config.json'
# mmengine's visualizer writes the scalars of each start to this file.
SCALARS = 'vis_data/scalars.json'


def read_scalars(work_dir: str | Path) -> dict[str, Curve]:
    """Return the curves of all scalars that a run logged. The keys are the names. The curves of a resumed run are joined."""
    curves: dict[str, dict[int, float]] = {}
    for start in _starts(work_dir):
        for name, values in start.items():
            # A later start replaces the values that earlier starts logged at or after its first step.
            first = min(values)
            before = {step: value for step, value in curves.get(name, {}).items() if step < first}
            curves[name] = {**before, **values}
    return {name: (list(values), list(values.values())) for name, values in curves.items()}


def _starts(work_dir: str | Path) -> Iterator[dict[str, dict[int, float]]]:
    """Yield the scalars that each start of the run logged, by name and step."""
    files = sorted(Path(work_dir).glob(f'*/{SCALARS}'))
    if not files:
        raise UserError(
            f'{work_dir}: no */{SCALARS}; give the work dir of a training run',
            code='no-curves',
        )
    for file in files:
        scalars: dict[str, dict[int, float]] = {}
        for line in file.read_text().splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue  # The last line is incomplete if the run was killed while writing it.
            step = record.pop('step', record.get('iter'))
            for name, value in record.items():
                if step is not None and type(value) in (int, float):
                    scalars.setdefault(name, {})[step] = value
        yield scalars


def read_run_config(work_dir: str | Path, start: int = -1) -> dict[str, Any]:
    """Return the config of a start of a run, or {} if there is none.

    A resumed run has one config per start. `start` is the index of the config to read. Default: the last config.
    """
    configs = sorted(Path(work_dir).glob(f'*/{CONFIG}'))
    return read_json(configs[start], dict) if configs else {}
