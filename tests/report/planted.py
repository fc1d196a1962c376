"""Work directories and results with planted numbers."""

import json
from pathlib import Path

from mmairl.engine.curves import CONFIG


def write_run(work_dir: Path, *records: dict, config: dict | None = None) -> Path:
    folder = work_dir / '20260101_000000' / 'vis_data'
    folder.mkdir(parents=True)
    (folder / 'scalars.json').write_text('\n'.join(map(json.dumps, records)))
    if config:
        (folder.parent / CONFIG).write_text(json.dumps(config))
    return work_dir


def healthy(step: int, spread: float, **more) -> dict:
    stages = {f'health_gradient_norm_{stage}': 0.001 * step for stage in ('stem', 'layer1')}
    known = dict(health_contrast=0.05, health_positive=0.5, health_gradient_norm=0.2)
    return dict(step=50 * step, loss=3.0, health_spread_key=spread, **known, **stages, **more)


def write_result(folder: Path, name: str, scores: dict, data: str = 'flowers', **more) -> None:
    record = dict(
        protocol='knn',
        config=f'{data}.py',
        subject=name,
        scores=scores,
        seconds=1.0,
        checkpoint=f'{name}.pth',
    )
    folder.mkdir(exist_ok=True)
    number = len([*folder.iterdir()])
    (folder / f'{number:02}.json').write_text(json.dumps(record | more))
