"""`evaluate` scores the right features on the right images, and reuses scores by identity."""

import pytest
import torch
from harness.errors import raises_code
from PIL import Image
from sklearn.neighbors import KNeighborsClassifier

from mmairl.evaluation import features as module
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.metrics import interval
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.registry import DATASETS


def plain_features(cfg, dataset: dict, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    data = DATASETS.build(dataset)
    mean, std = (torch.tensor(cfg.model.data_preprocessor[key]) for key in ('mean', 'std'))
    x = (data.images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        return load_backbone(cfg, seed=seed)(x)[-1].mean((2, 3)), data.labels


def test_knn_equals_plain_code_for_the_teacher(cfg, checkpoint):
    result = evaluate(cfg, 'knn', checkpoint, 'teacher', settings_for('knn', ks=(3,)))
    x, y = plain_features(cfg, cfg.evaluation.train, seed=2)
    x_test, y_test = plain_features(cfg, cfg.evaluation.test, seed=2)
    reference = KNeighborsClassifier(3, metric='cosine', algorithm='brute').fit(x, y)
    score = result.scores['k-NN, k = 3']
    assert score == pytest.approx(100 * reference.score(x_test, y_test), abs=1e-4)
    assert result.subject == 'teacher of epoch_3.pth'
    details = result.details
    assert 100 * details['right'].count('1') / 30 == pytest.approx(score)
    assert details['train_images'] == 45 and details['dimensions'] == 64
    assert details['image_size'] == [32, 32] and details['test_images'] == 30
    assert details['chance'] == pytest.approx(100 / 3) and details['copies'] == 0
    assert details['interval'] == pytest.approx(interval(score, 30))


def test_features_and_scores_are_stored_once(cfg, checkpoint, tmp_path, monkeypatch):
    filled, fill = [], module._fill
    monkeypatch.setattr(module, '_fill', lambda *args: filled.append(args) or fill(*args))
    settings = settings_for('knn', ks=(3,), cache=tmp_path)
    first = evaluate(cfg, 'knn', checkpoint, settings=settings)
    assert evaluate(cfg, 'knn', checkpoint, settings=settings) == first
    evaluate(cfg, 'retrieval', checkpoint, settings=settings_for('retrieval', cache=tmp_path))
    assert len(filled) == 2, 'the features of each data set are extracted once'
    cfg.evaluation.train.count = 42
    other = evaluate(cfg, 'knn', checkpoint, settings=settings)
    assert other.details['train_images'] == 42


@pytest.mark.parametrize('protocol, images', [('knn', 57), ('logreg', 45)])
def test_validation_images_join_if_they_choose_nothing(cfg, protocol, images):
    DATASETS.register_module(name='Splits', module=Splits, force=True)
    cfg.evaluation.update(train=dict(type='Splits', split='train'))
    cfg.evaluation.val = dict(type='Splits', split='val')
    assert evaluate(cfg, protocol, 'random').details['train_images'] == images


class Splits(DATASETS.get('Noise')):
    def __init__(self, split: str, views=None) -> None:
        count, seed = {'train': (45, 0), 'val': (12, 7), 'train+val': (57, 0)}[split]
        super().__init__(count, seed, views=views)


@pytest.mark.parametrize('held_out, images', [(0.2, 36), (0.4, 27), (3, 36)])
def test_held_out_fraction_is_used(cfg, held_out, images):
    cfg.evaluation.held_out = held_out
    assert evaluate(cfg, 'logreg', 'pixels').details['train_images'] == 45
    from mmairl.evaluation.sets import held_out as parts

    fit, held = (DATASETS.build(part) for part in parts(cfg.evaluation))
    assert len(fit) == images and len(held) == 45 - images


@pytest.mark.parametrize('protocol', ['svm', 'logreg'])
def test_images_with_several_classes_are_scored(cfg, protocol):
    for part in ('train', 'test'):
        cfg.evaluation[part].several = True
    scores = evaluate(cfg, protocol, 'random').scores
    assert all('mAP' in name and 50 < score <= 100 for name, score in scores.items())


def wrong(cfg, key: str, value: object) -> None:
    if key == 'evaluation':
        cfg.pop('evaluation')
    elif key == 'val':
        cfg.evaluation.val = value
    elif key in ('train', 'test'):
        cfg.evaluation[key].update(value)
    else:
        cfg.evaluation[key] = value


@pytest.mark.parametrize(
    'protocol, key, value, code',
    [
        ('kn', 'ks', [3], 'unknown-protocol'),
        ('knn', 'evaluation', None, 'no-evaluation-data'),
        ('knn', 'test', dict(count=0), 'no-images'),
        ('knn', 'train', dict(count=1), 'one-class'),
        ('knn', 'train', dict(count=4), 'class-of-one'),
        ('knn', 'train', dict(several=True), 'unsupported-labels'),
        ('knn', 'test', dict(seed=0), 'train-is-test'),
        ('logreg', 'val', dict(type='Noise', count=12, seed=1), 'val-in-test'),
        ('norms', 'ks', [3], 'no-convolutions'),
        ('knn', 'settings', dict(knn=dict(gamma=3)), 'unknown-setting'),
        ('linear', 'settings', dict(linear=dict(recipe='lin')), 'unknown-recipe'),
        ('linear', 'settings', dict(linear=dict(sweep=True, recipe='finetune_20k')), 'no-sweep'),
    ],
)
def test_wrong_input_has_one_line(cfg, tmp_path, protocol, key, value, code):
    wrong(cfg, key, value)
    with raises_code(code):
        evaluate(cfg, protocol, 'random')


def test_error_of_a_folder_names_it(cfg, tmp_path):
    (tmp_path / 'set' / 'only').mkdir(parents=True)
    for name in 'ab':
        Image.new('RGB', (32, 32)).save(tmp_path / 'set' / 'only' / f'{name}.png')
    cfg.evaluation.train = dict(type='ImageFolder', root=str(tmp_path / 'set'))
    with raises_code('one-class', match=str(tmp_path / 'set')):
        evaluate(cfg, 'knn', 'random')


def test_exact_copies_are_counted(cfg, tmp_path):
    images = DATASETS.get('Noise')(45).images

    class Copied(DATASETS.get('Noise')):
        def raw(self, index):
            return images[index] if index < 4 else super().raw(index)

    DATASETS.register_module(name='Copied', module=Copied, force=True)
    cfg.evaluation.test.type = 'Copied'
    for protocol in ('knn', 'logreg', 'retrieval'):
        result = evaluate(cfg, protocol, 'random', settings=settings_for(protocol, cache=tmp_path))
        assert result.details['copies'] == 4


def test_groups_never_cross_parts(cfg):
    cfg.evaluation.groups = r'image (\d)'
    with raises_code('shared-groups'):
        evaluate(cfg, 'knn', 'random')


def test_groups_do_not_require_validation_images(cfg):
    cfg.evaluation.update(groups=r'image (\d+)', val=None)
    with raises_code('shared-groups'):
        evaluate(cfg, 'knn', 'random')


def test_config_without_labels_is_an_error(cfg):
    cfg.evaluation = None
    with raises_code('no-evaluation-data'):
        evaluate(cfg, 'knn', 'random')


def test_classes_must_agree(cfg):
    class Other(DATASETS.get('Noise')):
        classes = ['dark', 'bright', 'mid']

    DATASETS.register_module(name='Other', module=Other, force=True)
    cfg.evaluation.test.type = 'Other'
    with raises_code('other-classes'):
        evaluate(cfg, 'knn', 'random')


@pytest.mark.parametrize('protocol', ['retrieval', 'uniformity', 'norms'])
def test_other_protocols_equal_plain_code(cfg, checkpoint, protocol):
    scores = evaluate(cfg, protocol, checkpoint).scores
    x, y = plain_features(cfg, cfg.evaluation.test, seed=1)
    x = torch.nn.functional.normalize(x.double())
    if protocol == 'uniformity':
        apart = torch.pdist(x).square()
        assert scores['uniformity'] == pytest.approx((-2 * apart).exp().mean().log().item())
    elif protocol == 'norms':
        # Kaiming initialization of mmpretrain is the reference, so the ratio is about 1.
        assert abs(scores['log10 of weight norms']) < 0.02
    else:
        precisions = []
        for row in range(30):
            order = [i for i in (x @ x[row]).argsort(descending=True).tolist() if i != row]
            hits = [rank for rank, i in enumerate(order, 1) if y[i] == y[row]]
            precisions.append(sum(n / rank for n, rank in enumerate(hits, 1)) / len(hits))
        expected = 100 * sum(precisions) / len(precisions)
        assert scores['retrieval, mAP'] == pytest.approx(expected, abs=0.1)
