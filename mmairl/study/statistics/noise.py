"""Three sources of noise in a score: the pre-training seed, the seed of a trained classifier, and the choice of test images.

A row of a study is one configuration, usually trained with several seeds. Its base row is the row with which it is compared.

The noise from the choice of test images is computed without resampling, because the bootstrap standard error of a mean over
many images is the standard deviation over images divided by the square root of the number of images.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

import numpy as np

from mmairl.evaluation.metrics import unpacked
from mmairl.io import read_json
from mmairl.study.schema import Measured, result_file
from mmairl.study.statistics.compare_rows import scores_by_seed
from mmairl.study.task_names import is_on_features


def noise(study: Mapping, metric: str, out: Path) -> list[dict[str, Any]]:
    """Return how much the score of each row varies over seeds and over test images.

    Each entry has the standard deviation of a run's score over pre-training seeds (`seeds`) and over classifier seeds
    (`probes`), and the standard error of the row's mean score over test images (`images`). For a row that is compared with a
    base row, the entry also has the standard errors of the effect over seeds and over test images. Unknown values are None.

    Args:
        study: The record of the study.
        metric: Key of the score.
        out: Folder of the study.
    """
    recognized = {row['name']: recognized_images(row, metric, out) for row in study['rows']}
    comparisons = {pair['row']: pair for pair in study['comparisons'].get(metric, ())}
    without_training = is_on_features(metric)
    entries = []
    for row in study['rows']:
        seeds, probes = score_spread(row, metric)
        comparison = comparisons.get(row['name'], {})
        row_images = recognized[row['name']]
        base_images = recognized.get(comparison.get('on'))
        entry = dict(
            row=row['name'],
            seeds=seeds,
            probes=0.0 if without_training else probes,
            images=None,
            effect_seeds=comparison.get('error'),
            effect_images=None,
        )
        if row_images is not None:
            entry['images'] = error_by_images(row_images)
            if base_images is not None and len(row_images) == len(base_images):
                entry['effect_images'] = error_by_images(row_images - base_images)
        entries.append(entry)
    return entries


def score_spread(row: Mapping, metric: str) -> tuple[float | None, float | None]:
    """Return the standard deviations of a row's score over pre-training seeds and over classifier seeds.

    The score of a run is a mean over several classifiers, so the noise of the classifiers adds to the spread s between runs.
    The first standard deviation is corrected for this noise. Its square is s^2 - s_probes^2 mean(1 / probes), where s_probes
    is the second standard deviation, and probes is the number of classifiers of a run.
    """
    scores = scores_by_seed(row, metric)
    between = stdev(scores.values()) if len(scores) > 1 else None
    repeats = []
    for run in row['runs']:
        probes = run.get('probes', {}).get(metric, ())
        if run['seed'] in scores and len(probes) > 1:
            repeats.append(probes)
    if not repeats:
        return between, None
    within = mean(map(variance, repeats))
    in_means = within * mean(1 / len(probes) for probes in repeats)
    seeds = between and math.sqrt(max(0.0, between**2 - in_means))
    return seeds, math.sqrt(within)


def recognized_images(row: Mapping, metric: str, out: Path) -> np.ndarray | None:
    """Return, for each test image, the fraction of the row's finished runs that classify it correctly.

    Returns None if no run has a score, if a run did not record which images it classified correctly, if its score is not the
    fraction of these images, or if runs have different numbers of test images.
    """
    scores = scores_by_seed(row, metric)
    answers = []
    for run in row['runs']:
        if run['seed'] not in scores:
            continue
        identity = run.get('identities', {}).get(metric, {})
        path = result_file(out / run['folder'], metric, identity)
        right = read_json(path, Measured).right if path.is_file() else None
        if right is None:
            return None
        answer = unpacked(right)
        # The score may differ from the fraction of images that are classified correctly, for example if it is a mean
        # over classes.
        if not math.isclose(100 * answer.mean(), scores[run['seed']], abs_tol=1e-6):
            return None
        answers.append(answer)
    if len({len(answer) for answer in answers}) != 1:
        return None
    return np.mean(answers, axis=0)


def error_by_images(values: np.ndarray) -> float:
    """Return the standard error of the mean over images, 100 s / sqrt(n), in percentage points."""
    return 100 * float(values.std(ddof=1)) / math.sqrt(len(values))
