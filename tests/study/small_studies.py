"""Studies of seconds: a scale with tiny networks on drawn shapes, and rows that are never trained."""

from pathlib import Path
from typing import Any

import yaml

from mmairl.study.fairness import Prepared, resolve_study
from mmairl.study.scale import Scale, read_scale
from mmairl.study.study import Row, Study

ROOT = Path(__file__).parents[2]
SGD = Row('SGD', 'mocov2plus_r50_200e.py')
LARS = Row(
    'LARS',
    'mocov2plus_lars_r50_200e.py',
    against='SGD',
    declares=('optim_wrapper',),
)


def toy_scale(images: int = 64, **changes: Any) -> dict[str, Any]:
    """Return the content of the scale `demo` with narrower networks and with `images` training images."""
    scale = yaml.safe_load((ROOT / 'configs/studies/_scales/demo.yaml').read_text())
    data = dict(type='Shapes', split='train', count=images, size=24)
    for kind in ('mmpretrain.ResNet', 'ResNet'):
        scale['parts'][kind].update(stem_channels=8, base_channels=8)
    scale['views']['RandomResizedCrop']['size'] = 16
    scale['merge']['evaluation'] = dict(_delete_=True, train=data, test={**data, 'split': 'val'})
    scale['merge'] |= {'default_hooks.logger.interval': 2}
    sizes = dict(
        widths=dict(features=64, hidden=32, out=16),
        images=images,
        batch=16,
        queue=64,
    )
    return {
        **scale,
        'seeds': [],
        'data': data,
        'tasks': ['knn'],
        'epochs': 0.015,
        **sizes,
        **changes,
    }


def written(folder: Path, study: dict, **scale: Any) -> list[str]:
    """Write a study and its scale to a folder. Return the arguments of `mmairl study` that run the study there."""
    for name, content in (
        ('toy.yaml', toy_scale(**scale)),
        ('study.yaml', study),
    ):
        (folder / name).write_text(yaml.safe_dump(content, sort_keys=False))
    paths = [str(folder / name) for name in ('study.yaml', 'toy.yaml', 'out')]
    return [paths[0], '--scale', paths[1], '--out', paths[2], '--jobs', '1']


def prepared(
    *rows: Row,
    out: Path,
    tasks=('knn',),
    scale: Scale | None = None,
    **study: Any,
) -> Prepared:
    """Return a study of the given rows at the scale `demo`, without untrained rows."""
    small = scale or Scale(**{**_plain(read_scale('demo')), 'untrained': ()})
    return resolve_study(Study('title', rows=rows, **study), small, tasks, out)


def _plain(scale: Scale) -> dict[str, Any]:
    return {name: getattr(scale, name) for name in scale.__struct_fields__}
