import json
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import torch
import torchvision
from harness.errors import raises_code
from sklearn.neighbors import KNeighborsClassifier

from mmairl.evaluation import feature_store
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.features import extract, extraction
from mmairl.evaluation.metrics import unpacked
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.sets import evaluation_sets, held_out
from mmairl.registry import DATASETS


@pytest.fixture
def tool(monkeypatch, tmp_path, run_tool):
    # The cache of features is in the current folder, so each test has its own cache.
    monkeypatch.chdir(tmp_path)
    return partial(run_tool, 'tools/evaluate.py')


def test_tool_extracts_once_for_all_protocols(tool, cfg, config_file, checkpoint, capsys, monkeypatch):
    tool('knn', config_file, checkpoint, '--part', 'teacher', '--k', 3)
    record = json.loads((checkpoint.parent / 'epoch_3_teacher_knn.json').read_text())
    train, test = (
        extract(load_backbone(cfg, seed=2), dataset, extraction(cfg)) for _, dataset in evaluation_sets(cfg).values()
    )
    reference = KNeighborsClassifier(3, metric='cosine', algorithm='brute').fit(train.x, train.y)
    assert record['scores']['k-NN, k = 3'] == pytest.approx(100 * reference.score(test.x, test.y), abs=1e-4)
    right = unpacked(record['details'].pop('right'))
    assert record['details'].pop('confusion')['classes'] == ['dark', 'mid', 'bright']
    assert 100 * right.mean() == pytest.approx(next(iter(record['scores'].values()))) and len(right) == 30
    assert record['details'] == {'train_images': 45, 'test_images': 30, 'dimensions': 64, 'temperature': 0.07}
    monkeypatch.setattr(
        'mmairl.evaluation.feature_store._fill', lambda *_: pytest.fail('the features were extracted again')
    )
    tool('svm', config_file, checkpoint, '--part', 'teacher', '--low-shot')
    tool('logreg', config_file, checkpoint, '--part', 'teacher')
    (checkpoint.parent / 'file').write_text('')
    capsys.readouterr()
    with pytest.raises(SystemExit, match='2'):
        tool('knn', config_file, checkpoint, '--part', 'teacher', '--out', checkpoint.parent / 'file/a.json')
    printed = capsys.readouterr()
    assert 'cannot be written' in printed.err and 'teacher of epoch_3.pth' in printed.out, (
        'the scores were not printed before the error'
    )
    names = {path.stem for path in checkpoint.parent.glob('*.json')}
    assert names == {'epoch_3_teacher_knn', 'epoch_3_teacher_svm', 'epoch_3_teacher_logreg'}
    page = (checkpoint.parent / 'evaluation.html').read_text()
    assert all(name in page for name in ('k-NN, k = 3', 'SVM, mAP', 'logistic regression, top-1'))


def test_features_and_scores_are_replaced_by_remeasure(tool, config_file, checkpoint, monkeypatch):
    filled, fill = [], feature_store._fill
    monkeypatch.setattr(feature_store, '_fill', lambda *args: filled.append(args) or fill(*args))
    out = checkpoint.parent / 'epoch_3_student_knn.json'
    for more in ([], [], ['--remeasure']):
        tool('knn', config_file, checkpoint, '--k', 3, *more)
    assert len(filled) == 4, 'the features of training and test images were not extracted exactly twice'
    record = json.loads(out.read_text())
    stored = {**record, 'scores': {'k-NN, k = 3': -1.0}}
    # Results of an earlier version of the protocol have another digest of its source.
    stored['identity']['sources']['protocol'] = '0123'
    out.write_text(json.dumps(stored))
    tool('knn', config_file, checkpoint, '--k', 3)
    assert json.loads(out.read_text())['scores']['k-NN, k = 3'] > 0
    assert len(list(checkpoint.parent.glob('*.json'))) == 1


@DATASETS.register_module(force=True)
class Parted(DATASETS.get('Noise')):
    """Images of noise that come with their own validation split."""

    def __init__(self, split: str = 'train', views: list | None = None) -> None:
        super().__init__({'train': 30, 'val': 12, 'train+val': 42}[split])


@pytest.mark.parametrize('protocol, images', [('knn', 42), ('logreg', 30)])
def test_validation_images_join_if_they_choose_nothing(cfg, tmp_path, protocol, images):
    """Logistic regression chooses its strength on validation images. k-NN has nothing to choose, so these
    images join its training images.
    """
    cfg.evaluation.update(train=dict(type='Parted', split='train'), val=dict(type='Parted', split='val'))
    options = dict(ks=(3,)) if protocol == 'knn' else {}
    result = evaluate(cfg, protocol, 'random', settings=settings_for(protocol, **options, cache=tmp_path))
    assert result.details['train_images'] == images
    assert held_out(cfg.evaluation) == (cfg.evaluation.train, cfg.evaluation.val)


def test_baselines_need_no_checkpoint(tool, config_file, tmp_path):
    for subject in ('pixels', 'random'):
        out = tmp_path / f'{subject}.json'
        tool('logreg', config_file, '--init', subject, '--out', out)
        # Chance is 33 %.
        assert json.loads(out.read_text())['scores']['logistic regression, top-1'] > 90


def test_bad_input_raises_and_writes_no_json(tool, cfg, config_file, checkpoint, tmp_path, capsys):
    checkpoint.write_bytes(checkpoint.read_bytes()[:5000])
    for arguments, message in (
        ([], 'expected a checkpoint, --init'),
        ([checkpoint], 'truncated or damaged'),
        (['--init', 'pixels', '--settings', 'workers=0'], 'use --workers'),
        (['--init', 'pixels', '--k', '5', '--settings', 'ks=[3]'], 'use --ks'),
    ):
        with pytest.raises(SystemExit, match='2'):
            tool('knn', config_file, *arguments)
        printed = capsys.readouterr().err
        assert message in printed and printed.count('\n') == 1
    assert not list(tmp_path.glob('*.json*'))
    cfg.evaluation.test.count = 0
    for protocol in ('knn', 'logreg', 'svm', 'linear'):
        with raises_code('no-images'):
            evaluate(cfg, protocol, 'pixels', settings=settings_for(protocol, work_dir=tmp_path / 'a'))
    with raises_code('unknown-protocol'):
        evaluate(cfg, 'kn', 'pixels')
    cfg.pop('evaluation')
    with raises_code('no-evaluation-data'):
        evaluate(cfg, 'knn', 'pixels')


def test_other_projects_and_released_models_are_scored(tool, cfg, config_file, tmp_path, monkeypatch):
    state, moco = load_backbone(cfg, seed=2).state_dict(), tmp_path / 'moco.pth'
    torch.save(dict(state_dict={f'module.encoder_q.{key}': value for key, value in state.items()}), moco)
    hub = tmp_path / 'checkpoints' / Path(torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url).name
    hub.parent.mkdir()
    torch.save({**state, 'fc.weight': torch.zeros(2, 64)}, hub)
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    results = []
    for subject in (moco, 'torchvision:resnet18'):
        out = tmp_path / 'found.json'
        tool('knn', config_file, subject, '--k', 3, '--out', out)
        results.append(json.loads(out.read_text())['scores'])
    assert results[0] == results[1]


@pytest.mark.parametrize('protocol', ['logreg', 'svm'])
def test_held_out_images_respect_groups(cfg, protocol, monkeypatch):
    def evaluated(groups: dict):
        cfg.evaluation.update(groups)
        return evaluate(cfg, protocol, 'pixels', settings=settings_for(protocol))

    plain, grouped = evaluated({}), evaluated(dict(groups=dict(function=f'{__name__}.of_five')))
    assert plain.identity['protocol'] != grouped.identity['protocol'] and plain.details != grouped.details
    cfg.evaluation.groups = 'image'
    with raises_code('shared-groups'):
        evaluate(cfg, protocol, 'pixels', settings=settings_for(protocol))


CALLS = count()


def of_five(name: str) -> str:
    """Return a new group name after every fifteen calls.

    Each part has a multiple of fifteen images, so no two parts share a group.
    """
    return str(next(CALLS) // 15)


@pytest.mark.parametrize('views', [[dict(type='CenterCrop', size=24)], None])
def test_input_size_follows_the_views_of_the_protocol(cfg, views):
    cfg.evaluation.test.views = [[dict(type='CenterCrop', size=16)]]
    if views:
        cfg.evaluation.views = dict(knn=views)
    assert settings_for('knn').input_size(cfg) == (24 if views else 16)
    assert settings_for('logreg').input_size(cfg) == 16
