"""Read the curves and the config of a run from the files of mmengine's local visualizer."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from mmairl.errors import UserError, explained
from mmairl.io import read_text, typed

# A curve is the list of steps at which a scalar was logged, and the list of its values.
Curve = tuple[list[int], list[float]]
Step = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Position(msgspec.Struct):
    """The keys of a logged line that give its step: `step`, or `iter` if there is no `step`."""

    step: Step | None = None
    iter: Step | None = None


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


def first_steps(work_dir: str | Path) -> list[int]:
    """Return the first logged step of each start of a run. All starts but the first are resumes."""
    return [
        min(step for values in start.values() for step in values)
        for start in _starts(work_dir)
        if start
    ]


def _starts(work_dir: str | Path) -> Iterator[dict[str, dict[int, float]]]:
    """Yield the scalars that each start of the run logged, by name and step."""
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise UserError(
            f'{work_dir}: no */vis_data/scalars.json; give the work dir of a training run',
            code='no-curves',
        )
    for file in files:
        scalars: dict[str, dict[int, float]] = {}
        for number, line in enumerate(read_text(file).splitlines(), 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue  # The last line is incomplete if the run was killed while writing it.
            step, values = _logged(record, f'{file}, line {number}')
            for name, value in values.items():
                scalars.setdefault(name, {})[step] = value
        yield scalars


def _logged(record: Any, place: str) -> tuple[int, dict[str, float]]:
    """Return the step and the numbers of a logged line. Raise if the line is not a JSON object or a number is out of range."""
    position = typed(record, Position, place)
    step = record.pop('step', position.iter)
    if step is None:
        return 0, {}
    numbers = {name: value for name, value in record.items() if type(value) in (int, float)}
    typed(numbers, dict[str, float], place)
    return step, numbers


def read_run_config(work_dir: str | Path, start: int = -1) -> dict[str, Any]:
    """Read the config that mmengine wrote when a run started. The file is parsed, never executed.

    A resumed run has one config per start. `start` is the index of the config to read. Default: the last config. Return {} if
    there is no config.
    """
    configs = sorted(Path(work_dir).glob('*/vis_data/config.py'))
    if not configs:
        return {}
    what = f'{configs[start]}: not a config that a training run wrote'
    with explained(what, 'remove it', code='not-a-run-config'):
        lines = ast.parse(read_text(configs[start])).body
        assignments = [line for line in lines if isinstance(line, ast.Assign)]
        return {ast.unparse(line.targets[0]): _value(line.value) for line in assignments}


def _value(node: ast.expr) -> Any:
    """Return the value of a literal, which may contain calls of `dict`. Return the source text of other expressions."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict':
        content = dict(_value(node.args[0])) if node.args else {}
        content.update({keyword.arg: _value(keyword.value) for keyword in node.keywords})
        return content
    if isinstance(node, ast.Dict):
        return {ast.literal_eval(key): _value(item) for key, item in zip(node.keys, node.values)}
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
