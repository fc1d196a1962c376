"""The tasks of the papers' transfer tables, each with its config, its data and its scores."""

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
    """A protocol of `mmairl evaluate` on ImageNet, or a detection, segmentation or depth run of tasks.yaml.

    Attributes:
        config: Name of the config, with a placeholder for the depth.
        scores: The name of the run's score for each column. Columns are those of the papers, or names of our own.
        data: Paths that must exist. Empty if the config generates its data.
        depths: Depths of ResNets that have a config. Empty if one config serves all depths.
        protocol: The protocol of `mmairl evaluate`, if the task is one.
        platform: The package that runs the task.
        factor: Factor that makes a score a percentage.
        plain: Columns without the factor, such as meters.
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
            f"--tasks: {name} has no config for this depth ('ResNet-{depth}'), only for {known}; leave the task out",
            code='no-config-of-depth',
        )
    return home() / 'configs' / f'{task.config.format(depth=depth)}.py'


def chosen(requested: str | None, rescaled: bool = False) -> list[str]:
    """Return the requested tasks, or else those of the papers.

    A rescaled network has outdated batch statistics until it is trained. No protocol with frozen weights can evaluate it.
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
            f"--tasks: two tasks have the same column ('{repeated[0]}'); leave one of them out",
            code='repeated-column',
        )
    frozen = [name for name in names if TASKS[name].protocol] if rescaled else []
    if frozen and requested:
        raise UserError(
            f'--tasks: {", ".join(frozen)} would evaluate a rescaled network with outdated batch statistics; leave it out',
            code='rescaled-frozen',
        )
    return [name for name in names if name not in frozen]


def require_platform(tasks: list[str]) -> None:
    """Raise if mmdet or mmseg is missing for a task."""
    for name in tasks:
        task = TASKS[name]
        if task.protocol is None:
            message = f'{name}: requires {task.platform}, which cannot be imported'
            remedy = 'install it by requirements/install.sh full'
            with explained(message, remedy, code='no-package'):
                __import__(task.platform)  # mmdet also asserts mmcv's version
