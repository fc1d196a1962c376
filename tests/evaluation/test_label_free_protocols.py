"""Protocols that use no labels: the uniformity of features, and norms of weights."""

import math

import numpy as np
import pytest
import torch
from harness.errors import raises_code

from mmairl.checkpoints.norms import typical_growth
from mmairl.checkpoints.read import read_backbone
from mmairl.evaluation.feature_protocol import Split
from mmairl.evaluation.features import Features
from mmairl.evaluation.protocol import evaluate, settings_for
from mmairl.study.task_names import is_measured, unit_of


def split_of(features):
    data = Features(x=torch.as_tensor(features), y=torch.zeros(len(features), dtype=torch.int64))
    return Split(train=data, test=data, val=None, metric='top-1', cfg=None)


def test_uniformity_equals_a_loop_over_pairs():
    features = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    potentials = [math.exp(-2 * float(((unit[i] - unit[j]) ** 2).sum())) for i in range(12) for j in range(i)]
    scores, _ = settings_for('uniformity').score(split_of(features))
    assert scores['uniformity'] == pytest.approx(math.log(np.mean(potentials)), abs=1e-5)


def test_collapsed_features_have_uniformity_zero():
    scores, _ = settings_for('uniformity').score(split_of(np.ones((9, 4), np.float32)))
    assert scores['uniformity'] == pytest.approx(0, abs=1e-6)


def test_norms_grow_by_one_when_weights_grow_tenfold(cfg, checkpoint, tmp_path):
    longer = tmp_path / 'longer.pth'
    state = torch.load(checkpoint, weights_only=True)['state_dict']
    kernels = {key: value * 10 if value.ndim == 4 else value for key, value in state.items()}
    torch.save(dict(state_dict=kernels), longer)
    short, long = (evaluate(cfg, 'norms', path).scores for path in (checkpoint, longer))
    name = 'log10 of weight norms'
    assert short[name] == pytest.approx(math.log10(typical_growth(read_backbone(checkpoint).weights)))
    assert long[name] - short[name] == pytest.approx(1, abs=1e-6)


def test_norms_of_no_model_are_an_error(cfg):
    with raises_code('no-convolutions'):
        evaluate(cfg, 'norms', 'random')


@pytest.mark.parametrize('name', ['norms', 'uniformity'])
def test_label_free_tasks_have_no_null_rows(name):
    assert not is_measured('random', name) and unit_of(name) == ''
