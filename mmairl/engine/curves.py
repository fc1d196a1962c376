"""Read the curves and the config of a run from the files that its visualizer and its runner wrote."""

import json
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
    files = sorted(Path(work_dir).glob(f'*/{SCALARS}'))
    if not files:
        raise UserError(
            f'{work_dir}: no */{SCALARS}; give the work dir of a training run',
            code='no-curves',
        )
    curves: dict[str, dict[int, float]] = {}
    for file in files:
        for name, values in _scalars_of_a_start(file).items():
            # A later start replaces the values that earlier starts logged at or after its first step.
            first = min(values)
            before = {step: value for step, value in curves.get(name, {}).items() if step < first}
            curves[name] = {**before, **values}
    return {name: (list(values), list(values.values())) for name, values in curves.items()}


def _scalars_of_a_start(file: Path) -> dict[str, dict[int, float]]:
    """Return the scalars that a start of a run logged, by name and step."""
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
    return scalars


def read_run_config(work_dir: str | Path) -> dict[str, Any]:
    """Return the config of the last start of a run, or {} if there is none."""
    configs = sorted(Path(work_dir).glob(f'*/{CONFIG}'))
    return read_json(configs[-1], dict) if configs else {}
