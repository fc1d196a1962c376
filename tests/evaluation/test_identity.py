"""A stored score is reused only for the same weights, images, protocol, views and code."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from mmairl.config import flat
from mmairl.evaluation import identity as module
from mmairl.evaluation import sources
from mmairl.evaluation.identity import identity_of, weights_identity
from mmairl.evaluation.protocol import settings_for


def changes(before, after) -> list[str]:
    before, after = flat(before), flat(after)
    return [key for key in before | after if before.get(key) != after.get(key)]


def identity(cfg, protocol='knn', **settings):
    return identity_of(cfg, settings_for(protocol, cfg, **settings), 'random')


@pytest.fixture
def folders(cfg, tmp_path):
    """Let the config evaluate on two folders of images."""
    for part in ('train', 'test'):
        for name in 'ab':
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for index in range(3):
                Image.new('RGB', (8, 8), (index * 9, len(part), ord(name))).save(
                    folder / f'{index}.png'
                )
        cfg.evaluation[part] = dict(type='ImageFolder', root=str(tmp_path / part))
    return tmp_path


def test_changed_image_label_and_name_are_noticed(cfg, folders):
    before = identity(cfg)
    file = folders / 'train' / 'a' / '0.png'
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b'x')
    assert changes(before, identity(cfg)) == ['data.train.content']
    file.write_bytes(content)
    assert not changes(before, identity(cfg))
    file.rename(folders / 'train' / 'b' / 'new.png')
    assert changes(before, identity(cfg)) == ['data.train.content']


def test_copied_folder_and_device_are_no_change(cfg, folders):
    before = identity(cfg)
    (folders / 'train').rename(folders / 'moved')
    cfg.evaluation.train.root = str(folders / 'moved')
    assert not changes(before, identity(cfg, device='cuda', workers=3, cache=Path('x')))


@pytest.mark.parametrize(
    'change, named',
    [
        (dict(ks=[3]), 'protocol.ks'),
        (dict(temperature=0.2), 'protocol.temperature'),
        ({'evaluation.test.views': [[dict(type='CenterCrop', size=24)]]}, 'views.test'),
        ({'model.data_preprocessor.mean': (0.1, 0.2, 0.3)}, 'input.mean'),
        ({'model.backbone.depth': 34}, 'network.depth'),
        ({'evaluation.test.seed': 5}, 'data.test'),
    ],
)
def test_each_input_of_a_score_is_noticed(cfg, change, named):
    before = identity(cfg)
    settings = {key: value for key, value in change.items() if '.' not in key}
    cfg.merge_from_dict({key: value for key, value in change.items() if '.' in key})
    assert any(key.startswith(named) for key in changes(before, identity(cfg, **settings)))


def test_weights_do_not_depend_on_format():
    weights = {'a': torch.rand(3, 4), 'b': torch.rand(2)}
    same = {
        'b': weights['b'].double(),
        'a': weights['a'].clone(),
        'x.num_batches_tracked': torch.tensor(3),
    }
    assert weights_identity(weights) == weights_identity(same)
    weights['a'][0, 0] += 1e-3
    assert weights_identity(weights) != weights_identity(same)


def test_own_modules_are_noticed_and_comments_are_not(cfg, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'own_helper.py').write_text('X = 1\n')
    file = tmp_path / 'own_views.py'
    file.write_text('"""Views."""\nimport own_helper\n\n\ndef f():\n    return 1\n')
    cfg.custom_imports = dict(imports=['own_views'])
    before = identity(cfg)
    assert before['code'].keys() >= {'own_views', 'own_helper'}
    file.write_text(
        '"""Other text."""\nimport own_helper\n\n\ndef f():\n    # A reason.\n    return 1\n'
    )
    assert not changes(before, identity(cfg))
    (tmp_path / 'own_helper.py').write_text('X = 2\n')
    assert changes(before, identity(cfg)) == ['code.own_helper']


def test_code_of_data_and_evaluation_is_covered(cfg, monkeypatch):
    before = identity(cfg)
    monkeypatch.setattr(module, 'source_of', lambda *places: '0123')
    assert changes(before, identity(cfg)) == ['code.mmairl']
    places = [
        path for place in sources.SCORING for path in [sources.PACKAGE / place] if path.exists()
    ]
    assert len(places) == len(sources.SCORING)


def test_files_are_identified_by_content(tmp_path):
    file = tmp_path / 'list.txt'
    file.write_text('a')
    before = module.config_identity(dict(files=str(file), root='/x'))
    file.rename(tmp_path / 'other.txt')
    assert module.config_identity(dict(files=str(tmp_path / 'other.txt'))) == before
    (tmp_path / 'other.txt').write_text('b')
    assert module.config_identity(dict(files=str(tmp_path / 'other.txt'))) != before
