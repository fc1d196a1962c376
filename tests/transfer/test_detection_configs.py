"""Each detection config, small in pixels and steps, trains and evaluates from a checkpoint of ours on real formats."""

from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import toy
from mmengine.config import Config, ConfigDict
from mmengine.runner import Runner
from PIL import Image
from pycocotools.coco import COCO as COCO_API
from torch import nn

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.registry import MODELS
from mmairl.transfer import drawn as generate
from mmairl.transfer.loaded import start_from

RUNS = count()
VOC = {'VOC2007': dict(trainval=6, test=3), 'VOC2012': dict(trainval=3)}
COCO = dict(train2017=6, val2017=3)
VOC_CONFIGS = [
    *(f'voc07_c4_r{depth}_9k' for depth in (18, 50, 101)),
    *(f'voc0712_c4_r{depth}_24k' for depth in (18, 50, 101)),
]
COCO_CONFIGS = ['coco_mask_rcnn_c4_r50_90k', 'coco_mask_rcnn_fpn_r50_90k']


@pytest.fixture(scope='module')
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.write_voc(tmp_path_factory.mktemp('voc') / 'VOCdevkit', VOC)


@pytest.fixture(scope='module')
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate.write_coco(tmp_path_factory.mktemp('coco') / 'coco', COCO)


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory: pytest.TempPathFactory):
    """A checkpoint by depth: ResNet-18 pre-trained for a step, the deeper ones saved as they were made."""
    folder, made = tmp_path_factory.mktemp('pretrained'), {}

    def checkpoint(depth: int) -> Path:
        if depth not in made:
            made[depth] = _pretrain(folder) if depth == 18 else _untrained(folder, depth)
        return made[depth]

    yield checkpoint
    for path in folder.rglob('*.pth'):
        path.unlink()


def _pretrain(folder: Path) -> Path:
    launch.train(toy.config('mocov2plus_r50_200e.py', str(folder), steps=1))
    return folder / 'iter_1.pth'


def _untrained(folder: Path, depth: int) -> Path:
    launch.register()
    options = {'model.backbone.depth': depth, 'model.projector.in_channels': 2048}
    model = MODELS.build(toy.config('mocov2plus_r50_200e.py', str(folder), **options).model)
    torch.save(dict(meta={}, state_dict=model.state_dict()), folder / f'r{depth}.pth')
    return folder / f'r{depth}.pth'


def small(name: str, data: Path, checkpoint: Path, work_dir: Path, steps: int = 2) -> Config:
    """The config as it is, with few pixels, regions and steps, on one process of a CPU."""
    cfg = start_from(load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py')), str(checkpoint))
    for node in _dicts(cfg._cfg_dict):
        if node.get('type') == 'RandomChoiceResize':
            node.scales = [(160, 64), (160, 96)]
        if node.get('type') == 'Resize':
            node.scale = (160, 96)
        if 'data_root' in node:
            node.data_root = f'{data}/'
        if 'ann_file' in node and node.get('type') == 'CocoMetric':
            node.ann_file = str(data / 'annotations/instances_val2017.json')
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_cfg.update(max_iters=steps, val_interval=steps)
    cfg.custom_hooks[1].batches = 2
    for proposals in (cfg.model.train_cfg.rpn_proposal, cfg.model.test_cfg.rpn):
        proposals.update(nms_pre=40, max_per_img=10)
    cfg.model.train_cfg.rcnn.sampler.num = 12
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    cfg.work_dir, cfg.experiment_name, cfg.randomness = str(work_dir), f'detection{next(RUNS)}', dict(seed=5)
    return cfg


def _dicts(node: object):
    if isinstance(node, ConfigDict):
        yield node
        for value in node.values():
            yield from _dicts(value)
    elif isinstance(node, (list, tuple)):
        for value in node:
            yield from _dicts(value)


def depth_of(name: str) -> int:
    return int(name.split('_r')[-1].split('_')[0])


def run(cfg: Config) -> Runner:
    runner = launch.train(cfg)
    for path in Path(cfg.work_dir).rglob('*.pth'):
        path.unlink()
    return runner


def check(runner: Runner, before: dict[str, torch.Tensor], metrics: list[str]) -> None:
    scalars = runner.message_hub.log_scalars
    losses = [value.data[0][-1] for key, value in scalars.items() if key.startswith('train/loss')]
    assert len(losses) >= 5 and all(0 <= loss < 100 for loss in losses)
    assert all(0 <= scalars[f'val/{metric}'].current() <= 1 for metric in metrics)
    unmoved = [
        name
        for name, parameter in runner.model.backbone.named_parameters()
        if torch.equal(parameter.detach(), before[f'backbone.{name}'])
    ]
    assert not unmoved, 'a part of the backbone is frozen'
    norms = [m for m in runner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms and all(type(norm).__module__ == 'mmairl.models.batchnorm' for norm in norms)


@pytest.mark.parametrize('name', VOC_CONFIGS)
def test_voc_configs_train_and_evaluate(name, voc, pretrained, tmp_path):
    checkpoint = pretrained(depth_of(name))
    runner = run(small(name, voc, checkpoint, tmp_path))
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    check(runner, before, ['pascal_voc/AP', 'pascal_voc/AP50', 'pascal_voc/AP75'])
    assert len(runner.train_dataloader.dataset) == (9 if '0712' in name else 6)  # trainval2007 and, of 07+12, 2012


@pytest.mark.parametrize('name', COCO_CONFIGS)
def test_coco_configs_train_and_evaluate(name, coco, pretrained, tmp_path):
    checkpoint = pretrained(depth_of(name))
    runner = run(small(name, coco, checkpoint, tmp_path))
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    check(runner, before, ['coco/bbox_mAP', 'coco/bbox_mAP_75', 'coco/segm_mAP', 'coco/segm_mAP_75'])
    assert 'train/loss_mask' in runner.message_hub.log_scalars


def test_precise_statistics_change_what_is_saved_and_evaluated_and_nothing_that_is_trained(voc, pretrained, tmp_path):
    runs = {}
    for batches in (0, 2):
        cfg = small('voc07_c4_r18_9k', voc, pretrained(18), tmp_path / str(batches), steps=2)
        cfg.train_cfg.val_interval = 1  # so that training goes on after the first measurement
        cfg.custom_hooks[1].batches = batches
        cfg.default_hooks.checkpoint.interval = 2
        runner = launch.train(cfg)
        runs[batches] = dict(runner.model.state_dict())
        saved = torch.load(tmp_path / str(batches) / 'iter_2.pth', weights_only=True)['state_dict']
        assert all(torch.equal(saved[key], runs[batches][key]) for key in saved)
    differing = {key.split('.')[-1] for key in runs[0] if not torch.equal(runs[0][key], runs[2][key])}
    assert differing == {'running_mean', 'running_var', 'num_batches_tracked'}


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch
from mmairl.engine import launch
from mmairl.errors import stop_processes
from transfer.test_detection_configs import small

data, checkpoint, out = map(Path, sys.argv[1:])
cfg = small('voc07_c4_r18_9k', data, checkpoint, out / 'run', steps=1)
cfg.experiment_name = 'two'
runner = launch.train(cfg, 'pytorch')
torch.save(runner.model.module.state_dict(), out / f'{torch.distributed.get_rank()}.pth')
stop_processes()
"""


def test_two_processes_share_weights_and_statistics(voc, pretrained, run_processes, tmp_path):
    (tmp_path / 'two.py').write_text(TWO_PROCESSES)
    run_processes(2, tmp_path / 'two.py', voc, pretrained(18), tmp_path)
    first, second = (torch.load(tmp_path / f'{rank}.pth', weights_only=True) for rank in range(2))
    for key in first:
        torch.testing.assert_close(first[key], second[key], rtol=1e-5, atol=1e-6, msg=key)


@pytest.mark.parametrize('name', [*VOC_CONFIGS, *COCO_CONFIGS])
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
    resizes = [node.scales for node in _dicts(cfg.train_dataloader) if node.get('type') == 'RandomChoiceResize']
    assert resizes and all([tuple(scale) for scale in scales] == [(1333, side) for side in sides] for scales in resizes)
    tests = [node.scale for node in _dicts(cfg.val_dataloader) if node.get('type') == 'Resize']
    assert tests == [(1333, 800)]
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53]
    assert cfg.model.data_preprocessor.std == [58.395, 57.12, 57.375]
    assert cfg.model.data_preprocessor.bgr_to_rgb
    backbone = cfg.model.backbone
    assert (backbone.depth, backbone.style, backbone.frozen_stages, backbone.norm_eval) == (
        depth_of(name),
        'pytorch',
        -1,
        False,
    )
    assert not [node for node in _dicts(cfg.model) if node.get('requires_grad') is False or node.get('type') == 'BN']


def test_what_was_generated_is_what_mmdet_reads(voc, coco):
    from mmdet.datasets import CocoDataset, VOCDataset

    split = dict(ann_file='VOC2007/ImageSets/Main/trainval.txt', data_prefix=dict(sub_data_root='VOC2007/'))
    of_voc = VOCDataset(data_root=f'{voc}/', pipeline=[], **split)
    rows = [row for index in range(len(of_voc)) for row in of_voc.get_data_info(index)['instances']]
    assert len(of_voc) == 6 and sum(row['ignore_flag'] for row in rows) == 1
    split = dict(ann_file='annotations/instances_train2017.json', data_prefix=dict(img='train2017/'))
    of_coco = CocoDataset(data_root=f'{coco}/', pipeline=[], **split)
    rows = [row for index in range(len(of_coco)) for row in of_coco.get_data_info(index)['instances']]
    names = {of_coco.metainfo['classes'][row['bbox_label']] for row in rows}
    assert len(of_coco) == 6 and names <= set(generate.KINDS) and len(names) > 2


def test_boxes_polygons_and_areas_are_those_of_the_drawn_pixels(coco):
    truth = COCO_API(str(coco / 'annotations/instances_train2017.json'))
    for entry in truth.dataset['annotations']:
        name, mask = truth.cats[entry['category_id']]['name'], truth.annToMask(entry).astype(bool)
        left, top, wide, high = entry['bbox']
        thing = generate.Thing(name, (left, top, left + wide - 1, top + high - 1))
        canvas = Image.new('RGB', mask.shape[::-1])
        thing.draw(canvas)
        drawn = np.asarray(canvas).any(axis=2)
        rows, columns = drawn.any(axis=1).nonzero()[0], drawn.any(axis=0).nonzero()[0]
        assert (columns[0], rows[0], columns[-1], rows[-1]) == thing.box
        if generate.KINDS[name][0] == 'rectangle':
            assert np.array_equal(mask, drawn) and entry['area'] == drawn.sum()
        else:
            assert (mask & drawn).sum() > 0.95 * (mask | drawn).sum()
            assert entry['area'] == pytest.approx(drawn.sum(), rel=0.05)
