"""The tasks of the transfer tables: each task's config, the data it needs, and the scores that the papers print."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mmairl.config import home
from mmairl.errors import UserError, explained
from mmairl.evaluation.protocol import protocol_class
from mmairl.registry import PROTOCOLS


@dataclass(frozen=True)
class Task:
    """A protocol of evaluate.py on ImageNet, or a detection or segmentation run.

    Attributes:
        config: Name of the config, with a place for the depth.
        data: Paths that must exist. Without any, the config draws its data.
        scores: Name of the run's score for each column of the papers, or for a name of our own.
        depths: Depths with a config. Without any, one config serves all.
        protocol: The protocol of evaluate.py, if it is one.
        factor: Factor that makes a score a percentage.
        plain: Columns that the factor does not apply to, such as meters.
    """

    config: str
    data: tuple[str, ...]
    scores: dict[str, str]
    depths: tuple[int, ...] = (18, 50, 101)
    protocol: str | None = None
    factor: float = 100
    plain: tuple[str, ...] = ()

    def times(self, column: str) -> float:
        """Return the factor between a run's score and a column of the papers."""
        return 1 if column in self.plain else self.factor


VOC07 = 'data/VOCdevkit/VOC2007'
VOC12 = 'data/VOCdevkit/VOC2012'
COCO = ('data/coco/annotations',)
IMAGENET = ('data/imagenet/train', 'data/imagenet/val')
CITYSCAPES = ('data/cityscapes/leftImg8bit', 'data/cityscapes/gtFine')
NYU = {
    'nyuv2_rms': 'rmse',
    'nyuv2_rel': 'abs_rel',
    'nyuv2_1.25': 'd1',
    'nyuv2_1.25^2': 'd2',
    'nyuv2_1.25^3': 'd3',
}
DEFAULT = 'knn,linear,voc07,voc0712,coco_c4,coco_fpn,cityscapes'
SEGMENTATION = ('cityscapes', 'voc2012_seg', 'nyuv2', 'scenes_seg')


def _protocols() -> dict[str, Task]:
    """Return the protocols with columns in the papers' tables, on ImageNet."""
    tasks = {}
    for name in PROTOCOLS.names():
        columns = dict(protocol_class(name).columns)
        if columns:
            tasks[name] = Task(
                'evaluation/imagenet_r50', IMAGENET, columns, protocol=name, factor=1
            )
    return tasks


def _voc(column: str) -> dict[str, str]:
    return {
        f'{column}_ap50': 'pascal_voc/AP50',
        f'{column}_ap': 'pascal_voc/AP',
        f'{column}_ap75': 'pascal_voc/AP75',
    }


def _coco(column: str) -> dict[str, str]:
    scores = {}
    for end, name in (('', 'mAP'), ('_ap50', 'mAP_50'), ('_ap75', 'mAP_75')):
        scores[f'{column}_box{end}'] = f'coco/bbox_{name}'
        scores[f'{column}_mask{end}'] = f'coco/segm_{name}'
    return scores


TASKS = {
    **_protocols(),
    'voc07': Task('transfer/voc07_c4_r{depth}_9k', (VOC07,), _voc('voc07')),
    'voc0712': Task('transfer/voc0712_c4_r{depth}_24k', (VOC07, VOC12), _voc('voc0712')),
    'coco_c4': Task('transfer/coco_mask_rcnn_c4_r{depth}_90k', COCO, _coco('coco_c4'), (50,)),
    'coco_fpn': Task('transfer/coco_mask_rcnn_fpn_r{depth}_90k', COCO, _coco('coco_fpn'), (50,)),
    'coco_fpn_msbreg': Task(
        'transfer/coco_mask_rcnn_fpn_r{depth}_90k_msbreg', COCO, _coco('coco_fpn'), (50,)
    ),
    'cityscapes': Task(
        'transfer/cityscapes_deeplabv3_r{depth}_40k',
        CITYSCAPES,
        {'cityscapes_miou': 'mIoU'},
        factor=1,
    ),
    'voc2012_seg': Task(
        'transfer/voc2012_fcn_r{depth}_30k',
        (f'{VOC12}/SegmentationClass',),
        {'voc2012_miou': 'mIoU'},
        (50,),
        factor=1,
    ),
    'scenes_det': Task(
        'transfer/scenes_det',
        (),
        {'scenes_ap50': 'coco/bbox_mAP_50', 'scenes_ap': 'coco/bbox_mAP'},
        (),
    ),
    'scenes_det_plain': Task(
        'transfer/scenes_det_plain',
        (),
        {'scenes_plain_ap50': 'coco/bbox_mAP_50', 'scenes_plain_ap': 'coco/bbox_mAP'},
        (),
    ),
    'scenes_seg': Task('transfer/scenes_seg', (), {'scenes_miou': 'mIoU'}, (), factor=1),
    'nyuv2': Task(
        'transfer/nyuv2_depth_r{depth}_7500',
        ('data/nyu/images',),
        NYU,
        (50,),
        plain=('nyuv2_rms', 'nyuv2_rel'),
    ),
}


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
        if TASKS[name].protocol is None:
            package = 'mmseg' if name in SEGMENTATION else 'mmdet'
            message = f'{name} needs {package}, which cannot be imported'
            with explained(
                message, 'requirements/install.sh full installs it'
            ):  # mmdet also asserts mmcv's version
                __import__(package)
