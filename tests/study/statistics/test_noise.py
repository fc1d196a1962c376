"""Sources of noise: the error due to images equals that of a bootstrap, and planted variances are found."""

import numpy as np
import pytest
import torch

from mmairl.evaluation.metrics import packed
from mmairl.io import write_json
from mmairl.study.collect import fold_probes
from mmairl.study.schema import Measured, result_file
from mmairl.study.statistics.noise import error_by_images, noise, score_spread
from mmairl.study.task_names import is_local


def test_error_by_images_equals_the_bootstrap():
    """The standard deviation of 1 000 resampled means has a relative error of about 2.2 %.

    For paired scores, the error of the difference is smaller than for independent scores.
    """
    generator = np.random.default_rng(0)
    hard = generator.random(400)
    one, two = (np.mean(generator.random((3, 400)) > hard * level, axis=0) for level in (0.9, 0.8))
    for values in (one, two, one - two):
        means = [100 * values[generator.integers(0, 400, 400)].mean() for _ in range(1000)]
        assert error_by_images(values) == pytest.approx(np.std(means, ddof=1), rel=0.08)
    assert error_by_images(one - two) < 0.8 * np.hypot(error_by_images(one), error_by_images(two))


def test_seed_and_classifier_spread_are_separated():
    """The scores have a standard deviation of 3 between 400 models, and of 2 between the four classifiers of a model.

    The means over four classifiers therefore have a standard deviation of sqrt(9 + 4 / 4).
    """
    generator = np.random.default_rng(1)
    probes = 50 + generator.normal(0, 3, (400, 1)) + generator.normal(0, 2, (400, 4))
    runs = [
        dict(seed=s, state='done', scores=dict(linear=scores.mean()), probes=dict(linear=scores.tolist()))
        for s, scores in enumerate(probes)
    ]
    seeds, classifiers = score_spread(dict(runs=runs), 'linear')
    assert seeds == pytest.approx(3, rel=0.1) and classifiers == pytest.approx(2, rel=0.06)
    alone = [{**run, 'probes': {}} for run in runs]
    assert score_spread(dict(runs=alone), 'linear') == (pytest.approx(10**0.5, rel=0.1), None)


def test_seeds_of_a_classifier_become_one_score():
    result = dict(
        scores={'knn': 40.0, 'linear': 60.0, 'linear#1': 63.0, 'linear@cars#2': 9.0},
        labels={'knn': 'k-NN', 'linear': 'top-1', 'linear#1': 'top-1', 'linear@cars#2': 'top-1 cars#2'},
    )
    fold_probes(result)
    assert result['scores'] == {'knn': 40.0, 'linear': 61.5, 'linear@cars': 9.0}
    assert result['labels'] == {'knn': 'k-NN', 'linear': 'top-1', 'linear@cars': 'top-1 cars'}
    assert result['probes'] == dict(linear=[60.0, 63.0])
    assert is_local('linear@cars#2') and not is_local('knn#1') and not is_local('linear#x')


def test_noise_by_images_is_read_from_result_files(tmp_path):
    """The study has two rows of two seeds, tested on eight images."""
    right = {'a': [[1, 1, 1, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0, 1, 1]], 'b': [[1, 1, 1, 1, 0, 1, 1, 1]] * 2}
    rows = []
    for name, seeds in right.items():
        runs = []
        for seed, bits in enumerate(seeds):
            identity, folder = dict(data=dict(test=dict(images=8)), weights=f'{name}{seed}'), f'runs/{name}/seed_{seed}'
            (tmp_path / folder).mkdir(parents=True)
            result = Measured({}, {}, packed(torch.tensor(bits, dtype=torch.bool)))
            write_json(result_file(tmp_path / folder, 'knn', identity), result)
            scores = {'knn': 12.5 * sum(bits), 'svm': 40.0 + seed}
            identities = dict(knn=identity, svm=identity)
            runs.append(dict(seed=seed, state='done', folder=folder, scores=scores, identities=identities))
        rows.append(dict(name=name, runs=runs))
    study = dict(rows=rows, comparisons=dict(knn=[dict(row='b', on='a', error=3.0)]))
    one, two = noise(study, 'knn', tmp_path)
    a, b = (np.mean(seeds, axis=0) for seeds in right.values())
    assert one['images'] == pytest.approx(100 * a.std(ddof=1) / 8**0.5) and one['probes'] == 0
    assert two['effect_images'] == pytest.approx(100 * (b - a).std(ddof=1) / 8**0.5) and two['effect_seeds'] == 3.0
    assert one['seeds'] == pytest.approx(np.std([62.5, 50.0], ddof=1)) and two['seeds'] == 0
    # A score has no error due to images if it differs from the mean of the stored results of single
    # images, or if no such results are stored.
    rows[0]['runs'][0]['scores']['knn'] = 60.0
    assert noise(study, 'knn', tmp_path)[0]['images'] is None
    assert noise(study, 'svm', tmp_path)[0]['images'] is None
