"""Reads a run's curves and its config, as mmengine's local visualizer wrote them."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmairl.errors import UserError, explained
from mmairl.io import LARGEST_LIST, read_text

Curve = tuple[list[int], list[float]]


def read_scalars(work_dir: str | Path) -> dict[str, Curve]:
    """Every scalar of the run in `work_dir`, resumed or not, by name: its steps and values."""
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
    """Yield the scalars that each start of the run logged, by name and step."""
    files = sorted(Path(work_dir).glob('*/vis_data/scalars.json'))
    if not files:
        raise UserError(f'there is no */vis_data/scalars.json under {work_dir}; give the work_dir of a training run')
    for file in files:
        own: dict[str, dict[int, float]] = {}
        for line in read_text(file, LARGEST_LIST).splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a run that was killed while writing it
            step = record.pop('step', record.get('iter'))
            for name, value in record.items():
                if isinstance(value, int | float) and step is not None:
                    own.setdefault(name, {})[step] = value
        yield own


def config_of(work_dir: str | Path, start: int = -1) -> dict[str, Any]:
    """Read the config that mmengine wrote at a start of the run, the last by default. A stranger's runs nothing."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'dict':
            return {
                **(value(node.args[0]) if node.args else {}),
                **{keyword.arg: value(keyword.value) for keyword in node.keywords},
            }
        if isinstance(node, ast.Dict):
            return {ast.literal_eval(key): value(item) for key, item in zip(node.keys, node.values)}
        if isinstance(node, (ast.List, ast.Tuple)):
            return [value(item) for item in node.elts]
        try:
            return ast.literal_eval(node)
        except ValueError:
            return ast.unparse(node)

    configs = sorted(Path(work_dir).glob('*/vis_data/config.py'))
    if not configs:
        return {}
    with explained(f'{configs[start]} is no config that a run has written', 'remove it'):
        lines = [line for line in ast.parse(read_text(configs[start])).body if isinstance(line, ast.Assign)]
        return {ast.unparse(line.targets[0]): value(line.value) for line in lines}
