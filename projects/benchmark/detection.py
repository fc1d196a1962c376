"""Whether a detector of ours learns: average precision on drawn images before training and as it goes."""

import json
from collections.abc import Iterator
from pathlib import Path

from mmengine.config import Config, ConfigDict

from mmairl.configs import load_config
from mmairl.engine.launch import train
from mmairl.transfer.drawn import write_voc
from mmairl.transfer.loaded import start_from

CONFIG = 'mmairl::transfer/voc07_c4_r18_9k.py'
IMAGES = {'VOC2007': dict(trainval=120, test=40)}
SIZE = (160, 128)


def learning_curve(checkpoint: str, folder: Path, steps: int, every: int) -> dict[int, dict[str, float]]:
    """AP, AP50 and AP75 in percent by iteration; 0 is the detector after one step at a rate of nothing."""
    data = write_voc(folder / 'data/VOCdevkit', IMAGES, SIZE)
    untrained = shrunk(checkpoint, data, folder / 'untrained', 1, 1)
    untrained.optim_wrapper.optimizer.lr = 0.0
    train(untrained)
    cfg = shrunk(checkpoint, data, folder / 'run', steps, every)
    train(cfg)
    return {0: measured(folder / 'untrained')[1], **measured(folder / 'run')}


def shrunk(checkpoint: str, data: Path, work_dir: Path, steps: int, every: int) -> Config:
    """The config of VOC07 with small images, few regions and few steps; everything else is as it is."""
    cfg = start_from(load_config(CONFIG), checkpoint)
    for node in _dicts(cfg._cfg_dict):
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
    cfg.param_scheduler = [dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=min(50, steps))]
    cfg.default_hooks.checkpoint.interval = steps
    cfg.custom_hooks[1].batches = 10
    for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
        proposals.update(nms_pre=300, max_per_img=100)
    cfg.model.train_cfg.rcnn.sampler.num = 64
    cfg.work_dir, cfg.randomness, cfg.experiment_name = str(work_dir), dict(seed=0), work_dir.name
    return cfg


def _dicts(node: object) -> Iterator[ConfigDict]:
    if isinstance(node, ConfigDict):
        yield node
        for value in node.values():
            yield from _dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _dicts(value)


def measured(folder: Path) -> dict[int, dict[str, float]]:
    """Each evaluation that the run has logged."""
    found = {}
    for path in sorted(folder.glob('*/vis_data/scalars.json')):
        for line in map(json.loads, path.read_text().splitlines()):
            if 'pascal_voc/AP' in line:
                found[line['step']] = {name: 100 * line[f'pascal_voc/{name}'] for name in ('AP', 'AP50', 'AP75')}
    return found
