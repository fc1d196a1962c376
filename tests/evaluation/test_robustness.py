"""Further test sets of a trained classifier: their classes, their scores, and reassessed labels."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from harness.errors import raises_code
from PIL import Image

from mmairl.config import load_config
from mmairl.data.subsets import ReaL
from mmairl.evaluation.metrics import HeadAccuracy, ranked_scores
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.evaluation.robustness import columns_of
from mmairl.registry import DATASETS

RECIPES = Path(__file__).parents[2] / 'configs/_base_/recipes'


class Named:
    def __init__(self, *classes: str) -> None:
        self.classes = classes


@pytest.mark.parametrize(
    'own, columns',
    [(('cat', 'dog', 'fox'), None), (('dog', 'fox'), [1, 2]), (('10', '2'), 'other-classes'), (('0', '2'), [0, 2])],
)
def test_classes_are_found_by_name_or_index(own, columns):
    if isinstance(columns, str):
        with raises_code(columns):
            columns_of('set', Named(*own), ['cat', 'dog', 'fox'])
    else:
        assert columns_of('set', Named(*own), ['cat', 'dog', 'fox']) == columns


def test_other_classes_cannot_be_predicted():
    metric = HeadAccuracy(columns=[2, 0])
    scores = torch.tensor([[[1.0, 9.0, 0.0]], [[0.0, 9.0, 1.0]]])
    metric.process({}, [dict(scores=scores, label=torch.tensor([1, 0]))])
    assert metric.compute_metrics(metric.results) == {'top-1': 100.0}


@DATASETS.register_module(force=True)
class Darker(DATASETS.get('Noise')):
    """The two darker classes of the noise, in another order."""

    classes = ['mid', 'dark']

    def __init__(self, count: int = 20, views: list | None = None) -> None:
        super().__init__(count, 5, views)
        kind = torch.arange(count) % 2
        self.labels = 1 - kind
        self.images = (self.images.int() - 80 * (torch.arange(count) % 3 - kind).view(-1, 1, 1, 1)).byte()


@pytest.fixture
def recipe(tmp_path) -> str:
    recipe = load_config(str(RECIPES / 'linear_shapes_20e.py'))
    recipe.total_batch_size = 20
    recipe.train_cfg.max_epochs = recipe.param_scheduler[0].end = 3
    recipe.visualizer.vis_backends = [dict(type='LocalVisBackend')]
    recipe.default_hooks.pop('progress')
    recipe.dump(str(tmp_path / 'recipe.py'))
    return str(tmp_path / 'recipe.py')


def test_trained_classifier_is_scored_on_each_set(cfg, tmp_path, recipe):
    settings = settings_for('linear', recipe=recipe, work_dir=tmp_path / 'a', sweep=False)
    plain = evaluate(cfg, 'linear', 'random', settings=settings)
    cfg.evaluation.robustness = dict(same=dict(type='Noise', count=30, seed=1), dark=dict(type='Darker'))
    settings = settings_for('linear', recipe=recipe, work_dir=tmp_path / 'b', sweep=False)
    result = evaluate(cfg, 'linear', 'random', settings=settings)
    assert list(result.scores) == ['linear, top-1', 'linear, top-1 on same', 'linear, top-1 on dark']
    assert result.scores['linear, top-1 on same'] == result.scores['linear, top-1'] == plain.scores['linear, top-1']
    assert result.scores['linear, top-1 on dark'] > 70
    assert set(result.identity['protocol']['robustness']) == {'same', 'dark'}


def test_reassessed_labels_count_any_of_an_image(tmp_path):
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
