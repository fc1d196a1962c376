"""The transfer tables' tasks: which config each is, what data it wants, and which of its scores the papers print."""

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

    `config` has a place for the depth; `data` are the paths that must be there; `scores` maps the paper's columns (or, where it
    has none, a name) to what the run calls the score, which `factor` makes a percentage unless it is one of `plain`. Without
    `depths` it is for all; without `data` the config draws them.
    """

    config: str
    data: tuple[str, ...]
    scores: dict[str, str]
    depths: tuple[int, ...] = (18, 50, 101)
    protocol: str | None = None
    factor: float = 100
    plain: tuple[str, ...] = ()  # such as metres

    def times(self, column: str) -> float:
        """Return what makes the score of a column what the papers print."""
        return 1 if column in self.plain else self.factor


VOC07, VOC12, COCO = 'data/VOCdevkit/VOC2007', 'data/VOCdevkit/VOC2012', ('data/coco/annotations',)
IMAGENET = ('data/imagenet/train', 'data/imagenet/val')
CITYSCAPES = ('data/cityscapes/leftImg8bit', 'data/cityscapes/gtFine')
NYU = {'nyuv2_rms': 'rmse', 'nyuv2_rel': 'abs_rel', 'nyuv2_1.25': 'd1', 'nyuv2_1.25^2': 'd2', 'nyuv2_1.25^3': 'd3'}


def _voc(column: str) -> dict[str, str]:
    return {f'{column}_ap50': 'pascal_voc/AP50', f'{column}_ap': 'pascal_voc/AP', f'{column}_ap75': 'pascal_voc/AP75'}


def _coco(column: str) -> dict[str, str]:
    kinds = {'': 'mAP', '_ap50': 'mAP_50', '_ap75': 'mAP_75'}
    parts = {'box': 'bbox', 'mask': 'segm'}
    return {f'{column}_{part}{end}': f'coco/{parts[part]}_{name}' for end, name in kinds.items() for part in parts}


def _protocols() -> dict[str, Task]:
    """Return the protocols with a column in the papers' tables, on ImageNet."""
    columns = {name: protocol_class(name).columns for name in PROTOCOLS.names()}
    config = 'evaluation/imagenet_r50'
    return {name: Task(config, IMAGENET, own, protocol=name, factor=1) for name, own in columns.items() if own}


DEFAULT = 'knn,linear,voc07,voc0712,coco_c4,coco_fpn,cityscapes'
SEGMENTATION = ('cityscapes', 'voc2012_seg', 'nyuv2', 'scenes_seg')
TASKS = {
    **_protocols(),
    'voc07': Task('transfer/voc07_c4_r{depth}_9k', (VOC07,), _voc('voc07')),
    'voc0712': Task('transfer/voc0712_c4_r{depth}_24k', (VOC07, VOC12), _voc('voc0712')),
    'coco_c4': Task('transfer/coco_mask_rcnn_c4_r{depth}_90k', COCO, _coco('coco_c4'), (50,)),
    'coco_fpn': Task('transfer/coco_mask_rcnn_fpn_r{depth}_90k', COCO, _coco('coco_fpn'), (50,)),
    'coco_fpn_msbreg': Task('transfer/coco_mask_rcnn_fpn_r{depth}_90k_msbreg', COCO, _coco('coco_fpn'), (50,)),
    'cityscapes': Task('transfer/cityscapes_deeplabv3_r{depth}_40k', CITYSCAPES, {'cityscapes_miou': 'mIoU'}, factor=1),
    'voc2012_seg': Task(
        'transfer/voc2012_fcn_r{depth}_30k', (f'{VOC12}/SegmentationClass',), {'voc2012_miou': 'mIoU'}, (50,), factor=1
    ),
    'scenes_det': Task(
        'transfer/scenes_det', (), {'scenes_ap50': 'coco/bbox_mAP_50', 'scenes_ap': 'coco/bbox_mAP'}, ()
    ),
    'scenes_seg': Task('transfer/scenes_seg', (), {'scenes_miou': 'mIoU'}, (), factor=1),
    'nyuv2': Task(
        'transfer/nyuv2_depth_r{depth}_7500', ('data/nyu/images',), NYU, (50,), plain=('nyuv2_rms', 'nyuv2_rel')
    ),
}


def lacking(task: Task, root: Path) -> list[Path]:
    """The data that is not there."""
    return [root / path for path in task.data if not (root / path).exists()]


def config_of(name: str, depth: int) -> Path:
    """The config of a task for a backbone of this depth; one of evaluate.py is for every depth."""
    task = TASKS[name]
    if task.depths and depth not in task.depths and not task.protocol:
        known = ', '.join(f'ResNet-{known}' for known in task.depths)
        raise UserError(f'{name} has configs for {known}, not for ResNet-{depth}; leave the task out')
    return home() / 'configs' / f'{task.config.format(depth=depth)}.py'


def chosen(asked: str | None, rescaled: bool = False) -> list[str]:
    """The tasks to run: those named, or all of the paper's.

    A rescaled network has old batch statistics until it is trained, so that it is not measured as it is.
    """
    names = (asked or DEFAULT).split(',')
    for name in names:
        if name not in TASKS:
            raise UserError(f"there is no task '{name}'; say some of {', '.join(TASKS)}")
    columns = Counter(column for name in names for column in TASKS[name].scores)
    if twice := [column for column, count in columns.items() if count > 1]:
        raise UserError(f'two of the tasks measure {twice[0]}, and one table cannot show both; ask for one of them')
    frozen = [name for name in names if TASKS[name].protocol] if rescaled else []
    if frozen and asked:
        raise UserError(
            f'{", ".join(frozen)} would measure a rescaled network with the batch statistics of before; leave it out of --tasks'
        )
    return [name for name in names if name not in frozen]


def require_platform(tasks: list[str]) -> None:
    """mmdet and mmseg are there when a task needs them, before anything is run."""
    for name in tasks:
        if TASKS[name].protocol is None:
            package = 'mmseg' if name in SEGMENTATION else 'mmdet'
            said = f'{name} needs {package}, which cannot be imported'
            with explained(said, 'requirements/install.sh full installs it'):  # mmdet also asserts mmcv's version
                __import__(package)
