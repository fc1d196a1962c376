"""Each kind of transfer config trains from a checkpoint and evaluates, with few pixels and steps."""

import pytest
import torch
from harness import toy

from mmairl.cli.command import value_of
from mmairl.config import load_config, walk
from mmairl.engine import run
from mmairl.transfer.execute import options_of
from mmairl.transfer.tasks import TASKS

SIZES = dict(cityscapes=(64, 32), nyuv2=(80, 60))


def config(name, options=()):
    return load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py'), dict(options))


def small(name, data, checkpoint, work_dir):
    """Return a config of configs/transfer with fewer pixels, regions and channels, and two steps."""
    pairs = (option.split('=', 1) for option in options_of(config(name), checkpoint))
    cfg = config(name, {key: value_of(value) for key, value in pairs})
    task = name.split('_')[0].replace('0712', '').replace('07', '')
    size = SIZES.get(task, (160, 96))
    changes = {
        'Resize': dict(scale=size),
        'RandomChoiceResize': dict(scales=[(160, 64), (160, 96)]),
        'RandomResize': dict(scale=(2 * size[0], 2 * size[1])),
        'RandomCrop': dict(crop_size=size[::-1]),
        'CocoMetric': dict(ann_file=str(data / 'coco/annotations/instances_val2017.json')),
        'mmairl.NYUAugmentation': dict(crop=(64, 48)),
    }
    for _, node in walk(cfg._cfg_dict):
        if isinstance(node, dict):
            node.update(changes.get(node.get('type'), {}))
            if 'data_root' in node:
                node['data_root'] = f'{data / task}/'
    if task in SIZES:
        cfg.model.data_preprocessor.size = (48, 64) if task == 'nyuv2' else size[::-1]
        cfg.model.decode_head.channels = (32, 16, 8, 8) if task == 'nyuv2' else 16
        cfg.optim_wrapper.optimizer.lr *= 0.01
    else:
        for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
            proposals.update(nms_pre=40, max_per_img=10)
        cfg.model.train_cfg.rcnn.sampler.num = 12
        cfg.model.test_cfg.rcnn.score_thr = 0.0
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.total_batch_size = 2
    cfg.train_cfg.update(max_iters=2, val_interval=2)
    cfg.custom_hooks[0].batches = 1
    cfg.default_hooks.checkpoint = None
    cfg.work_dir = str(work_dir)
    return cfg


SLOW = [
    'cityscapes_deeplabv3_r18_40k',
    'coco_mask_rcnn_c4_r50_90k',
    'coco_mask_rcnn_fpn_r50_90k',
    'nyuv2_depth_r50_7500',
]


@pytest.mark.parametrize(
    'name', ['voc07_c4_r18_9k', *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_config_trains_and_evaluates(name, data, pretrained, tmp_path):
    checkpoint = pretrained(int(name.split('_r')[-1].split('_')[0]))
    runner = run.train(small(name, data, checkpoint, tmp_path))
    scalars = runner.message_hub.log_scalars
    task = next(
        task
        for task in TASKS.values()
        if task.config.format(depth=50) == f'transfer/{name.replace("r18", "r50")}'
    )
    for metric in task.scores.values():
        assert 0 <= scalars[f'val/{metric}'].current() < 1e4, metric
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    for key, parameter in runner.model.backbone.named_parameters():
        start = before[f'backbone.{key}']
        assert 0 < (parameter - start).norm() < 2 * start.norm() + 1, key
    norms = [
        layer
        for layer in runner.model.modules()
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)
    ]
    assert all(type(norm).__name__ == 'SyncBN' for norm in norms)


RECIPES = {
    'voc07_c4_r50_9k': (9000, [6750, 8250], 0.02, range(480, 801, 32)),
    'voc0712_c4_r50_24k': (24000, [18000, 22000], 0.02, range(480, 801, 32)),
    'coco_mask_rcnn_fpn_r50_90k': (90000, [60000, 80000], 0.02, range(640, 801, 32)),
    'coco_mask_rcnn_c4_r50_90k': (90000, [60000, 80000], 0.02, range(640, 801, 32)),
}


@pytest.mark.parametrize('name', RECIPES)
def test_recipes_are_the_papers(name):
    cfg = config(name)
    steps = cfg.param_scheduler[1]
    nodes = [node for _, node in walk(cfg.train_dataloader) if isinstance(node, dict)]
    sides = [
        scale[1]
        for node in nodes
        if node.get('type') == 'RandomChoiceResize'
        for scale in node.scales
    ]
    recipe = (
        cfg.train_cfg.max_iters,
        steps.milestones,
        cfg.optim_wrapper.optimizer.lr,
        sides[: len(RECIPES[name][3])],
    )
    assert recipe == (*RECIPES[name][:3], list(RECIPES[name][3]))
    assert cfg.total_batch_size == 16 and cfg.model.backbone.frozen_stages == -1
