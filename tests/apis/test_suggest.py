"""Suggested configs load and train, and their values follow the rules that their comments state."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

from mmairl.apis import suggest as module
from mmairl.apis.suggest import config_for, full_size, methods, suggest
from mmairl.config import load_config
from mmairl.engine import run
from mmairl.engine.checks import check_config


def suggested(tmp_path, *given, **options):
    path = tmp_path / 'mine.py'
    path.write_text(suggest(*given))
    return load_config(path, options)


METHODS = ['mocov1', 'mocov2', 'mocov2plus', 'smocov2plus', 'byol', 'byol_lars']
OTHERS = ['simclr', 'simsiam', 'swav', 'lejepa', 'dino', 'mocov3', 'barlow', 'vicreg']


@pytest.mark.parametrize('gpus', [1, 3, 8])
@pytest.mark.parametrize('images', [64, 700, 5_000, 50_000, 126_689, 999_999, 1_281_167, 10**8])
def test_suggested_numbers_follow_the_rules(tmp_path, images, gpus):
    method = METHODS[(images + gpus) % len(METHODS)]
    cfg, full = suggested(tmp_path, method, images, gpus), load_config(f'mmairl::{method}_r50_200e.py')
    check_config(cfg)
    batch, momentum, epochs = cfg.total_batch_size, cfg.default_hooks.momentum.base, cfg.train_cfg.max_epochs
    if queue := cfg.model.get('queue'):
        assert batch <= queue.length <= min(images / 4, 65536)
    assert batch % gpus == 0 and batch <= 256 * gpus and images // batch >= min(16, images // 16)
    assert cfg.optim_wrapper.optimizer.lr / batch == pytest.approx(full.optim_wrapper.optimizer.lr / 1024)
    assert 0.9 <= momentum <= full.default_hooks.momentum.base
    assert momentum == 0.9 or 1 / (1 - momentum) <= images // batch * epochs / 50 * 1.02, (
        'the teacher averages over more than a fiftieth of the steps'
    )
    assert epochs == (200 if images >= 10**6 else 400 if images >= 10**5 else 800)
    assert cfg.param_scheduler[0].end == cfg.param_scheduler[1].begin == 10


@pytest.mark.parametrize('method', [*METHODS, *OTHERS])
def test_printed_config_equals_the_one_in_python(tmp_path, method):
    printed, direct = suggested(tmp_path, method, 700), config_for(method, 700, 'data/images')
    assert printed.to_dict() == direct.to_dict()
    text = (tmp_path / 'mine.py').read_text()
    keys = re.findall('^([a-z_]+) = ', text, re.MULTILINE)
    assert len(keys) == len(set(keys)), 'a later assignment of the file replaces an earlier one'
    assert len(re.findall('^# (?:known|customary): ', text, re.MULTILINE)) >= 6


def test_prototypes_are_limited_by_the_images():
    for images, dino, swav in ((2000, 64, 64), (50_000, 2048, 2048), (2_000_000, 65_536, 3000)):
        models = [config_for(method, images, 'data/images').model for method in ('dino', 'swav')]
        counts = [models[0].projector.prototypes, models[0].head.prototypes, models[1].head.prototypes]
        assert counts == [dino, dino, swav]


def test_suggestion_at_imagenet_size_is_the_benchmark(tmp_path):
    cfg, paper = suggested(tmp_path, 'mocov2plus', 1_281_167, 8), load_config('mmairl::mocov2plus_r50_200e.py')
    for side in (cfg, paper):
        for key in ('train_dataloader', 'auto_scale_lr'):
            side.pop(key)
        side.model.backbone.pop('depth'), side.model.projector.pop('in_channels'), side.default_hooks.pop('checkpoint')
    assert cfg.to_dict() == paper.to_dict()


@pytest.mark.parametrize('channels', [None, 5])
def test_printed_config_trains_on_a_folder(tmp_path, run_tool, capsys, channels):
    run_tool('tools/train.py', '--suggest', '--images', 640, *(['--channels', channels] if channels else []))
    (tmp_path / 'mine.py').write_text(capsys.readouterr().out)
    (tmp_path / 'images').mkdir()
    for index in range(16):
        pixels = np.random.default_rng(index).integers(0, 256, (20, 20, channels or 3), dtype=np.uint8)
        if channels:
            np.save(tmp_path / f'images/{index}.npy', pixels)
        else:
            Image.fromarray(pixels).save(tmp_path / f'images/{index}.png')
    small = {
        'train_dataloader.dataset.root': str(tmp_path / 'images'),
        'train_dataloader.num_workers': 0,
        'model.backbone.stem_channels': 8,
        'model.backbone.base_channels': 8,
        'model.projector.in_channels': 64,
        'total_batch_size': 8,
        'train_cfg.max_epochs': 1,
    }
    cfg = load_config(tmp_path / 'mine.py', small)
    cfg.work_dir = str(tmp_path / 'run')
    runner = run.train(cfg)
    assert runner.model.backbone.conv1.in_channels == (channels or 3)
    assert runner.iter == 2 and np.isfinite(runner.message_hub.get_scalar('train/loss').current())
    assert 'the queue of 128 keys is longer than an epoch of 16 images' in ''.join(
        file.read_text() for file in (tmp_path / 'run').glob('*/*.log')
    )


@pytest.mark.parametrize(
    'words, message',
    [
        (['--suggest', '--images', 60], 'too few to learn from'),
        (['--suggest', '--images', 600, '--method', 'moco'], 'use one of barlow, byol, '),
        (['--suggest'], 'give --images N'),
        (['--suggest', 'byol', '--images', 600], '--method byol'),
        ([], 'give a config, or --suggest'),
    ],
)
def test_bad_request_is_an_error(run_tool, capsys, words, message):
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/train.py', *words)
    assert message in capsys.readouterr().err


def test_checkpoint_name_is_never_executed(tmp_path, monkeypatch, run_tool, capsys):
    monkeypatch.chdir(tmp_path)
    weights = Path("a\nopen('PWNED','w')#.pth")
    torch.save(resnet18().state_dict(), weights)
    assert config_for('mocov2plus', 640, 'images', weights=weights).model.backbone.depth == 18
    run_tool('tools/train.py', '--suggest', '--images', 640, '--weights', weights)
    Path('mine.py').write_text(capsys.readouterr().out)
    assert load_config('mine.py').model.backbone.init_cfg.checkpoint == str(weights.absolute())
    assert not Path('PWNED').exists()


def test_methods_are_found_by_a_field_of_their_configs():
    names = methods()
    assert {'mocov2plus', 'byol_lars', 'dino', 'dino_multicrop', 'simclr', 'lejepa'} <= names.keys()
    assert names['dino'].as_posix().endswith('configs/methods/dino_r50_300e.py')
    cfg = load_config(names['dino'])
    assert not [key for key in cfg if 'method' in key], '`__method__` is a key of the loaded config'


def test_new_config_with_the_field_is_a_method(tmp_path, monkeypatch):
    (tmp_path / 'configs').mkdir()
    (tmp_path / 'configs/any_name.py').write_text("__method__ = 'mine'\nvalue = 1\n")
    monkeypatch.setattr(module, 'home', lambda: tmp_path)
    assert full_size('mine') == 'mmairl::any_name.py'
