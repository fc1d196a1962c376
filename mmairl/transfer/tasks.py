"""The tasks of the transfer tables: each task's config, the data it needs, and the scores that the papers print."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mmairl.config import home
from mmairl.errors import UserError, explained
from mmairl.evaluation.protocol import protocol_class
from mmairl.io import read_yaml
from mmairl.registry import PROTOCOLS


@dataclass(frozen=True)
class Task:
    """A protocol of evaluate.py on ImageNet, or a detection or segmentation run of tasks.yaml.

    Attributes:
        config: Name of the config, with a place for the depth.
        scores: Name of the run's score for each column of the papers, or for a name of our own.
        data: Paths that must exist. Without any, the config draws its data.
        depths: Depths with a config. Without any, one config serves all.
        protocol: The protocol of evaluate.py, if it is one.
        platform: The package that runs it.
        factor: Factor that makes a score a percentage.
        plain: Columns that the factor does not apply to, such as meters.
    """

    config: str
    scores: dict[str, str]
    data: tuple[str, ...] = ()
    depths: tuple[int, ...] = (18, 50, 101)
    protocol: str | None = None
    platform: str = 'mmdet'
    factor: float = 100
    plain: tuple[str, ...] = ()

    def times(self, column: str) -> float:
        """Return the factor between a run's score and a column of the papers."""
        return 1 if column in self.plain else self.factor


DEFAULT = 'knn,linear,voc07,voc0712,coco_c4,coco_fpn,cityscapes'


def _protocols() -> dict[str, Task]:
    """Return the protocols with columns in the papers' tables, on ImageNet."""
    tasks = {}
    for name in PROTOCOLS.names():
        columns = dict(protocol_class(name).columns)
        if columns:
            tasks[name] = Task(
                'evaluation/imagenet_r50',
                columns,
                data=('data/imagenet/train', 'data/imagenet/val'),
                protocol=name,
                factor=1,
            )
    return tasks


TASKS = _protocols() | read_yaml(Path(__file__).with_name('tasks.yaml'), dict[str, Task])


def lacking(task: Task, root: Path) -> list[Path]:
    """Return the data that does not exist."""
    return [root / path for path in task.data if not (root / path).exists()]


def task_config(name: str, depth: int) -> Path:
    """Return the config of a task for a backbone of this depth. A protocol's config serves every depth."""
    task = TASKS[name]
    if task.depths and depth not in task.depths and not task.protocol:
        known = ', '.join(f'ResNet-{known}' for known in task.depths)
        raise UserError(
            f'{name} has configs for {known}, not for ResNet-{depth}; leave the task out',
            code='no-config-of-depth',
        )
    return home() / 'configs' / f'{task.config.format(depth=depth)}.py'


def chosen(requested: str | None, rescaled: bool = False) -> list[str]:
    """Return the tasks to run: the requested ones, or all of the papers.

    A rescaled network has outdated batch statistics until it is trained, so no protocol scores it as it is.
    """
    names = (requested or DEFAULT).split(',')
    for name in names:
        if name not in TASKS:
            raise UserError(
                f"--tasks: unknown task ('{name}'); expected one of {', '.join(TASKS)}",
                code='unknown-task',
            )
    columns = Counter(column for name in names for column in TASKS[name].scores)
    repeated = [column for column, count in columns.items() if count > 1]
    if repeated:
        raise UserError(
            f"--tasks: two of the tasks have the same column ('{repeated[0]}'); choose one of them",
            code='repeated-column',
        )
    frozen = [name for name in names if TASKS[name].protocol] if rescaled else []
    if frozen and requested:
        raise UserError(
            f'--tasks: {", ".join(frozen)} would score a rescaled network with outdated batch statistics; leave it out',
            code='rescaled-frozen',
        )
    return [name for name in names if name not in frozen]


def require_platform(tasks: list[str]) -> None:
    """Raise, before anything runs, if mmdet or mmseg is missing for a task."""
    for name in tasks:
        task = TASKS[name]
        if task.protocol is None:
            message = f'{name} needs {task.platform}, which cannot be imported'
            remedy = 'requirements/install.sh full installs it'
            with explained(message, remedy, code='no-package'):
                __import__(task.platform)  # mmdet also asserts mmcv's version
