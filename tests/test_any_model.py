"""Unmodified models of mmpretrain train, resume bit for bit, evaluate, convert to timm and join a study, at tiny size."""

import json
import shutil
import subprocess
import sys

import pytest
import timm
import torch
import yaml
from harness.backbones import with_prefix
from harness.errors import raises_code
from mmengine.config import Config
from mmengine.model import BaseModel

from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.read import read_backbone
from mmairl.checkpoints.write import write_backbone
from mmairl.config import load_config
from mmairl.engine.run import train
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate
from mmairl.models.backbones import features
from mmairl.registry import MODELS

VIT = {
    'model.backbone.arch': dict(embed_dims=32, num_layers=2, num_heads=2, feedforward_channels=64),
    'model.backbone.patch_size': 8,
}
RESNET = {'depth': 18, 'base_channels': 8}
# The small sizes of each config, and the side of its images.
SMALL = {
    'mae_vit_s16_300e': (
        32,
        {
            **VIT,
            'model.backbone.img_size': 32,
            'model.neck.num_patches': 16,
            'model.neck.patch_size': 8,
            'model.neck.embed_dim': 32,
            'model.neck.decoder_embed_dim': 16,
            'model.neck.decoder_depth': 1,
            'model.neck.decoder_num_heads': 2,
            'model.head.patch_size': 8,
        },
    ),
    'maskfeat_vit_b16_300e': (
        112,
        {
            **VIT,
            'model.backbone.img_size': 112,
            'model.neck.in_channels': 32,
            'model.neck.out_channels': 27,
        },
    ),
    'simmim_swin_b_100e': (
        64,
        {
            'model.backbone.arch': dict(embed_dims=16, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2]),
            'model.backbone.img_size': 64,
            'model.backbone.stage_cfgs': dict(block_cfgs=dict(window_size=2)),
            'model.neck.in_channels': 128,
            'model.data_preprocessor.masks.input_size': 64,
        },
    ),
    'mmpretrain_mocov3_r50_300e': (
        32,
        {
            **{f'model.backbone.{key}': value for key, value in RESNET.items()},
            'model.neck.in_channels': 64,
            'model.neck.hid_channels': 32,
            'model.neck.out_channels': 16,
            'model.head.predictor.in_channels': 16,
            'model.head.predictor.hid_channels': 32,
            'model.head.predictor.out_channels': 16,
        },
    ),
    'mmpretrain_barlow_r50_1000e': (
        32,
        {
            **{f'model.backbone.{key}': value for key, value in RESNET.items()},
            'model.neck.in_channels': 64,
            'model.neck.hid_channels': 32,
            'model.neck.out_channels': 16,
            'model.head.in_channels': 16,
        },
    ),
}


def small(name: str, work_dir, **changes) -> Config:
    size, options = SMALL[name]
    cfg = load_config(f'mmairl::masked/{name}.py')
    for key, value in options.items():
        *path, last = key.split('.')
        node = cfg
        for part in path:
            node = node[part]
        node[last] = value
    views = (
        1
        if cfg.model.data_preprocessor.get('single_view') or 'masks' in cfg.model.data_preprocessor
        else 2
    )
    view = [
        dict(type='RandomResizedCrop', size=size, scale=(0.3, 1.0)),
        dict(type='RandomFlip', p=0.5),
    ]
    data = dict(type='Shapes', split='train', count=48, size=size)
    cfg.train_dataloader.update(num_workers=0, pin_memory=False)
    cfg.train_dataloader.dataset = dict(data, views=[view] * views)
    cfg.evaluation = dict(train=data, test=dict(data, split='val', count=24), batch_size=24)
    cfg.preprocessing = dict(size=size, resize=size)
    cfg.total_batch_size = 16
    cfg.train_cfg.max_epochs = 2
    cfg.param_scheduler = [
        dict(type='CosineAnnealingLR', by_epoch=True, convert_to_iter_based=True)
    ]
    cfg.default_hooks.checkpoint.interval = 1
    cfg.recipes = dict(linear='linear_shapes_20e')
    cfg.randomness = dict(seed=0)
    cfg.work_dir = str(work_dir)
    cfg.update(changes)
    return cfg


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Return a function that trains a model of mmpretrain once, and returns the folder of its run."""
    folders = {}

    def run(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp(name)
            train(small(name, folders[name]))
        return folders[name]

    return run


# The other models are tested by `make test-all`.
FAST = ('mae_vit_s16_300e', 'mmpretrain_mocov3_r50_300e')
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]


@pytest.mark.parametrize('name', NAMES)
def test_resume_is_exact(name, runs, tmp_path):
    whole = runs(name)
    shutil.copy(whole / 'epoch_1.pth', tmp_path)
    train(small(name, tmp_path, load_from=str(tmp_path / 'epoch_1.pth'), resume=True))
    one, other = (
        torch.load(folder / 'epoch_2.pth', weights_only=True)['state_dict']
        for folder in (whole, tmp_path)
    )
    first = torch.load(whole / 'epoch_1.pth', weights_only=True)['state_dict']
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    assert any(not torch.equal(one[key], first[key]) for key in one)


@pytest.mark.parametrize('name', NAMES)
def test_knn_scores_the_features_of_a_model(name, runs):
    folder = runs(name)
    scores = evaluate(small(name, folder), 'knn', str(folder / 'epoch_2.pth')).scores
    assert scores
    assert all(0 <= value <= 100 for value in scores.values())


@pytest.mark.slow
@pytest.mark.parametrize('name', SMALL)
def test_linear_trains_on_the_features_of_a_model(name, runs):
    folder = runs(name)
    scores = evaluate(small(name, folder), 'linear', str(folder / 'epoch_2.pth')).scores
    assert scores
    assert all(0 <= value <= 100 for value in scores.values())


@pytest.mark.parametrize('name', [name for name in NAMES if 'simmim' not in str(name)])
def test_timm_computes_the_same_features(name, runs, tmp_path):
    folder = runs(name)
    checkpoint = str(folder / 'epoch_2.pth')
    write_hub(read_backbone(checkpoint), tmp_path / 'hub')
    network = timm.create_model(
        f'local-dir:{tmp_path / "hub"}', pretrained=True, num_classes=0
    ).eval()
    ours = load_backbone(small(name, folder), checkpoint)
    images = torch.randn(2, 3, SMALL[name][0], SMALL[name][0])
    with torch.no_grad():
        torch.testing.assert_close(
            features(ours, images).pooled, network(images), atol=1e-4, rtol=1e-4
        )


WITHOUT_MMAIRL = """
import sys
import timm, torch

vit = timm.models.VisionTransformer(
    img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, mlp_ratio=2, num_classes=0
)
vit.load_state_dict(torch.load('timm.pth', weights_only=True))
images, features = torch.load('features.pth', weights_only=True)
with torch.no_grad():
    torch.testing.assert_close(vit.eval()(images), features, atol=1e-4, rtol=1e-4)
assert 'mmairl' not in sys.modules
"""


@pytest.mark.slow
def test_mae_in_timms_format_needs_no_mmairl(runs, tmp_path):
    name = 'mae_vit_s16_300e'
    checkpoint = str(runs(name) / 'epoch_2.pth')
    write_backbone(read_backbone(checkpoint), tmp_path / 'timm.pth', 'timm')
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        ours = features(load_backbone(small(name, tmp_path), checkpoint), images).pooled
    torch.save((images, ours), tmp_path / 'features.pth')
    subprocess.run([sys.executable, '-c', WITHOUT_MMAIRL], check=True, cwd=tmp_path)


def test_swin_is_an_error_in_timms_format(tmp_path):
    backbone = MODELS.build(small('simmim_swin_b_100e', tmp_path).model.backbone)
    state = with_prefix('backbone.', backbone.state_dict())
    torch.save(dict(state_dict=state), tmp_path / 'a.pth')
    with raises_code('unwritable-network'):
        write_backbone(
            read_backbone(tmp_path / 'a.pth', network=backbone.state_dict()),
            tmp_path / 'b.pth',
            'timm',
        )


@MODELS.register_module()
class WithoutBackbone(BaseModel):
    def __init__(self, data_preprocessor):
        super().__init__(data_preprocessor)
        self.network = torch.nn.Conv2d(3, 1, 3)

    def forward(self, inputs, data_samples=None, mode='loss'):
        return dict(loss=self.network(inputs).mean())


def test_model_without_a_backbone_is_an_error(tmp_path):
    cfg = small('mae_vit_s16_300e', tmp_path)
    cfg.model = dict(type='WithoutBackbone', data_preprocessor=cfg.model.data_preprocessor)
    with raises_code('no-backbone'):
        train(cfg)


@MODELS.register_module()
class WrongLoss(BaseModel):
    def __init__(self, data_preprocessor, wrong):
        super().__init__(data_preprocessor)
        self.backbone = torch.nn.Conv2d(3, 1, 3)
        self.wrong = wrong

    def forward(self, inputs, data_samples=None, mode='loss'):
        if self.wrong == 'loses a data worker':
            raise RuntimeError('DataLoader worker (pid 1) is killed by signal: Killed.')
        loss = self.backbone(inputs if self.wrong == 'takes one view' else inputs[0]).mean()
        losses = {'is a tensor': loss, 'is a number': dict(loss=loss.item())}
        return losses.get(self.wrong, dict(objective=loss))


@pytest.mark.parametrize('wrong', ['takes one view', 'is a tensor', 'is a number', 'has no loss'])
def test_wrong_loss_of_a_model_is_one_error(wrong, tmp_path):
    cfg = small('mmpretrain_barlow_r50_1000e', tmp_path)
    preprocessor = cfg.model.data_preprocessor
    cfg.model = dict(type='WrongLoss', wrong=wrong, data_preprocessor=preprocessor)
    with raises_code('first-step'):
        train(cfg)


def test_death_of_a_data_worker_in_the_first_step_names_its_cause(tmp_path):
    cfg = small('mmpretrain_barlow_r50_1000e', tmp_path)
    preprocessor = cfg.model.data_preprocessor
    cfg.model = dict(type='WrongLoss', wrong='loses a data worker', data_preprocessor=preprocessor)
    with raises_code('data-workers-failed'):
        train(cfg)


class NoFeatures(torch.nn.Module):
    """A backbone whose output cannot be scored."""

    def __init__(self, wrong):
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.wrong = wrong

    def forward(self, images):
        x = self.layer(images)
        outputs = {
            'integers': x.flatten(1).argmax(1, keepdim=True),
            'a tuple that ends with integers': (x, x.argmax(1)),
            'a dictionary': dict(x=x),
            'one axis': x.mean((1, 2, 3)),
            'too few rows': x[:1],
            'other values in each call': x + torch.rand_like(x),
        }
        return outputs[self.wrong]


@MODELS.register_module()
class ModelWithoutFeatures(BaseModel):
    def __init__(self, data_preprocessor, wrong):
        super().__init__(data_preprocessor)
        self.backbone = NoFeatures(wrong)

    def forward(self, inputs, data_samples=None, mode='loss'):
        raise AssertionError('the run takes a step')


@pytest.mark.parametrize(
    'wrong',
    [
        'integers',
        'a tuple that ends with integers',
        'a dictionary',
        'one axis',
        'too few rows',
        'other values in each call',
    ],
)
def test_no_features_are_an_error_before_the_first_step(wrong, tmp_path):
    cfg = small('mmpretrain_barlow_r50_1000e', tmp_path)
    preprocessor = cfg.model.data_preprocessor
    cfg.model = dict(type='ModelWithoutFeatures', wrong=wrong, data_preprocessor=preprocessor)
    with raises_code('not-features'):
        train(cfg)


@pytest.mark.slow
def test_mae_stands_in_a_study_next_to_mocov2plus(tmp_path):
    mae = small('mae_vit_s16_300e', tmp_path)
    moco = small('mae_vit_s16_300e', tmp_path)
    moco.model = load_config('mmairl::demo/mocov2plus_shapes.py').model
    moco.model.data_preprocessor = dict(type='ViewPreprocessor', mean=(0.5,) * 3, std=(0.25,) * 3)
    moco.model.queue.length = 64
    moco.train_dataloader.dataset.views *= 2
    for name, cfg in dict(mae=mae, moco=moco).items():
        cfg.fixed_size = True
        cfg.pop('work_dir')
        cfg.dump(str(tmp_path / f'{name}.py'))
    rows = [
        dict(name='MoCo v2+', config=str(tmp_path / 'moco.py')),
        dict(
            name='MAE',
            config=str(tmp_path / 'mae.py'),
            declares=['model', 'train_dataloader.dataset.views', 'preprocessing'],
        ),
    ]
    study = dict(title='MAE against MoCo v2+', seeds=[0], rows=rows, tasks=dict(demo=['knn']))
    (tmp_path / 'study.yaml').write_text(yaml.safe_dump(study))
    out = tmp_path / 'out'
    command = [
        '-m',
        'mmairl',
        'study',
        str(tmp_path / 'study.yaml'),
        '--scale',
        'demo',
        '--seeds',
        '0',
        '1',
        '--out',
        str(out),
        '--jobs',
        '1',
    ]
    subprocess.run([sys.executable, *command], check=True)
    record = json.loads((out / 'study.json').read_text())
    effects = {effect['name']: effect for effect in record['effects']['knn']}
    assert effects['MAE']['base'] == 'MoCo v2+' and len(effects['MAE']['by_seed']) == 2
    assert next(out.glob('*.html')).stat().st_size > 1000
