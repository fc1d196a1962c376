"""Each detection config, small in pixels and steps, trains and evaluates from a checkpoint of ours on real formats."""

from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.runner import Runner
from PIL import Image
from pycocotools.coco import COCO as COCO_API
from transfer.small_runs import check_backbone, depth_of, pretrained, small_run

from mmairl.configs import load_config
from mmairl.engine import launch
from projects.benchmark import drawn_sets

__all__ = ['pretrained']  # a fixture
VOC = {'VOC2007': dict(trainval=6, test=3), 'VOC2012': dict(trainval=3)}
SLOW = [
    'voc07_c4_r50_9k',
    'voc07_c4_r101_9k',
    'voc0712_c4_r18_24k',
    'voc0712_c4_r50_24k',
    'voc0712_c4_r101_24k',
    'coco_mask_rcnn_c4_r50_90k',
]
CONFIGS = [
    'voc07_c4_r18_9k',
    'coco_mask_rcnn_fpn_r50_90k',
    *(pytest.param(one, marks=pytest.mark.slow) for one in SLOW),
]


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('drawn')
    coco = drawn_sets.write_coco(root / 'coco', dict(train2017=6, val2017=3))
    return dict(voc=drawn_sets.write_voc(root / 'VOCdevkit', VOC), coco=coco)


def small(name: str, data: Path, checkpoint: Path, work_dir: Path, steps: int = 2) -> Config:
    """The config as it is, with few pixels, regions and steps, on one process of a CPU."""
    cfg = small_run(name, checkpoint, work_dir, batches=2, steps=steps)
    for node in dicts(cfg._cfg_dict):
        if node.get('type') == 'RandomChoiceResize':
            node.scales = [(160, 64), (160, 96)]
        if node.get('type') == 'Resize':
            node.scale = (160, 96)
        if 'data_root' in node:
            node.data_root = f'{data}/'
        if 'ann_file' in node and node.get('type') == 'CocoMetric':
            node.ann_file = str(data / 'annotations/instances_val2017.json')
    for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
        proposals.update(nms_pre=40, max_per_img=10)
    cfg.model.train_cfg.rcnn.sampler.num = 12
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    return cfg


def losses_of(runner: Runner) -> dict[str, float]:
    scalars = runner.message_hub.log_scalars.items()
    return {key: value.data[0][-1] for key, value in scalars if key.startswith('train/loss')}


@pytest.mark.parametrize('name', CONFIGS)
def test_configs_train_and_evaluate(name, data, pretrained, tmp_path):
    checkpoint, kind = pretrained(depth_of(name)), 'coco' if name.startswith('coco') else 'voc'
    runner = launch.train(small(name, data[kind], checkpoint, tmp_path))
    metrics = ['bbox_mAP', 'bbox_mAP_75', 'segm_mAP', 'segm_mAP_75'] if kind == 'coco' else ['AP', 'AP50', 'AP75']
    prefix = dict(coco='coco', voc='pascal_voc')[kind]
    check_backbone(runner, checkpoint, {f'{prefix}/{metric}': 1 for metric in metrics})
    losses = losses_of(runner)
    assert len(losses) >= 5 and all(0 <= loss < 100 for loss in losses.values())
    assert ('train/loss_mask' in losses) == (kind == 'coco')
    if kind == 'voc':  # trainval2007 and, of 07+12, 2012
        assert len(runner.train_dataloader.dataset) == (9 if '0712' in name else 6)


@pytest.mark.slow
def test_precise_statistics_change_what_is_saved_and_evaluated_and_nothing_that_is_trained(data, pretrained, tmp_path):
    states = {}
    for batches in (0, 2):
        cfg = small('voc07_c4_r18_9k', data['voc'], pretrained(18), tmp_path / str(batches), steps=2)
        cfg.train_cfg.val_interval = 1  # so that training goes on after the first measurement
        cfg.custom_hooks[1].batches = batches
        states[batches] = dict(launch.train(cfg).model.state_dict())
    differing = {key.split('.')[-1] for key in states[0] if not torch.equal(states[0][key], states[2][key])}
    assert differing == {'running_mean', 'running_var', 'num_batches_tracked'}


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch
from mmairl.engine import launch
from transfer.test_detection_configs import small

data, checkpoint, out = map(Path, sys.argv[1:])
cfg = small('voc07_c4_r18_9k', data, checkpoint, out / 'run', steps=1)
cfg.experiment_name = 'two'
runner = launch.train(cfg, 'pytorch')
torch.save(runner.model.module.state_dict(), out / f'{torch.distributed.get_rank()}.pth')
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_weights_and_statistics(data, pretrained, run_processes, tmp_path):
    (tmp_path / 'two.py').write_text(TWO_PROCESSES)
    run_processes(2, tmp_path / 'two.py', data['voc'], pretrained(18), tmp_path)
    first, second = (torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2))
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize('name', CONFIGS)
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
    assert (warm_up.begin, warm_up.end, warm_up.by_epoch) == (0, 1000 if 'coco' in name else 100, False)
    assert (cfg.optim_wrapper.optimizer.lr, cfg.train_dataloader.batch_size * 8) == (0.02, 16)
    resizes = [node.scales for node in dicts(cfg.train_dataloader) if node.get('type') == 'RandomChoiceResize']
    assert resizes and all([tuple(scale) for scale in scales] == [(1333, side) for side in sides] for scales in resizes)
    assert [node.scale for node in dicts(cfg.val_dataloader) if node.get('type') == 'Resize'] == [(1333, 800)]
    backbone, pixels = cfg.model.backbone, cfg.model.data_preprocessor
    assert (pixels.mean, pixels.std) == ([123.675, 116.28, 103.53], [58.395, 57.12, 57.375]) and pixels.bgr_to_rgb
    assert (backbone.depth, backbone.style) == (depth_of(name), 'pytorch')
    assert (backbone.frozen_stages, backbone.norm_eval) == (-1, False)
    assert not [node for node in dicts(cfg.model) if node.get('requires_grad') is False or node.get('type') == 'BN']


def test_boxes_polygons_and_areas_are_those_of_the_drawn_pixels(data):
    truth = COCO_API(str(data['coco'] / 'annotations/instances_train2017.json'))
    for entry in truth.dataset['annotations']:
        name, mask = truth.cats[entry['category_id']]['name'], truth.annToMask(entry).astype(bool)
        left, top, wide, high = entry['bbox']
        thing = drawn_sets.Thing(name, (left, top, left + wide - 1, top + high - 1))
        canvas = Image.new('RGB', mask.shape[::-1])
        thing.draw(canvas)
        pixels = np.asarray(canvas).any(axis=2)
        rows, columns = pixels.any(axis=1).nonzero()[0], pixels.any(axis=0).nonzero()[0]
        assert (columns[0], rows[0], columns[-1], rows[-1]) == thing.box
        assert (mask & pixels).sum() > 0.95 * (mask | pixels).sum()
        assert entry['area'] == pytest.approx(pixels.sum(), rel=0.05)
