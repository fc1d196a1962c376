"""Suggested configs load and train, and their values follow the rules that their comments state."""

import re
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from harness import toy
from harness.errors import raises_code
from PIL import Image
from torchvision.models import resnet18

from mmairl.apis import suggest as module
from mmairl.apis.suggest import config_for, full_size, methods, suggest, suggest_for
from mmairl.checkpoints.read import read_backbone
from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checks import check_config
from mmairl.registry import MODELS


def suggested(tmp_path, *given, **request):
    path = tmp_path / 'mine.py'
    path.write_text(suggest(*given, **request))
    return load_config(path)


@pytest.mark.parametrize(
    'images, gpus, method',
    [(64, 1, 'byol'), (700, 3, 'mocov2plus'), (126_689, 8, 'mocov2'), (10**7, 1, 'byol_lars')],
)
def test_suggested_numbers_follow_the_rules(tmp_path, images, gpus, method):
    cfg, full = (
        suggested(tmp_path, method, images, gpus),
        load_config(f'mmairl::{method}_r50_200e.py'),
    )
    check_config(cfg)
    batch, momentum, epochs = (
        cfg.total_batch_size,
        cfg.default_hooks.momentum.base,
        cfg.train_cfg.max_epochs,
    )
    if queue := cfg.model.get('queue'):
        assert batch <= queue.length <= min(images / 4, 65536)
    assert batch % gpus == 0 and batch <= 256 * gpus and images // batch >= min(16, images // 16)
    assert cfg.optim_wrapper.optimizer.lr / batch == pytest.approx(
        full.optim_wrapper.optimizer.lr / 1024
    )
    assert momentum == 0.9 or 1 / (1 - momentum) <= images // batch * epochs / 50 * 1.02
    assert epochs == (200 if images >= 10**6 else 400 if images >= 10**5 else 800)
    assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 10
    steps = images // batch * epochs
    assert 1 <= cfg.default_hooks.health.interval <= max(1, steps / 20)


@pytest.mark.parametrize('method', ['mocov2plus', 'swav', 'dino', 'lejepa', 'mae'])
@pytest.mark.parametrize('request_', [{}, dict(size=64, channels=5, views='satellite')])
def test_printed_config_equals_the_one_in_python(tmp_path, method, request_):
    printed = suggested(tmp_path, method, 700, **request_)
    assert printed.to_dict() == config_for(method, 700, 'data/images', **request_).to_dict()
    text = (tmp_path / 'mine.py').read_text()
    keys = re.findall('^# ([a-z_.]+): (?:known|customary)', text, re.MULTILINE)
    assert len(keys) >= 5 and 'aerial images' in text
    assert keys == [key for key in module.REASONS if key in keys]
    steps = [step['type'] for view in printed.train_dataloader.dataset.views for step in view]
    assert ('RandomTurn' in steps) == bool(request_) and ('RandomGrayscale' in steps) <= (
        not request_
    )


def test_mae_reconstructs_images_of_several_channels():
    model = MODELS.build(config_for('mae', 700, 'images', size=32, channels=5).model)
    losses = model(torch.rand(2, 5, 32, 32), None, mode='loss')
    assert losses['loss'].isfinite()
    for request_ in (dict(weights='a.pth'), dict(network=torch.nn.Identity())):
        with raises_code('fixed-network'):
            config_for('mae', 700, 'images', **request_)


def test_prototypes_are_limited_by_the_images():
    for images, dino, swav in ((2000, 64, 64), (50_000, 2048, 2048), (2_000_000, 65_536, 3000)):
        models = [config_for(method, images, 'data/images').model for method in ('dino', 'swav')]
        counts = [
            models[0].projector.prototypes,
            models[0].head.prototypes,
            models[1].head.prototypes,
        ]
        assert counts == [dino, dino, swav]


def test_suggestion_at_imagenet_size_is_the_benchmark(tmp_path):
    cfg, paper = (
        suggested(tmp_path, 'mocov2plus', 1_281_167, 8),
        load_config('mmairl::mocov2plus_r50_200e.py'),
    )
    for side in (cfg, paper):
        for key in ('train_dataloader', 'auto_scale_lr', 'evaluation'):
            side.pop(key)
        (
            side.model.backbone.pop('depth'),
            side.model.projector.pop('in_channels'),
            side.default_hooks.pop('checkpoint'),
        )
    assert cfg.to_dict() == paper.to_dict()


@pytest.mark.parametrize('kind', ['resnet', 'vit'])
def test_run_from_weights_has_a_tenth_of_the_rate(tmp_path, kind):
    network = (
        resnet18()
        if kind == 'resnet'
        else timm.create_model('vit_tiny_patch16_224', img_size=32, depth=2)
    )
    torch.save(network.state_dict(), tmp_path / 'a.pth')
    cfg = suggested(tmp_path, 'byol', 5000, weights=tmp_path / 'a.pth')
    assert cfg.model.backbone.init_cfg.checkpoint == str(tmp_path / 'a.pth')
    assert cfg.model.projector.in_channels == (512 if kind == 'resnet' else 192)
    rate, batch = cfg.optim_wrapper.optimizer.lr, cfg.total_batch_size
    full = config_for('byol', 5000, 'images').optim_wrapper.optimizer.lr
    assert rate == pytest.approx(full / 10 if kind == 'resnet' else 1.5e-5 / 256 * batch)
    assert cfg.optim_wrapper.optimizer.type == ('SGD' if kind == 'resnet' else 'AdamW')


@pytest.fixture
def released(tmp_path, monkeypatch):
    """Make a tiny ViT of timm with patches of 7 pixels available as a released model, and return its name."""
    network = timm.create_model(
        'vit_tiny_patch16_224', img_size=28, patch_size=7, embed_dim=16, depth=1, num_heads=2
    )
    timm_arguments = dict(
        img_size=28, patch_size=7, embed_dim=16, depth=1, num_heads=2, dynamic_img_size=True
    )
    origin = dict(
        timm=dict(name='vit_tiny_patch16_224', **timm_arguments),
        mean=(0.1,) * 3,
        std=(0.2,) * 3,
        size=28,
    )
    weights = {
        key: value for key, value in network.state_dict().items() if not key.startswith('head.')
    }
    monkeypatch.setattr('mmairl.checkpoints.read.released_model', lambda name: (weights, origin))
    return 'timm:tiny'


def test_method_continues_a_released_vit(tmp_path, released):
    """DINOv2 gets the tokens, crops of whole patches, the images' statistics, and frozen prototypes at first."""
    cfg = suggested(tmp_path, 'dinov2', 700, weights=released, size=32, epochs=20)
    assert (
        cfg.model.backbone.tokens
        and cfg.model.projector.in_channels == cfg.model.patch_projector.in_channels == 16
    )
    assert cfg.model.data_preprocessor.mean == [0.1] * 3
    sizes = [view[0]['size'] for view in cfg.train_dataloader.dataset.views]
    assert sizes[:2] == [35, 35] and all(size % 7 == 0 for size in sizes)
    values = cfg.custom_hooks[0]['values']
    frozen = {key: schedule['until'] for key, schedule in values.items() if key.endswith('.frozen')}
    assert frozen == {'projector.frozen': 0.1, 'patch_projector.frozen': 0.1}
    full = config_for('dinov2', 700, 'images').optim_wrapper.optimizer.lr
    assert (
        cfg.optim_wrapper.optimizer.lr == pytest.approx(full / 10)
        and cfg.param_scheduler[0]['end'] == 2
    )
    text = (tmp_path / 'mine.py').read_text()
    assert 'custom_hooks: customary' in text and 'optim_wrapper.optimizer: known' in text
    cfg = config_for('mocov2plus', 700, 'images', weights=released, size=32)
    assert 'tokens' not in cfg.model.backbone and cfg.model.backbone.init_cfg.checkpoint == released
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    model = MODELS.build(cfg.model)
    model.init_weights()
    written = read_backbone(released).weights
    assert all(
        torch.equal(value, written[key]) for key, value in model.backbone.state_dict().items()
    )


def test_method_distills_a_released_vit(tmp_path, released):
    cfg = suggested(tmp_path, 'distill', 700, teacher=released, size=32)
    assert cfg.model.projector.out_channels == 16 and cfg.model.projector.in_channels == 512
    assert cfg.model.teacher.backbone.init_cfg.checkpoint == released
    assert cfg.model.teacher['size'] == 35 and cfg.model.teacher['std'] == [0.2] * 3
    model = MODELS.build(cfg.model)
    model.init_weights()
    views = [torch.randn(2, 3, 32, 32) for _ in range(2)]
    assert model(views, mode='loss')['loss'].isfinite()
    expected = read_backbone(released).weights
    assert all(
        torch.equal(value, expected[key])
        for key, value in model.teacher.hidden[0].state_dict().items()
    )


def write_images(folder: Path, side: int) -> Path:
    folder.mkdir()
    for index in range(64):
        pixels = np.random.default_rng(index).integers(0, 256, (side, side + 9, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f'{index}.png')
    (folder / '0.png').write_bytes(b'no image')
    return folder


@pytest.mark.parametrize('side, crop', [(20, 32), (70, 64), (300, 224)])
def test_suggested_crops_fit_the_images(tmp_path, monkeypatch, side, crop):
    monkeypatch.setattr(module, 'estimated_hours', lambda cfg: 1.0)
    text = suggest_for(write_images(tmp_path / 'images', side), 'mocov2plus')
    (tmp_path / 'mine.py').write_text(text)
    views = load_config(tmp_path / 'mine.py').train_dataloader.dataset.views
    assert [view[0]['size'] for view in views] == [crop, crop]
    assert f'Crops of {crop} pixels' in text and f'is {side} pixels' in text


def test_suggestion_for_a_folder_trains_and_states_hours(tmp_path):
    text = suggest_for(write_images(tmp_path / 'images', 20), 'mocov2plus')
    assert re.match(r'# Estimated from a few steps on this machine: [\d.e-]+ hours', text)
    (tmp_path / 'mine.py').write_text(text)
    cfg = load_config(
        tmp_path / 'mine.py',
        {**toy.NARROW, 'train_cfg.max_epochs': 1, 'train_dataloader.num_workers': 0},
    )
    cfg.work_dir = str(tmp_path / 'run')
    runner = run.train(cfg)
    assert runner.iter == 4 and np.isfinite(runner.message_hub.get_scalar('train/loss').current())


BAD = [
    (dict(images=60), 'too-few-images'),
    (dict(method='moco'), 'unknown-method'),
    (dict(views='satelite'), 'no-config'),
]


@pytest.mark.parametrize('change, code', BAD)
def test_bad_request_is_an_error(change, code):
    with raises_code(code):
        config_for(**{**dict(method='byol', images=640, data='images'), **change})


def test_config_with_the_field_is_a_method(tmp_path, monkeypatch):
    assert {'mocov2plus', 'byol_lars', 'dino', 'simclr', 'lejepa'} <= methods().keys()
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs/any_name.py').write_text("__method__ = 'mine'\nvalue = 1\n")
    monkeypatch.setattr(module, 'home', lambda: tmp_path)
    assert (
        full_size('mine') == 'mmairl::any_name.py' and Path('any_name.py') not in methods().values()
    )
