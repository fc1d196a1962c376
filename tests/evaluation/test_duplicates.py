"""Test images that are in training as well: marked by their features, counted, shown, and left out beside."""

import json

import pytest
import torch

from mmairl.evaluation.duplicates import too_near
from mmairl.evaluation.knn import nearest
from mmairl.registry import DATASETS


@pytest.mark.parametrize('dimensions', [5, 10, 50])
@pytest.mark.parametrize('share', [0, 0.1, 0.4])
def test_planted_copies_are_marked_and_hardly_any_other(dimensions, share):
    generator = torch.Generator().manual_seed(dimensions)
    x = torch.randn(4000, dimensions, generator=generator)
    x[::2] *= 0.1  # denser here than there: half of the images lie in a cone
    x[::2, 0] += 1
    train, test = x[:2000], x[2000:].clone()
    copies = int(share * 2000)
    test[:copies] = train[:copies] + 1e-4 * torch.randn(copies, dimensions, generator=generator)
    marked = too_near(1 - nearest(test, train, 10)[0])
    assert marked[:copies].float().mean() > 0.95 if copies else True
    assert marked[copies:].float().mean() < 0.005


def test_images_that_are_all_alike_are_all_duplicates():
    assert too_near(torch.zeros(20, 10)).all()


@DATASETS.register_module(force=True)
class Leaking(DATASETS.get('Noise')):
    """Other noise than in training, but for the first ten images."""

    def __init__(self, views: list | None = None) -> None:
        super().__init__(30, seed=1)
        self.images[:10] = DATASETS.get('Noise')().images[:10]


@pytest.mark.parametrize(
    'protocol, score', [('knn', 'k-NN, k = 3'), ('logreg', 'logistic regression, top-1'), ('svm', '')]
)
def test_they_are_counted_shown_and_left_out_beside_the_score(
    config_file, tmp_path, run_tool, monkeypatch, protocol, score
):
    monkeypatch.chdir(tmp_path)
    config_file.write_text(
        config_file.read_text().replace("dict(type='Noise', count=30, seed=1)", "dict(type='Leaking')")
    )
    how = ('--init', 'pixels', '--k', 3, '--near-duplicates', '--out', tmp_path / 'a.json')
    run_tool('tools/evaluate.py', protocol, config_file, *how)
    record = json.loads((tmp_path / 'a.json').read_text())
    found = record['details']['near_duplicates']
    assert found['images'] == found['by_look'] == found['by_features'] == 10
    assert {names for (_, names), _ in found['pairs']} == {f'image {index}' for index in range(10)}
    assert not score or f'{score}, without near duplicates' in record['scores']
    page = (tmp_path / 'evaluation.html').read_text()
    assert '10 test images are nearly the same as a training image' in page and page.count('class="pair"') == 10
