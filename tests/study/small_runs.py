"""Helpers for tests of studies: runs that are never trained, rows of a study's record, and a scale whose runs take
seconds.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from mmairl.study.runs import Run
from mmairl.study.spec import Row, read_study

ROOT = Path(__file__).parents[2]
START = dict(weights='a', shapes='b', order='c')


def rows_of(study: str) -> dict[str, Row]:
    """Return the rows of a built-in study as a dictionary, with their names as keys."""
    return {row.name: row for row in read_study(ROOT / f'configs/studies/{study}.yaml').rows}


def run_in(folder: Path, needs: tuple[Path, ...] = ()) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    return Run(Row(folder.name, 'mocov2plus_r50_200e.py'), 0, folder, ('knn',), needs)


def recorded(name: str, scores: Iterable[float | None], start: dict | None = START, **more: Any) -> dict[str, Any]:
    """Return a row of a study's record with the scores of seeds 0, 1, and so on.

    A score of None stands for a missing run.
    """
    finished = [(seed, float(value)) for seed, value in enumerate(scores) if value is not None]
    runs = [dict(seed=seed, state='done', scores={'knn': value}, start=start) for seed, value in finished]
    return dict(name=name, runs=runs, **more)


def toy_scale(images: int, **changes: Any) -> dict[str, Any]:
    """Return the content of the scale `demo` with narrower networks and with `images` training images."""
    scale = yaml.safe_load((ROOT / 'configs/studies/_scales/demo.yaml').read_text())
    del scale['seeds']  # Without `seeds`, the study's own seeds are used
    data = dict(type='Shapes', split='train', count=images, size=24)
    for kind in ('mmpretrain.ResNet', 'ResNet'):
        scale['parts'][kind].update(stem_channels=8, base_channels=8)
    scale['views']['RandomResizedCrop']['size'] = 16
    scale['replace'] = dict(evaluation=dict(train=data, test={**data, 'split': 'val'}))
    widths = dict(features=64, hidden=32, out=16)
    return {**scale, 'images': images, 'data': data, 'batch': 16, 'queue': 64, 'widths': widths, **changes}
