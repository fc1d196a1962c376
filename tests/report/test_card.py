"""Test the model card: the format of the hub, the settings in the checkpoint, and scores, which must belong to exactly
these weights.
"""

import json

import pytest
import torch
import torchvision
import yaml

from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.identity import weights_identity

SETTINGS = {
    'model.type': 'Siamese',
    'model.queue.length': 4096,
    'model.data_preprocessor.mean': '[0.25, 0.5, 0.75]',
    'train_dataloader.dataset.views': "[[{'type': 'RandomResizedCrop', 'size': 96}]]",
    'optim_wrapper.optimizer.lr': 0.03,
    'train_dataloader.dataset.root': '/home/me/leaves',
    'train_dataloader.dataset.cache': '/home/me/copies',
    'log_level': 'INFO',
}


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / 'run'
    folder.mkdir()
    network = torchvision.models.resnet18()
    network.fc = torch.nn.Identity()
    state = {f'backbone.{key}': value for key, value in network.state_dict().items()}
    torch.save(dict(state_dict=state, meta=dict(epoch=7, settings=SETTINGS)), folder / 'epoch_7.pth')
    identity = weights_identity(read_backbone(folder / 'epoch_7.pth').weights)
    for name, weights, score in (('knn', identity, 71.25), ('linear', 'another', 99.0)):
        record = dict(protocol=name, config='configs/evaluation/folder.py', subject='student', scores={name: score})
        (folder / f'{name}.json').write_text(json.dumps({**record, 'identity': dict(weights=weights)}))
    return folder / 'epoch_7.pth'


@pytest.mark.parametrize('to,name', [('timm', 'r18.pth'), ('safetensors', 'model.safetensors')])
def test_card_shows_the_checkpoints_settings(checkpoint, tmp_path, run_tool, to, name):
    run_tool('tools/convert.py', checkpoint, tmp_path / 'hub' / name, '--to', to)
    text = (tmp_path / 'hub' / 'README.md').read_text()
    _, head, body = text.split('---\n', 2)
    front = yaml.safe_load(head)
    assert front['library_name'] == ('timm' if to == 'timm' else 'pytorch') and 'license' not in front
    assert 'self-supervised-learning' in front['tags'] and '# license:' in head
    for phrase in (
        'ResNet-18 with 11.2 million',
        '`train_dataloader.dataset.root`: leaves',
        '`train_dataloader.dataset.cache`: copies',
        '`model.queue.length`: 4096',
        'epoch_7.pth',
        name,
        '3 channels with values from 0 to 1',
        'mean: 0.25, 0.5, 0.75\n',
        'std: 0.229, 0.224, 0.225\n',
        'crops: 96 pixels',
    ):
        assert phrase in body
    assert '| knn | 71.25 | folder |' in body and '99' not in body and 'log_level' not in body


@pytest.mark.parametrize('images', ['held_out', 'test'])
def test_card_states_watched_test_images(checkpoint, tmp_path, run_tool, images):
    saved = torch.load(checkpoint, weights_only=True)
    saved['meta']['settings'] |= {'custom_hooks.0.type': 'OnlineKNNHook', 'custom_hooks.0.images': images}
    torch.save(saved, checkpoint)
    run_tool('tools/convert.py', checkpoint, tmp_path / 'hub/r18.pth', '--to', 'timm')
    text = (tmp_path / 'hub/README.md').read_text()
    assert ('the run was evaluated on the test images' in text) == (images == 'test')


def test_card_of_foreign_weights_claims_no_recipe(checkpoint, tmp_path, run_tool):
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / 'theirs.pth')
    run_tool('tools/convert.py', tmp_path / 'theirs.pth', tmp_path / 'hub' / 'a.pth', '--to', 'timm')
    text = (tmp_path / 'hub' / 'README.md').read_text()
    assert 'million parameters.' in text and 'mmairl' not in text.partition('## Recipe')[0]


def test_timm_code_of_the_card_runs(checkpoint, tmp_path, run_tool, monkeypatch):
    pytest.importorskip('timm', reason='timm is not installed (pip install timm)')
    run_tool('tools/convert.py', checkpoint, tmp_path / 'r18.pth', '--to', 'timm')
    code = (tmp_path / 'README.md').read_text().split('```python\n')[1].split('```')[0]
    monkeypatch.chdir(tmp_path)
    exec(code, namespace := {})
    assert namespace['model'](torch.randn(1, 3, 64, 64)).shape == (1, 512)


def test_existing_readme_is_not_replaced(checkpoint, tmp_path, run_tool):
    (tmp_path / 'README.md').write_text('mine')
    run_tool('tools/convert.py', checkpoint, tmp_path / 'r18.pth', '--to', 'timm')
    assert (tmp_path / 'README.md').read_text() == 'mine' and (tmp_path / 'r18.pth.md').is_file()
    for name, cards in (('a.pth', ['README.md']), ('a.pth', ['README.md']), ('b.pth', ['README.md', 'b.pth.md'])):
        run_tool('tools/convert.py', checkpoint, tmp_path / 'two' / name, '--to', 'timm')
        assert sorted(file.name for file in (tmp_path / 'two').glob('*.md')) == cards
    assert '`a.pth` is the' in (tmp_path / 'two/README.md').read_text()
    (tmp_path / 'two/b.pth.md').write_text('mine')
    with pytest.raises(SystemExit, match='2'):
        run_tool('tools/convert.py', checkpoint, tmp_path / 'two/b.pth', '--to', 'timm')
    assert (tmp_path / 'two/b.pth.md').read_text() == 'mine'
    run_tool('tools/convert.py', checkpoint, tmp_path / 'plain' / 'r18.pth', '--to', 'torchvision')
    assert [file.name for file in (tmp_path / 'plain').iterdir()] == ['r18.pth']


def test_hub_card_lists_scores_and_escapes_text(checkpoint, tmp_path, run_tool):
    content = torch.load(checkpoint, weights_only=True)
    name = '](x)`|<b>\n---\nlicense: mit'
    content['meta']['settings'] |= {
        'train_dataloader.dataset.root': name,
        'model.backbone.init_cfg.checkpoint': 'hf-hub:org/start@main',
    }
    torch.save(content, checkpoint)
    run_tool('tools/convert.py', checkpoint, tmp_path / 'my-model', '--to', 'hub')
    _, head, body = (tmp_path / 'my-model/README.md').read_text().split('---\n', 2)
    front = yaml.safe_load(head)
    assert front['base_model'] == 'org/start' and 'license' not in front
    (result,) = front['model-index'][0]['results']
    assert front['model-index'][0]['name'] == 'my-model' and result['dataset']['name'] == 'folder'
    assert result['metrics'] == [dict(type='accuracy', name='knn', value=71.25)]
    assert r'\](x)\`\|&lt;b&gt;\\n' in body and '\n---' not in body
