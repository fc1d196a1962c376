"""Model cards: the recipe of the input, the settings in the checkpoint, and scores of exactly these weights."""

import numpy as np
import pytest
import torch
import torchvision
import yaml
from PIL import Image
from planted import write_result

import mmairl
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.identity import weights_identity
from mmairl.report.card import write_card

SETTINGS = {
    'model.type': 'Siamese',
    'model.queue.length': 4096,
    'preprocessing.mean': '[0.25, 0.5, 0.75]',
    'preprocessing.std': '[0.2, 0.3, 0.4]',
    'preprocessing.size': '96',
    'model.backbone.init_cfg.checkpoint': 'hf-hub:org/start@main',
    'train_dataloader.dataset.root': '/home/me/](x)`|<b>',
    'log_level': 'INFO',
}


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    network = torchvision.models.resnet18()
    state = {
        f'backbone.{key}': value for key, value in network.state_dict().items() if 'fc' not in key
    }
    torch.save(
        dict(state_dict=state, meta=dict(epoch=7, settings=SETTINGS)), tmp_path / 'epoch_7.pth'
    )
    own = weights_identity(read_backbone(tmp_path / 'epoch_7.pth').weights)
    stated = dict(details=dict(chance=25.0, test_images=80, image_size=[64, 64], interval=[60, 80]))
    for score, weights, name in (
        (71.25, own, 'student'),
        (99, 'other', 'student'),
        (30, 'random', 'r'),
    ):
        identity = dict(weights=weights, network='ResNet-18')
        write_result(tmp_path / 'run', name, {'knn': score}, identity=identity, **stated)
    other = dict(weights='random', network='ResNet-50')
    write_result(tmp_path / 'run', 'random', {'knn': 98.0}, identity=other, **stated)
    return (tmp_path / 'epoch_7.pth').rename(tmp_path / 'run' / 'epoch_7.pth')


def card_of(checkpoint, weights, to='timm', **options) -> str:
    return write_card(read_backbone(checkpoint), weights, to, **options).read_text()


@pytest.mark.parametrize('mode', ['RGB', 'RGBA', 'I;16', 'L'])
def test_recipe_of_the_card_reproduces_embed(checkpoint, tmp_path, monkeypatch, mode):
    shape = dict(RGB=(130, 150, 3), RGBA=(130, 150, 4)).get(mode, (130, 150))
    values = np.random.default_rng(0).integers(0, 256, shape)
    if mode == 'I;16':
        values = (257 * values).astype(np.uint16)
    Image.fromarray(values if mode == 'I;16' else values.astype(np.uint8)).save(
        tmp_path / 'image.png'
    )
    text = card_of(checkpoint, tmp_path / 'a.pth')
    code = text.split('## Input')[1].split('```python\n')[1].split('```')[0]
    monkeypatch.chdir(tmp_path)
    exec(code.replace('image.jpg', 'image.png'), names := {})
    network = torchvision.models.resnet18()
    network.fc = torch.nn.Identity()
    network.load_state_dict(read_backbone(checkpoint).weights)
    features, _ = mmairl.embed(checkpoint, tmp_path / 'image.png')
    torch.testing.assert_close(
        network.eval()(names['x']).detach().numpy(), features, atol=1e-4, rtol=1e-4
    )


def test_card_states_settings_and_scores_of_these_weights(checkpoint, tmp_path):
    _, head, body = card_of(checkpoint, tmp_path / 'hub' / 'a.pth', 'hub').split('---\n', 2)
    front = yaml.safe_load(head)
    assert front['base_model'] == 'org/start' and 'license' not in front
    for text in (
        'ResNet-18 with 11.2 million',
        '`model.queue.length`: 4096',
        'images of flowers',
        '| student | 71.2 | 60.0 to 80.0 | 25.0 | 80 | 64 x 64 |',
        '| r | 30.0 |',
    ):
        assert text in body
    assert r'`train_dataloader.dataset.root`: \](x)\`\|&lt;b&gt;' in body
    assert not any(text in body for text in ('99', '98', 'log_level', '/home/me'))


def test_card_of_foreign_weights_claims_no_recipe(tmp_path):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'theirs.pth')
    text = card_of(tmp_path / 'theirs.pth', tmp_path / 'a.pth', license='mit')
    assert (
        'pre-trained' not in text
        and 'does not state its data' in text
        and 'those of ImageNet' in text
    )
    assert yaml.safe_load(text.split('---\n')[1])['license'] == 'mit'


def test_timm_code_of_the_card_runs(checkpoint, tmp_path, monkeypatch):
    code = card_of(checkpoint, tmp_path / 'r18.pth').split('```python\n')[1].split('```')[0]
    torch.save(read_backbone(checkpoint).weights, tmp_path / 'r18.pth')
    monkeypatch.chdir(tmp_path)
    exec(code, names := {})
    assert names['model'](torch.randn(1, 3, 64, 64)).shape == (1, 512)


def test_files_that_are_no_cards_are_kept(checkpoint, tmp_path):
    (tmp_path / 'README.md').write_text('mine')
    for _ in range(2):
        card_of(checkpoint, tmp_path / 'a.pth')
    assert (tmp_path / 'README.md').read_text() == 'mine' and '`a.pth` is the' in (
        tmp_path / 'a.pth.md'
    ).read_text()
