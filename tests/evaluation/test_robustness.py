"""Further test sets for a trained classifier: their classes, their scores, and corrected labels."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.data.subsets import ReaL
from mmairl.evaluation.metrics import HeadAccuracy, ranked_scores
from mmairl.evaluation.protocol import Result, evaluate, settings_for
from mmairl.evaluation.robustness import columns_of
from mmairl.registry import DATASETS


@pytest.mark.parametrize(
    'class_names, columns', [(('cat', 'dog', 'fox'), None), (('dog', 'fox'), [1, 2]), (('0', '2'), [0, 2])]
)
def test_classes_are_found_by_name_or_index(class_names, columns):
    assert columns_of('set', SimpleNamespace(classes=class_names), ['cat', 'dog', 'fox']) == columns


def test_unknown_class_is_an_error():
    with raises_code('other-classes'):
        columns_of('set', SimpleNamespace(classes=('10', '2')), ['cat', 'dog', 'fox'])


def test_other_classes_cannot_be_predicted():
    metric = HeadAccuracy(columns=[2, 0])
    scores = torch.tensor([[[1.0, 9.0, 0.0]], [[0.0, 9.0, 1.0]]])
    metric.process({}, [dict(scores=scores, label=torch.tensor([1, 0]))])
    assert metric.compute_metrics(metric.results) == {'top-1': 100.0}


@DATASETS.register_module(force=True)
class Darker(DATASETS.get('Noise')):
    """Noise of the two darker classes, listed in another order than in `Noise`."""

    classes = ['mid', 'dark']

    def __init__(self, count: int = 20, views: list | None = None) -> None:
        super().__init__(count, 5, views)
        kind = torch.arange(count) % 2
        self.labels = 1 - kind
        self.images = (self.images.int() - 80 * (torch.arange(count) % 3 - kind).view(-1, 1, 1, 1)).byte()


def test_trained_classifier_is_scored_on_each_set(cfg, tmp_path, small_recipe):
    small_recipe(epochs=3)

    def measured(folder: str) -> Result:
        settings = settings_for('linear', recipe=str(tmp_path / 'recipe.py'), work_dir=tmp_path / folder)
        return evaluate(cfg, 'linear', 'random', settings=settings)

    plain = measured('a')
    cfg.evaluation.robustness = dict(same=dict(type='Noise', count=30, seed=1), dark=dict(type='Darker'))
    result = measured('b')
    assert list(result.scores) == ['linear, top-1', 'linear, top-1 on same', 'linear, top-1 on dark']
    assert result.scores['linear, top-1 on same'] == result.scores['linear, top-1'] == plain.scores['linear, top-1']
    assert result.scores['linear, top-1 on dark'] > 70
    assert set(result.identity['protocol']['robustness']) == {'same', 'dark'}


def test_any_reassessed_label_counts_as_correct(tmp_path):
    for number, name in ((1, 'a'), (2, 'b'), (3, 'a')):
        (tmp_path / 'val' / name).mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray(np.zeros((8, 8, 3), np.uint8))
        pixels.save(tmp_path / f'val/{name}/ILSVRC2012_val_{number:08d}.png')
    (tmp_path / 'real.json').write_text(json.dumps([[0, 1], [1], []]))
    data = ReaL(dict(type='ImageFolder', root=str(tmp_path / 'val')), tmp_path / 'real.json')
    assert data.labels.tolist() == [[1, 1], [0, 1]]
    assert data[1]['data_samples']['label'].tolist() == [0, 1]
    scores = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    assert ranked_scores(data.metric, scores, data.labels, 2) == {'top-1': 50.0}
