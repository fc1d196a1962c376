"""Each segmentation and depth config, small in pixels and steps, trains and evaluates from a checkpoint of ours."""

from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from transfer import generate_masks
from transfer.small_runs import check_backbone, depth_of, pretrained, small_run

from mmairl.engine import launch
from mmairl.errors import UserError

__all__ = ['pretrained']  # a fixture
SIZES = dict(cityscapes=(64, 32), voc2012=(48, 48), nyuv2=(80, 60))
CITYSCAPES = [
    'cityscapes_deeplabv3_r18_40k',
    pytest.param('cityscapes_deeplabv3_r50_40k', marks=pytest.mark.slow),
    pytest.param('cityscapes_deeplabv3_r101_40k', marks=pytest.mark.slow),
    pytest.param('cityscapes_deeplabv3_os16_mg124_r50_90k', marks=pytest.mark.slow),
]


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('masks')
    return dict(
        cityscapes=generate_masks.write_cityscapes(root / 'cityscapes', dict(train=4, val=2)),
        voc2012=generate_masks.write_voc2012(root / 'VOC2012', dict(train=2, aug=2, val=2)),
        nyuv2=generate_masks.write_nyu(root / 'nyu', dict(train=4, test=2), size=(320, 240)),
    )


def small(name: str, data: dict[str, Path], checkpoint: Path, work_dir: Path) -> Config:
    """The config as it is, with few pixels, channels and steps, on one process of a CPU."""
    task = name.split('_')[0]
    cfg, size = small_run(name, checkpoint, work_dir, batches=1), SIZES[task]
    changes = dict(
        Resize=dict(scale=size),
        RandomResize=dict(scale=(2 * size[0], 2 * size[1])),
        RandomCrop=dict(crop_size=size[::-1]),
        Pad=dict(size=size[::-1]),
    )
    for node in dicts(cfg._cfg_dict):
        node.update(changes.get(node.get('type'), {}))
        if node.get('type') == 'mmairl.NYUAugmentation':
            node.crop = (64, 48)
        if 'data_root' in node:
            node.data_root = str(data[task])
    cfg.model.data_preprocessor.size = (48, 64) if task == 'nyuv2' else size[::-1]
    cfg.model.decode_head.channels = (32, 16, 8, 8) if task == 'nyuv2' else 16
    if task == 'nyuv2':
        cfg.optim_wrapper.optimizer.lr *= 2 / 256  # the recipe's rate belongs to its batch
    if cfg.model.get('auxiliary_head'):
        cfg.model.auxiliary_head.channels = 8
    cfg.train_dataloader.batch_size = 2
    return cfg


@pytest.mark.parametrize('name', CITYSCAPES)
def test_cityscapes_configs_train_and_evaluate(name, data, pretrained, tmp_path):
    checkpoint = pretrained(depth_of(name))
    runner = launch.train(small(name, data, checkpoint, tmp_path))
    check_backbone(runner, checkpoint, dict(mIoU=100, aAcc=100))
    stages = runner.model.backbone(torch.zeros(1, 3, 64, 64))
    assert 64 // stages[-1].shape[-1] == (16 if 'os16' in name else 8)
    if 'mg124' in name:
        last = [block.conv2.dilation[0] for block in runner.model.backbone.layer4]
        assert last == [2, 4, 8]  # multi-grid 1, 2, 4 times the stage's 2


@pytest.mark.slow
def test_voc2012_trains_and_evaluates_with_byols_head(data, pretrained, tmp_path):
    checkpoint = pretrained(50)
    runner = launch.train(small('voc2012_fcn_r50_30k', data, checkpoint, tmp_path))
    check_backbone(runner, checkpoint, dict(mIoU=100))
    head, conv5 = runner.model.decode_head, [block.conv2 for block in runner.model.backbone.layer4]
    assert [(c.conv.kernel_size, c.conv.dilation) for c in head.convs] == [((3, 3), (6, 6))] * 2
    assert (head.conv_seg.kernel_size, head.conv_seg.out_channels) == ((1, 1), 21)
    assert not runner.model.with_auxiliary_head
    assert conv5[0].stride == (1, 1) and all(conv.dilation == (2, 2) for conv in conv5)
    assert len(runner.train_dataloader.dataset) == 4


@pytest.mark.slow
def test_nyuv2_trains_and_evaluates_in_metres(data, pretrained, tmp_path):
    checkpoint = pretrained(50)
    runner = launch.train(small('nyuv2_depth_r50_7500', data, checkpoint, tmp_path))
    check_backbone(runner, checkpoint, dict(d1=1, d2=1, d3=1, rmse=1e4, abs_rel=1e4))
    sample = runner.train_dataloader.dataset[0]
    assert sample['inputs'].shape[1:] == (48, 64) == sample['data_samples'].gt_depth_map.shape[-2:]
    assert 0.9 < sample['data_samples'].gt_depth_map.data.max() <= 8


def test_another_stem_is_refused_before_the_first_step(data, pretrained, tmp_path):
    cfg = small('cityscapes_deeplabv3_r18_40k', data, pretrained(18), tmp_path)
    cfg.model.backbone.type = 'ResNetV1c'
    with pytest.raises(UserError, match='another architecture: it lacks stem'):
        launch.train(cfg)
