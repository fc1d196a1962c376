"""Near duplicates of training images in the test set are found, counted, shown and left out of scores."""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from mmairl.evaluation.duplicates import too_near
from mmairl.evaluation.metrics import unpacked
from mmairl.evaluation.neighbors import nearest
from mmairl.registry import DATASETS


@pytest.mark.parametrize('dimensions', [5, 10, 50])
@pytest.mark.parametrize('share', [0, 0.1, 0.4])
def test_planted_copies_are_marked_almost_exclusively(dimensions, share):
    generator = torch.Generator().manual_seed(dimensions)
    x = torch.randn(4000, dimensions, generator=generator)
    # Half of the images lie in a narrow cone, so the density of images varies.
    x[::2] *= 0.1
    x[::2, 0] += 1
    train, test = x[:2000], x[2000:].clone()
    copies = int(share * 2000)
    test[:copies] = train[:copies] + 1e-4 * torch.randn(copies, dimensions, generator=generator)
    marked = too_near(1 - nearest(test, train, 10)[0])
    assert marked[:copies].float().mean() > 0.95 if copies else True
    assert marked[copies:].float().mean() < 0.005


def test_identical_images_are_all_duplicates():
    assert too_near(torch.zeros(20, 10)).all()


@DATASETS.register_module(force=True)
class Leaking(DATASETS.get('Noise')):
    """Images of noise, of which the first ten are also training images."""

    def __init__(self, views: list | None = None) -> None:
        super().__init__(30, seed=1)
        self.images[:10] = DATASETS.get('Noise')().images[:10]


@pytest.fixture
def measured(config_file, tmp_path, run_tool, monkeypatch) -> Callable[..., dict]:
    """Return a function that evaluates raw pixels, searches for near duplicates, and returns the stored result."""

    def measure(protocol: str, test: str) -> dict:
        monkeypatch.chdir(tmp_path)
        text = config_file.read_text().replace("dict(type='Noise', count=30, seed=1)", test)
        config_file.write_text(text)
        how = ('--init', 'pixels', '--near-duplicates', '--cfg-options', 'evaluation.ks=[3]', '--out', 'a.json')
        run_tool('tools/evaluate.py', protocol, config_file, *how)
        return json.loads((tmp_path / 'a.json').read_text())

    return measure


@pytest.mark.parametrize(
    'protocol, score', [('knn', 'k-NN, k = 3'), ('logreg', 'logistic regression, top-1'), ('svm', '')]
)
def test_duplicates_are_counted_shown_and_left_out(measured, tmp_path, protocol, score):
    record = measured(protocol, "dict(type='Leaking')")
    duplicates = record['details']['near_duplicates']
    assert duplicates['images'] == duplicates['by_look'] == duplicates['by_features'] == 10
    assert {names for (_, names), _ in duplicates['pairs']} == {f'image {index}' for index in range(10)}
    assert not score or f'{score}, without near duplicates' in record['scores']
    page = (tmp_path / 'evaluation.html').read_text()
    assert '10 test images are nearly identical to a training image' in page and page.count('class="pair"') == 10


def test_score_without_duplicates_keeps_mean_per_class(measured, monkeypatch):
    monkeypatch.setattr(Leaking, 'metric', 'mean per class', raising=False)
    record = measured('logreg', "dict(type='Leaking'), val=dict(type='Noise', count=9, seed=2)")
    right, y = unpacked(record['details']['right'])[10:], (np.arange(30) % 3)[10:]
    expected = np.mean([100 * right[y == label].mean() for label in range(3)])
    name = 'logistic regression, mean per class'
    assert record['scores'][f'{name}, without near duplicates'] == pytest.approx(expected) and name in record['scores']


def test_results_of_other_settings_have_own_files(config_file, checkpoint, tmp_path, run_tool, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / 'other.py'
    other.write_text(config_file.read_text().replace('seed=1', 'seed=2'))
    for config, k in ((config_file, 3), (config_file, 5), (other, 3), (config_file, 3)):
        run_tool('tools/evaluate.py', 'knn', config, checkpoint, '--k', k)
    records = [json.loads(path.read_text()) for path in tmp_path.glob('epoch_3_student_knn*.json')]
    assert sorted(next(iter(record['scores'])) for record in records) == ['k-NN, k = 3', 'k-NN, k = 3', 'k-NN, k = 5']


@DATASETS.register_module(force=True)
class Mislabelled(DATASETS.get('Leaking')):
    """Images of noise, of which the first ten are also training images.

    The labels of the first three images differ from the labels of the same images in the training set.
    """

    def __init__(self, views: list | None = None) -> None:
        super().__init__()
        self.labels[:3] = (self.labels[:3] + 1) % 3


def test_label_conflicts_count_in_every_score(measured, tmp_path):
    record = measured('knn', "dict(type='Mislabelled')")
    copies = record['details']['near_duplicates']
    assert (copies['images'], copies['conflicts'], len(copies['conflict_pairs']), len(copies['pairs'])) == (10, 3, 3, 7)
    right = unpacked(record['details']['right'])
    remaining = np.delete(right, np.arange(3, 10))
    assert record['scores']['k-NN, k = 3, without near duplicates'] == pytest.approx(100 * remaining.mean())
    page = (tmp_path / 'evaluation.html').read_text()
    assert 'The labels of 3 of these test images differ' in page and page.count('class="pair"') == 10
