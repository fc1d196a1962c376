"""Each segmentation and depth config, small in pixels and steps, trains and evaluates from a checkpoint of ours."""

from itertools import count
from pathlib import Path

import pytest
import torch
import toy
from mmengine.config import Config
from mmengine.runner import Runner
from torch import nn
from transfer import generate_masks
from transfer.test_detection_configs import _dicts, _pretrain, _untrained

from mmairl.configs import load_config
from mmairl.engine import launch
from mmairl.errors import UserError
from mmairl.transfer.loaded import start_from

RUNS = count()
CITYSCAPES = [f'cityscapes_deeplabv3_r{depth}_40k' for depth in (18, 50, 101)]
CITYSCAPES.append('cityscapes_deeplabv3_os16_mg124_r50_90k')


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp('masks')
    return dict(
        cityscapes=generate_masks.write_cityscapes(root / 'cityscapes', dict(train=4, val=2)),
        voc2012=generate_masks.write_voc2012(root / 'VOC2012', dict(train=2, aug=2, val=2)),
        nyuv2=generate_masks.write_nyu(root / 'nyu', dict(train=4, test=2), size=(320, 240)),
    )


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory: pytest.TempPathFactory):
    folder, made = tmp_path_factory.mktemp('pretrained'), {}

    def checkpoint(depth: int) -> Path:
        if depth not in made:
            made[depth] = _pretrain(folder) if depth == 18 else _untrained(folder, depth)
        return made[depth]

    yield checkpoint
    for path in folder.rglob('*.pth'):
        path.unlink()


def small(name: str, data: dict[str, Path], checkpoint: Path, work_dir: Path, steps: int = 2) -> Config:
    """The config as it is, with few pixels, channels and steps, on one process of a CPU."""
    cfg = start_from(load_config(str(toy.CONFIGS / 'transfer' / f'{name}.py')), str(checkpoint))
    size = dict(cityscapes=(64, 32), voc2012=(48, 48), nyuv2=(80, 60))[name.split('_')[0]]
    for node in _dicts(cfg._cfg_dict):
        if node.get('type') in ('Resize', 'RandomResize'):
            node.scale = (2 * size[0], 2 * size[1]) if node.type == 'RandomResize' else size
        if node.get('type') == 'RandomCrop':
            node.crop_size = size[::-1]
        if node.get('type') == 'Pad':
            node.size = size[::-1]
        if node.get('type') == 'mmairl.NYUAugmentation':
            node.crop = (64, 48)
        if 'data_root' in node:
            node.data_root = str(data[name.split('_')[0]])
    cfg.model.data_preprocessor.size = (48, 64) if name.startswith('nyuv2') else size[::-1]
    if name.startswith('nyuv2'):
        cfg.model.decode_head.channels = (32, 16, 8, 8)
        cfg.optim_wrapper.optimizer.lr *= 2 / 256  # the recipe's rate belongs to its batch
    else:
        cfg.model.decode_head.channels = 16
    if cfg.model.get('auxiliary_head'):
        cfg.model.auxiliary_head.channels = 8
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(num_workers=0, persistent_workers=False)
    cfg.train_dataloader.batch_size = 2
    cfg.train_cfg.update(max_iters=steps, val_interval=steps)
    cfg.custom_hooks[1].batches = 1
    cfg.work_dir, cfg.experiment_name, cfg.randomness = str(work_dir), f'segmentation{next(RUNS)}', dict(seed=5)
    return cfg


def run(cfg: Config) -> Runner:
    runner = launch.train(cfg)
    for path in Path(cfg.work_dir).rglob('*.pth'):
        path.unlink()
    return runner


def check(runner: Runner, checkpoint: Path, metrics: dict[str, float]) -> None:
    """All of the backbone moved from where the checkpoint put it, every norm is ours, and the metrics are sound."""
    scalars = runner.message_hub.log_scalars
    for metric, most in metrics.items():
        assert 0 <= scalars[f'val/{metric}'].current() <= most, metric
    before = torch.load(checkpoint, weights_only=True)['state_dict']
    for name, parameter in runner.model.backbone.named_parameters():
        start = before[f'backbone.{name}']
        assert not torch.equal(parameter.detach(), start), name
        assert (parameter - start).norm() < 2 * start.norm() + 1, name
    norms = [m for m in runner.model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    assert norms and all(type(norm).__module__ == 'mmairl.models.batchnorm' for norm in norms)


@pytest.mark.parametrize('name', CITYSCAPES)
def test_cityscapes_configs_train_and_evaluate(name, data, pretrained, tmp_path):
    checkpoint = pretrained(int(name.split('_r')[-1].split('_')[0]))
    runner = run(small(name, data, checkpoint, tmp_path))
    check(runner, checkpoint, dict(mIoU=100, aAcc=100))
    stages = runner.model.backbone(torch.zeros(1, 3, 64, 64))
    assert 64 // stages[-1].shape[-1] == (16 if 'os16' in name else 8)
    if 'mg124' in name:
        last = [block.conv2.dilation[0] for block in runner.model.backbone.layer4]
        assert last == [2, 4, 8]  # multi-grid 1, 2, 4 times the stage's 2


def test_voc2012_trains_and_evaluates_with_byols_head(data, pretrained, tmp_path):
    checkpoint = pretrained(50)
    cfg = small('voc2012_fcn_r50_30k', data, checkpoint, tmp_path)
    runner = run(cfg)
    check(runner, checkpoint, dict(mIoU=100))
    head = runner.model.decode_head
    assert [(c.conv.kernel_size, c.conv.dilation) for c in head.convs] == [((3, 3), (6, 6))] * 2
    assert (
        head.conv_seg.kernel_size == (1, 1)
        and head.conv_seg.out_channels == 21
        and not runner.model.with_auxiliary_head
    )
    conv5 = [block.conv2 for block in runner.model.backbone.layer4]
    assert conv5[0].stride == (1, 1) and all(conv.dilation == (2, 2) for conv in conv5)
    assert len(runner.train_dataloader.dataset) == 4


def test_nyuv2_trains_and_evaluates_in_metres(data, pretrained, tmp_path):
    checkpoint = pretrained(50)
    runner = run(small('nyuv2_depth_r50_7500', data, checkpoint, tmp_path))
    check(runner, checkpoint, dict(d1=1, d2=1, d3=1, rmse=1e4, abs_rel=1e4))
    sample = runner.train_dataloader.dataset[0]
    assert sample['inputs'].shape[1:] == (48, 64) == sample['data_samples'].gt_depth_map.shape[-2:]
    assert 0.9 < sample['data_samples'].gt_depth_map.data.max() <= 8


def test_another_stem_is_refused_before_the_first_step(data, pretrained, tmp_path):
    cfg = small('cityscapes_deeplabv3_r50_40k', data, pretrained(50), tmp_path)
    cfg.model.backbone.type = 'ResNetV1c'
    with pytest.raises(UserError, match=r'lacks \d+ of the \d+ weights of backbone \(first: stem'):
        launch.train(cfg)
