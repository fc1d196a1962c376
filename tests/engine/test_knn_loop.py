"""The k-NN accuracy during training."""

from types import SimpleNamespace

import pytest
from harness.errors import raises_code

from mmairl.config import load_config
from mmairl.engine.knn_loop import KNNValLoop
from mmairl.evaluation.backbone import load_backbone
from mmairl.evaluation.protocol import evaluate
from mmairl.registry import MODELS


def test_images_are_normalized_as_in_evaluation():
    """The preprocessors of mmpretrain state the mean and standard deviation of values from 0 to 255."""
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    cfg.evaluation.train.count, cfg.evaluation.test.count = 120, 60
    cfg.evaluation.val = cfg.evaluation.test
    cfg.model.data_preprocessor = dict(
        type='mmpretrain.SelfSupDataPreprocessor', mean=[30.0] * 3, std=[20.0] * 3
    )
    model = MODELS.build(cfg.model)
    model.backbone.load_state_dict(load_backbone(cfg).state_dict())
    right = KNNValLoop(SimpleNamespace(cfg=cfg, model=model), None, None).classify()
    score = evaluate(cfg, 'knn', 'random').scores['k-NN, k = 20']
    assert 100 * right.double().mean().item() == pytest.approx(score)


def test_labels_that_do_not_fit_are_an_error():
    cfg = load_config('mmairl::demo/mocov2plus_shapes.py')
    images = dict(type='Subset', dataset=cfg.evaluation.test, classes=0.5)
    cfg.evaluation.val = images
    with raises_code('other-classes'):
        KNNValLoop(SimpleNamespace(cfg=cfg), None, None)
