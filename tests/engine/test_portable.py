"""Checkpoints load where mmairl is not imported: in torch, mmengine, mmdet and mmseg."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from harness import toy
from mmengine.hooks import EmptyCacheHook

from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checkpoint import consolidate, load_checkpoint

ROOT = Path(__file__).parents[2]
WRITERS = ['exact hook', "mmengine's hook", 'normrescale', 'consolidate']

LOAD = """
import sys
import torch
from mmengine.runner import CheckpointLoader, load_checkpoint
path, weights = sys.argv[1:3]
loaded = torch.load(path, weights_only=True)
expected = torch.load(weights, weights_only=True)
assert loaded.get('message_hub', {}).get('log_scalars', {}) == {}
network = torch.nn.Module()
network.backbone = torch.nn.Module()
for key, value in expected.items():
    owner = network.backbone
    *parents, name = key.split('.')
    for parent in parents:
        if not hasattr(owner, parent):
            owner.add_module(parent, torch.nn.Module())
        owner = getattr(owner, parent)
    owner.register_buffer(name, torch.zeros_like(value))
load_checkpoint(network, path)
state = network.backbone.state_dict()
assert state.keys() == expected.keys()
assert all(torch.equal(state[key], value) for key, value in expected.items())
assert not any(name.split('.')[0] == 'mmairl' for name in sys.modules)
print('loaded', len(state))
"""

BUILD = """
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
import torch
from mmengine.config import Config


class Ops(ModuleType):
    '''mmcv-lite has no compiled operators; mmdet imports them, and none of them is called here.'''

    __spec__ = ModuleSpec('mmcv._ext', None)

    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return lambda *arguments: 'not available'


try:
    import mmcv._ext
except ImportError:
    sys.modules['mmcv._ext'] = Ops('mmcv._ext')
kind, *files = sys.argv[1:]
backbone = dict(depth=18, num_stages=4, out_indices=(0, 1, 2, 3), norm_cfg=dict(type='BN'))
if kind == 'mmdet':
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    loss, box = dict(type='CrossEntropyLoss', use_sigmoid=True), dict(type='L1Loss')
    coder = dict(type='DeltaXYWHBBoxCoder', target_means=[0.0] * 4, target_stds=[1.0] * 4)
    anchors = dict(type='AnchorGenerator', scales=[8], ratios=[0.5, 1.0, 2.0], strides=[4, 8, 16, 32, 64])
    extractor = dict(
        type='SingleRoIExtractor', roi_layer=dict(type='RoIAlign', output_size=7), out_channels=32,
        featmap_strides=[4, 8, 16, 32],
    )
    model = dict(
        type='FasterRCNN',
        backbone=dict(type='ResNet', **backbone),
        neck=dict(type='FPN', in_channels=[64, 128, 256, 512], out_channels=32, num_outs=5),
        rpn_head=dict(
            type='RPNHead', in_channels=32, feat_channels=32, anchor_generator=anchors, bbox_coder=coder,
            loss_cls=loss, loss_bbox=box,
        ),
        roi_head=dict(
            type='StandardRoIHead', bbox_roi_extractor=extractor,
            bbox_head=dict(
                type='Shared2FCBBoxHead', in_channels=32, fc_out_channels=32, roi_feat_size=7, num_classes=3,
                bbox_coder=coder, loss_cls=dict(type='CrossEntropyLoss'), loss_bbox=box,
            ),
        ),
        train_cfg=None,
        test_cfg=dict(rpn=dict(nms=dict(type='nms', iou_threshold=0.7), max_per_img=10, nms_pre=10), rcnn=dict()),
    )
else:
    from mmseg.registry import MODELS
    from mmseg.utils import register_all_modules
    model = dict(
        type='EncoderDecoder',
        backbone=dict(type='ResNet', **backbone),
        decode_head=dict(
            type='FCNHead', in_channels=512, in_index=3, channels=16, num_convs=1, num_classes=3,
            norm_cfg=dict(type='BN'), loss_decode=dict(type='CrossEntropyLoss'),
        ),
        train_cfg={}, test_cfg=dict(mode='whole'),
    )
register_all_modules()
for path, weights in zip(files[::2], files[1::2]):
    model['backbone']['init_cfg'] = dict(type='Pretrained', checkpoint=path, prefix='backbone.')
    network = MODELS.build(Config(dict(model=model)).model)
    network.init_weights()
    expected, state = torch.load(weights, weights_only=True), network.backbone.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], value) for key, value in expected.items())
    print('loaded', len(state))
assert not any(name.split('.')[0] == 'mmairl' for name in sys.modules)
"""


@pytest.fixture(scope='module')
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """For each writer a checkpoint of a ResNet-18, and a file with its backbone's tensors alone."""
    folder, files = tmp_path_factory.mktemp('portable'), {}
    run.register()
    for name, kind in (('exact hook', 'ExactCheckpointHook'), ("mmengine's hook", 'CheckpointHook')):
        cfg = toy.config('byol_lars_r50_200e.py', str(folder / kind), steps=1, width=64)
        cfg.default_hooks.checkpoint = dict(type=kind, by_epoch=False, interval=1)
        cfg.custom_hooks = [*cfg.get('custom_hooks', []), dict(type='OnlineProbeHook', classes=4)]
        runner = run.train(cfg)
        backbone = {key: value.detach() for key, value in runner.model.backbone.state_dict().items()}
        torch.save(backbone, folder / f'{kind}.weights')
        files[name] = folder / kind / 'iter_1.pth', folder / f'{kind}.weights'
    source, weights = files['exact hook']
    consolidate(source, folder / 'consolidated.pth')
    files['consolidate'] = folder / 'consolidated.pth', weights
    command = [sys.executable, ROOT / 'tools/normrescale.py', source, folder / 'rescaled.pth', '--constant', '0.5']
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    state = load_checkpoint(folder / 'rescaled.pth')['state_dict']
    rescaled = {key.removeprefix('backbone.'): state[key] for key in state if key.startswith('backbone.')}
    assert not torch.equal(rescaled['conv1.weight'], torch.load(weights)['conv1.weight'])
    torch.save(rescaled, folder / 'rescaled.weights')
    files['normrescale'] = folder / 'rescaled.pth', folder / 'rescaled.weights'
    return files


def without_mmairl(program: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, '-c', program, *map(str, arguments)], cwd='/', capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize('writer', WRITERS)
def test_checkpoint_loads_in_torch_and_mmengine(saved, writer):
    assert 'loaded 120' in without_mmairl(LOAD, *saved[writer])


def test_rescaled_checkpoint_holds_weights_only(saved):
    before = load_checkpoint(saved['exact hook'][0])
    after = torch.load(saved['normrescale'][0], weights_only=True)
    assert after.keys() == {'meta', 'state_dict'} and after['state_dict'].keys() == before['state_dict'].keys()
    assert 'run' not in after['meta'] and 'constant 0.5' in after['meta']['mmairl_origin']['normrescale']


@pytest.mark.slow
@pytest.mark.parametrize('kind', ['mmdet', 'mmseg'])
def test_init_cfg_of_mmdet_and_mmseg_loads_checkpoints(saved, kind):
    """In a detector and in a segmentor that are built from configs."""
    pytest.importorskip(f'{kind}.version', reason='the core set-up has no mmdet and mmseg')
    files = [file for writer in WRITERS[:3] for file in saved[writer]]
    assert without_mmairl(BUILD, kind, *files).count('loaded 120') == 3


def test_saved_config_keeps_braces_and_classes(toy_config, tmp_path):
    """mmengine replaces `{{ ... }}` in the text of a config, and cannot read the class that a type may be."""
    cfg = toy_config(steps=1, width=4)
    cfg.note = 'a {{ b }}'
    cfg.custom_hooks = [dict(type=EmptyCacheHook)]
    runner = run.train(cfg)
    text = load_checkpoint(Path(runner.work_dir) / 'iter_1.pth')['meta']['cfg']
    (tmp_path / 'again.py').write_text(text)
    again = load_config(tmp_path / 'again.py')
    assert again.note == 'a {{ b }}'
    assert again.custom_hooks[0].type.endswith('.EmptyCacheHook')
