"""Check that a detector learns from mmairl's weights: average precision on drawn images before and during training."""

from pathlib import Path

from mmengine.config import Config

from mmairl.config import load_config
from mmairl.engine.curves import read_scalars
from mmairl.engine.run import train
from mmairl.transfer.execute import dicts, start_from
from projects.benchmark.drawn_sets import write_voc

CONFIG = 'mmairl::transfer/voc07_c4_r18_9k.py'
IMAGES = {'VOC2007': dict(trainval=120, test=40)}
SIZE = (160, 128)
SCORES = ('AP', 'AP50', 'AP75')


def learning_curve(checkpoint: str, folder: Path, steps: int, every: int) -> list[tuple[int, ...]]:
    """Train a detector, and return rows of iteration, AP, AP50 and AP75 in percent.

    The row of iteration 0 is for the untrained detector. It is measured after one step with a learning rate of 0.
    """
    data = write_voc(folder / 'data/VOCdevkit', IMAGES, SIZE)
    untrained = shrunk(checkpoint, data, folder / 'untrained', 1, 1)
    untrained.optim_wrapper.optimizer.lr = 0.0
    train(untrained)
    train(shrunk(checkpoint, data, folder / 'run', steps, every))
    return [(0, *row[1:]) for row in measured(folder / 'untrained')] + measured(folder / 'run')


def shrunk(checkpoint: str, data: Path, work_dir: Path, steps: int, every: int) -> Config:
    """Return the config of detection on VOC07 with small images, few proposals and few steps."""
    cfg = start_from(load_config(CONFIG), checkpoint)
    for node in dicts(cfg._cfg_dict):
        if node.get('type') == 'RandomChoiceResize':
            node.scales = [(400, side) for side in (96, 128, 160)]
        if node.get('type') == 'Resize':
            node.scale = (400, 128)
        if 'data_root' in node:
            node.data_root = f'{data}/'
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.batch_size = 4
    cfg.train_cfg.update(max_iters=steps, val_interval=every)
    cfg.param_scheduler = [
        dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=min(50, steps))
    ]
    cfg.default_hooks.checkpoint.interval = steps
    cfg.custom_hooks[0].batches = 10
    for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
        proposals.update(nms_pre=300, max_per_img=100)
    cfg.model.train_cfg.rcnn.sampler.num = 64
    cfg.work_dir, cfg.randomness = str(work_dir), dict(seed=0)
    return cfg


def measured(folder: Path) -> list[tuple[int, ...]]:
    """Return iteration, AP, AP50 and AP75 in percent for each evaluation in the log of a run."""
    curves = read_scalars(folder)
    steps, _ = curves['pascal_voc/AP']
    return list(
        zip(steps, *([100 * value for value in curves[f'pascal_voc/{name}'][1]] for name in SCORES))
    )
