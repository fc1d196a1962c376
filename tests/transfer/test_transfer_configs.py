"""Each config for detection, segmentation and depth trains and evaluates from a checkpoint, with few pixels and steps."""

from pathlib import Path

import pytest
import torch
from harness import toy
from torch import nn
from transfer.small_runs import small, write_pretrained

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.transfer.execute import dicts
from mmairl.transfer.tasks import TASKS

# This pattern leaves out configs for synthetic scenes, which have their own tests.
CONFIGS = sorted(path.stem for path in (toy.CONFIGS / 'transfer').glob('*_r*.py'))
DETECTION = [name for name in CONFIGS if name.startswith(('voc07', 'coco'))]
# `make test-all` also tests the other configs.
UNMARKED = ('voc07_c4_r18_9k', 'cityscapes_deeplabv3_r18_40k')
# The keys are the first words of config names, such as voc07. The values are the metrics that
# `mmairl transfer` reads.
METRICS = {Path(task.config).name.split('_')[0]: task.scores.values() for task in TASKS.values()}
# Upper bounds of metrics that can exceed 1.
MOST = dict(mIoU=100, rmse=1e4, abs_rel=1e4)


def named(name: str, *unmarked: str) -> object:
    return pytest.param(name, marks=[] if name in unmarked else pytest.mark.slow)


def depth_of(name: str) -> int:
    return int(name.split('_r')[-1].split('_')[0])


@pytest.mark.parametrize('name', [named(name, *UNMARKED) for name in CONFIGS])
def test_config_trains_and_evaluates(name, data, pretrained, tmp_path):
    """Training changes all weights of the backbone a little, norms are SyncBN, and metrics are within their ranges."""
    depth, task = depth_of(name), name.split('_')[0]
    checkpoint = pretrained if depth == 18 else write_pretrained(tmp_path / 'start.pth', depth)
    runner = run.train(small(name, data, checkpoint, tmp_path))
    model, scalars = runner.model, runner.message_hub.log_scalars
    for metric in METRICS[task]:
        assert 0 <= scalars[f'val/{metric}'].current() <= MOST.get(metric, 1), metric
    losses = {key: value.current() for key, value in scalars.items() if key.startswith('train/loss')}
    assert losses and all(0 <= loss < 100 for loss in losses.values())
    assert ('train/loss_mask' in losses) == (task == 'coco')
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    for key, parameter in model.backbone.named_parameters():
        start = before[f'backbone.{key}']
        assert 0 < (parameter - start).norm() < 2 * start.norm() + 1, key
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms and all(type(norm).__name__ == 'SyncBN' for norm in norms)
    # voc07 has the images of trainval2007, voc0712 also has those of trainval2012, and voc2012 has
    # those of train and aug.
    counts = dict(voc07=6, voc0712=9, voc2012=2)
    assert len(runner.train_dataloader.dataset) == counts.get(task, len(runner.train_dataloader.dataset))
    if task in OF_TASK:
        OF_TASK[task](runner, name)


def cityscapes(runner, name):
    stages = runner.model.backbone(torch.zeros(1, 3, 64, 64))
    assert 64 // stages[-1].shape[-1] == (16 if 'os16' in name else 8)
    if 'mg124' in name:
        last = [block.conv2.dilation[0] for block in runner.model.backbone.layer4]
        # The multi-grid factors 1, 2 and 4 multiply the dilation 2 of the stage.
        assert last == [2, 4, 8]


def voc2012(runner, name):
    """The head, the strides and the dilations are those of BYOL's paper."""
    head, conv5 = runner.model.decode_head, [block.conv2 for block in runner.model.backbone.layer4]
    assert [(c.conv.kernel_size, c.conv.dilation) for c in head.convs] == [((3, 3), (6, 6))] * 2
    assert (head.conv_seg.kernel_size, head.conv_seg.out_channels) == ((1, 1), 21)
    assert not runner.model.with_auxiliary_head
    assert conv5[0].stride == (1, 1) and all(conv.dilation == (2, 2) for conv in conv5)


def nyuv2(runner, name):
    """The depth map is in meters and has the size of the image."""
    sample = runner.train_dataloader.dataset[0]
    assert sample['inputs'].shape[1:] == (48, 64) == sample['data_samples'].gt_depth_map.shape[-2:]
    assert 0.9 < sample['data_samples'].gt_depth_map.data.max() <= 8


OF_TASK = dict(cityscapes=cityscapes, voc2012=voc2012, nyuv2=nyuv2)


@pytest.mark.parametrize(
    'name', [named(name, 'voc0712_c4_r50_24k', 'coco_mask_rcnn_fpn_r50_90k') for name in DETECTION]
)
def test_recipes_are_the_papers(name):
    cfg = load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py'))
    iterations, milestones, sides = {
        'voc07': (9000, [6750, 8250], range(480, 801, 32)),
        'voc0712': (24000, [18000, 22000], range(480, 801, 32)),
        'coco': (90000, [60000, 80000], range(640, 801, 32)),
    }[name.split('_')[0]]
    warm_up, steps = cfg.param_scheduler
    assert (cfg.train_cfg.type, cfg.train_cfg.max_iters) == ('IterBasedTrainLoop', iterations)
    assert (steps.milestones, steps.gamma, steps.end, steps.by_epoch) == (milestones, 0.1, iterations, False)
    warmed, rate = (50, 0.05) if 'msbreg' in name else (1000 if 'coco' in name else 100, 0.02)
    assert (warm_up.begin, warm_up.end, warm_up.by_epoch) == (0, warmed, False)
    assert (cfg.optim_wrapper.optimizer.lr, cfg.train_dataloader.batch_size * 8) == (rate, 16)
    resizes = [node.scales for node in dicts(cfg.train_dataloader) if node.get('type') == 'RandomChoiceResize']
    assert resizes and all([tuple(scale) for scale in scales] == [(1333, side) for side in sides] for scales in resizes)
    assert [node.scale for node in dicts(cfg.val_dataloader) if node.get('type') == 'Resize'] == [(1333, 800)]
    backbone, pixels = cfg.model.backbone, cfg.model.data_preprocessor
    assert (pixels.mean, pixels.std) == ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]) and pixels.bgr_to_rgb
    assert (backbone.depth, backbone.style) == (depth_of(name), 'pytorch')
    assert (backbone.frozen_stages, backbone.norm_eval) == (-1, False)
    assert not [node for node in dicts(cfg.model) if node.get('requires_grad') is False or node.get('type') == 'BN']
