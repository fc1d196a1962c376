"""`mmairl.pretrain`: its config, its output in notebooks, initial weights, and networks that the user defines."""

import json
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from harness.toy import NARROW
from PIL import Image
from torch import nn
from torchvision.transforms import v2

import mmairl
from mmairl.apis import pretrain as module
from mmairl.checkpoints.hub_export import write_hub
from mmairl.checkpoints.read import load_checkpoint, read_backbone
from mmairl.config import load_config
from mmairl.data.preprocess import preprocessing_of
from mmairl.engine.checkpoint import settings
from mmairl.engine.curves import read_scalars
from mmairl.errors import UserError
from mmairl.registry import MODELS


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / 'images'
    folder.mkdir()
    for number, pixels in enumerate(
        np.random.default_rng(1).integers(0, 256, (72, 40, 40, 3), np.uint8)
    ):
        Image.fromarray(pixels).save(folder / f'{number:02}.png')
    return folder


def test_two_runs_in_one_process_agree_and_resume(images, tmp_path):
    how = dict(size=32, batch=32, workers=1, seed=4)
    first, second = (
        mmairl.pretrain('mocov2plus', images, tmp_path / name, 1, options=NARROW, **how)
        for name in ('a', 'b')
    )
    assert (first.name, second.parent) == ('epoch_1.pth', tmp_path / 'b')
    assert not multiprocessing.active_children()
    one, other = (load_checkpoint(path)['state_dict'] for path in (first, second))
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    by_command = load_config(tmp_path / 'b/mocov2plus_resnet18_images.py')
    trained = load_checkpoint(second)['meta']['settings']
    # The keys of the views are sorted in the file, so the views are not compared.
    views = 'train_dataloader.dataset.views'
    assert {**settings(by_command), views: trained[views]} == trained, (
        'the config in the work dir differs from the trained one, so commands cannot resume the run'
    )
    last = mmairl.pretrain(
        'mocov2plus', images, tmp_path / 'b', 2, options=NARROW, resume=True, **how
    )
    assert last.name == 'epoch_2.pth' and load_checkpoint(last)['meta']['iter'] == 4


def test_run_prints_few_lines_and_commands_that_work(images, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    mmairl.pretrain('mocov2plus', images, 'run', 1, size=32, batch=32, workers=0, options=NARROW)
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) <= 10
    commands = [line.removeprefix('next: ') for line in lines if line.startswith('next: ')]
    assert [re.search(r'mmairl\.(\w+)', command)[1] for command in commands] == [
        'evaluate',
        'embed',
        'map_images',
    ]
    for number, image in enumerate(images.iterdir()):
        folder = Path('labels', 'ab'[number % 2])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / image.name).write_bytes(image.read_bytes())
    script = '\n'.join(['import mmairl', *commands, 'assert names'])
    subprocess.run([sys.executable, '-c', script], check=True)
    assert Path('run/map.html').is_file()
    # The run is named after its method, network and data, and a second run does not overwrite it.
    assert Path('run/mocov2plus_resnet18_images.py').is_file()
    assert any(name.startswith('health') for name in read_scalars('run'))
    with raises_code('has-checkpoints'):
        mmairl.pretrain('byol', images, 'run', 1, size=32, batch=32, workers=0, options=NARROW)


def test_labels_guard_a_run_that_continues_weights(images, tmp_path):
    for part, first, last in (('train', 0, 48), ('test', 48, 72)):
        for number in range(first, last):
            folder = tmp_path / f'labels/{part}/{number % 2}'
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f'{number}.png').write_bytes((images / f'{number:02}.png').read_bytes())
    how = dict(size=32, batch=32, workers=0, seed=4)
    start = mmairl.pretrain('mocov2plus', images, tmp_path / 'start', 1, options=NARROW, **how)
    # The images are noise, so nothing can be better than the start by more than chance.
    kept = mmairl.pretrain(
        'byol', images, tmp_path / 'a', 2, weights=start, labels=tmp_path / 'labels', **how
    )
    assert kept == tmp_path / 'a/guard/start.pth'
    one, other = read_backbone(start).weights, read_backbone(kept).weights
    assert all(torch.equal(value, other[key]) for key, value in one.items())
    found = json.loads((tmp_path / 'a/guard.json').read_text())
    assert found['kept'] == 'start' and 'of 12 held-out images' in found['sentence']


def test_run_that_continues_a_hub_folder_is_read_by_all_commands(images, tmp_path):
    arch = dict(embed_dims=64, num_layers=1, num_heads=1, feedforward_channels=96)
    kind = dict(type='mmpretrain.VisionTransformer', arch=arch, img_size=32, patch_size=8)
    state = {f'backbone.{key}': value for key, value in MODELS.build(kind).state_dict().items()}
    torch.save(dict(state_dict=state), tmp_path / 'a.pth')
    write_hub(read_backbone(tmp_path / 'a.pth'), tmp_path / 'hub')
    options = {'model.backbone.drop_path': 0.1}
    how = dict(weights=tmp_path / 'hub', size=32, batch=32, workers=0, options=options)
    last = mmairl.pretrain('mocov2plus', images, tmp_path / 'out', 1, **how)
    features, _ = mmairl.embed(last, images)
    write_hub(read_backbone(last), tmp_path / 'again')
    np.testing.assert_allclose(mmairl.embed(tmp_path / 'again', images)[0], features, atol=1e-5)


def test_own_transforms_do_not_change_the_size_in_evaluation(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, 'train', Mock(side_effect=KeyboardInterrupt))
    crop = v2.RandomResizedCrop(32)
    with pytest.raises(KeyboardInterrupt):
        mmairl.pretrain('byol', images, tmp_path / 'out', 1, size=32, views=[[crop], [crop]])
    (cfg,) = module.train.call_args.args
    assert preprocessing_of(cfg)['size'] == 32


BAD_ARGUMENTS = [
    (dict(method='moco_v2plus'), 'unknown-method'),
    (dict(data='none'), 'no-images'),
    (dict(options={'modell.x': 1}), 'unknown-key'),
    (dict(batch=100), 'no-batch'),
    (dict(network=torch.nn.Identity(), weights='a.pth'), 'network-and-weights'),
]


@pytest.mark.parametrize('arguments, code', BAD_ARGUMENTS, ids=lambda value: str(value)[:20])
def test_bad_argument_is_a_user_error(arguments, code, images, tmp_path):
    usual = dict(
        method='byol', data=images, out=tmp_path / 'out', epochs=1, size=32, options=NARROW
    )
    with raises_code(code):
        mmairl.pretrain(**{**usual, **arguments})


def test_too_few_images_are_an_error(images, tmp_path):
    for number in range(20):
        (images / f'{number:02}.png').unlink()
    with raises_code('too-few-images'):
        mmairl.pretrain('byol', images, tmp_path / 'out', size=32)


def test_error_in_a_data_worker_is_raised(images, tmp_path):
    for number in range(72):
        (images / f'{number:02}.png').write_bytes(b'no image')
    with pytest.raises(UserError):
        mmairl.pretrain(
            'mocov2plus', images, tmp_path / 'out', 1, size=32, workers=1, options=NARROW
        )


def test_import_loads_no_engine():
    code = "import sys, mmairl; print([m for m in sys.modules if m.startswith(('mmairl.engine', 'mmairl.evaluation'))])"
    assert (
        subprocess.run([sys.executable, '-c', code], capture_output=True, text=True).stdout
        == '[]\n'
    )
    with pytest.raises(AttributeError, match="no attribute 'pretain'"):
        mmairl.pretain  # noqa: B018


class Map(nn.Module):
    """Return features in the form that the test chooses: a map, a pooled vector, several stages, or a dictionary."""

    def __init__(self, output: str = 'map') -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU())
        self.output = output

    def forward(self, images: torch.Tensor) -> object:
        features = self.body(images)
        outputs = dict(
            map=features,
            pooled=features.mean((2, 3)),
            stages=(features, features),
            dict=dict(x=features),
        )
        return outputs[self.output]


SMALL_HEADS = {key: value for key, value in NARROW.items() if 'hidden' in key}


@pytest.mark.parametrize('output', ['map', 'pooled', 'stages'])
def test_copy_of_the_callers_network_is_trained(output, images, tmp_path, capsys):
    torch.manual_seed(0)
    network = Map(output)
    before = {key: value.clone() for key, value in network.state_dict().items()}
    how = dict(size=32, batch=32, workers=0, seed=4, options=SMALL_HEADS)
    last = mmairl.pretrain('byol', images, tmp_path / 'a', 1, network=network, **how)
    if output == 'map':
        last = mmairl.pretrain(
            'byol', images, tmp_path / 'a', 2, network=network, resume=True, **how
        )
        assert last.name == 'epoch_2.pth'
    state = load_checkpoint(last)['state_dict']
    commands = re.findall('next: (.*)', capsys.readouterr().out)
    for command in commands[-2:]:  # the one before requires labeled images
        exec(command, dict(mmairl=mmairl))
    assert {f'backbone.{key}' for key in before} <= state.keys()
    assert not torch.equal(state['backbone.body.0.weight'], before['body.0.weight'])
    # The caller's network stays unchanged because a copy of it is trained.
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())


def test_network_without_features_is_an_error(images, tmp_path):
    with raises_code('not-features'):
        mmairl.pretrain('byol', images, tmp_path / 'a', 1, network=Map('dict'), size=32)


@pytest.mark.parametrize('size, crop', [(32, 32), (100, 96)])
def test_positions_and_patches_of_mae_fit_the_size(size, crop, images, tmp_path):
    arch = dict(embed_dims=32, num_layers=1, num_heads=2, feedforward_channels=32, _delete_=True)
    small = {'model.backbone.arch': arch, 'model.neck.embed_dim': 32, 'model.neck.decoder_depth': 1}
    last = mmairl.pretrain(
        'mae', images, tmp_path / 'a', 1, size=size, batch=32, workers=0, options=small
    )
    state = load_checkpoint(last)['state_dict']
    assert (
        state['backbone.pos_embed'].shape == (1, 65, 32)
        and state['neck.decoder_pos_embed'].shape[1] == 65
    )
    assert read_backbone(last).input.size == crop and mmairl.embed(last, images)[0].shape == (
        72,
        32,
    )


def test_network_of_another_process_is_an_error():
    with raises_code('network-of-python'):
        MODELS.build(dict(type='GivenNetwork', name='Map-99'))
