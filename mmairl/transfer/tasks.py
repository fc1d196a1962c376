"""The transfer tasks of the papers, and tasks on synthetic scenes. tasks.yaml lists those that mmdet and mmseg run."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmairl.config import home
from mmairl.errors import UserError, explained
from mmairl.evaluation.metrics import LOWER_IS_BETTER
from mmairl.evaluation.protocol import protocol_class
from mmairl.io import read_yaml
from mmairl.registry import PROTOCOLS


@dataclass(frozen=True)
class Task:
    """A transfer task: an evaluation protocol on ImageNet, or a detection, segmentation or depth task in tasks.yaml.

    Attributes:
        config: Name of the config. It can contain a placeholder for the depth of the ResNet.
        scores: Dictionary from the task's columns in the results table to the names of the scores in the task's output.
        data: Paths that must exist. The tuple is empty if the config generates its data.
        depths: The depths of ResNets for which there are configs. The tuple is empty if one config supports all depths.
        protocol: Name of the protocol of `mmairl evaluate`. None if the task is in tasks.yaml.
        platform: The package that runs a task in tasks.yaml, mmdet or mmseg.
        factor: The factor that converts a score in the task's output to a percentage.
        plain: The columns that are not multiplied by `factor`: errors, for example in meters, of which lower ones are better.
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
        """Return the factor that converts a score in the task's output to the unit of this column."""
        return 1 if column in self.plain else self.factor

    def measured(self, scores: Mapping[str, float]) -> bool:
        """Return whether all scores of the task are in a dictionary."""
        return set(self.scores.values()) <= scores.keys()


DEFAULT = 'knn,linear,voc07,voc0712,coco_c4,coco_fpn,cityscapes'


def _protocols() -> dict[str, Task]:
    """Return a task on ImageNet for each evaluation protocol that has columns in the tables of the ECCV 2022 paper."""
    data = ('data/imagenet/train', 'data/imagenet/val')
    columns = {name: dict(protocol_class(name).columns) for name in PROTOCOLS.names()}
    return {
        name: Task('evaluation/imagenet_r50', scores, data, (), protocol=name, factor=1)
        for name, scores in columns.items()
        if scores
    }


TASKS = _protocols() | read_yaml(Path(__file__).with_name('tasks.yaml'), dict[str, Task])
ERRORS = {column for task in TASKS.values() for column in task.plain}
LOWER_IS_BETTER.update(ERRORS)


def lacking(task: Task, root: Path) -> list[Path]:
    """Return the data paths of a task that do not exist."""
    return [root / path for path in task.data if not (root / path).exists()]


def task_config(name: str, depth: int) -> Path:
    """Return the path of the config of a task for a ResNet of this depth. Raise if the task has no config for this depth."""
    task = TASKS[name]
    if task.depths and depth not in task.depths:
        known = ', '.join(f'ResNet-{known}' for known in task.depths)
        raise UserError(
            f"--tasks: {name} has no config for this depth ('ResNet-{depth}'), only for {known}; leave {name} out",
            code='no-config-of-depth',
        )
    return home() / 'configs' / f'{task.config.format(depth=depth)}.py'


def chosen(requested: str | None, rescaled: bool = False) -> list[str]:
    """Return the names of the requested tasks. By default, return the names in DEFAULT. Raise if the request is invalid.

    `rescaled` states that NormRescale changed the weights of the network. Its batch statistics are then outdated until it is
    trained, so protocols that freeze the network are left out by default, and requesting them is an error.
    """
    names = (requested or DEFAULT).split(',')
    if unknown := [name for name in names if name not in TASKS]:
        raise UserError(
            f"--tasks: unknown task ('{unknown[0]}'); expected one of {', '.join(TASKS)}",
            code='unknown-task',
        )
    columns = Counter(column for name in names for column in TASKS[name].scores)
    if repeated := [column for column, count in columns.items() if count > 1]:
        raise UserError(
            f"--tasks: two tasks fill the same column of the results table ('{repeated[0]}'); leave one of them out",
            code='repeated-column',
        )
    frozen = [name for name in names if TASKS[name].protocol] if rescaled else []
    if frozen and requested:
        raise UserError(
            f"--tasks: these protocols freeze the network, whose batch statistics NormRescale has made outdated ('{frozen}'); "
            'leave them out',
            code='rescaled-frozen',
        )
    return [name for name in names if name not in frozen]


def require_platform(tasks: list[str]) -> None:
    """Raise if a task requires mmdet or mmseg and the package cannot be imported."""
    for task in map(TASKS.get, tasks):
        if task.protocol is None:
            message = f'{task.config}: requires {task.platform}, which cannot be imported'
            remedy = "pip install 'mmairl[openmmlab,transfer]'"
            with explained(message, remedy, code='no-package'):
                __import__(task.platform)  # this also checks that the version of mmcv is supported
