"""The sources of a score's noise, apart: pre-training's seed, the seed of a classifier that is trained, test images.

What other test images would change needs no resampling: the bootstrap's standard error of a mean over images is in the end
the images' standard deviation over the root of their number.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev, variance
from typing import Any

import numpy as np

from mmairl.evaluation.metrics import unpacked
from mmairl.evaluation.protocol import is_protocol, protocol_class
from mmairl.io import read_json
from mmairl.study.measure import result_file
from mmairl.study.schema import Measured
from mmairl.study.statistics.compare_rows import scores_by_seed


def noise(study: Mapping, metric: str, out: Path) -> list[dict[str, Any]]:
    """For each row the standard deviation that each source gives to a run's score or, of the images, the standard error.

    With a comparison also the standard error of its effect by seeds and by images. None is not known.
    """
    known = {row['name']: recognised(row, metric, out) for row in study['rows']}
    errors = {pair['row']: (pair['on'], pair['error']) for pair in study['comparisons'].get(metric, ())}
    entries = []
    for row in study['rows']:
        seeds, probes = spread(row, metric)
        own, (on, error) = known[row['name']], errors.get(row['name'], (None, None))
        both = own is not None and known.get(on) is not None and len(own) == len(known[on])
        entries.append(
            dict(
                row=row['name'],
                seeds=seeds,
                probes=0.0 if is_deterministic(metric) else probes,
                images=by_images(own) if own is not None else None,
                effect_seeds=error,
                effect_images=by_images(own - known[on]) if both else None,
            )
        )
    return entries


def is_deterministic(metric: str) -> bool:
    """Return whether a score has no noise of its own: protocols that train nothing have none."""
    protocol = metric.partition('@')[0]
    return is_protocol(protocol) and not protocol_class(protocol).trains


def spread(row: Mapping, metric: str) -> tuple[float | None, float | None]:
    """Standard deviations by the pre-training's seed and by the classifier's: what the latter leaves in means is taken off."""
    scores = scores_by_seed(row, metric)
    between = stdev(scores.values()) if len(scores) > 1 else None
    probes = [run.get('probes', {}).get(metric, ()) for run in row['runs'] if run['seed'] in scores]
    repeats = [values for values in probes if len(values) > 1]
    if not repeats:
        return between, None
    within = mean(map(variance, repeats))
    left = within * mean(1 / len(values) for values in repeats)
    return between and math.sqrt(max(0.0, between**2 - left)), math.sqrt(within)


def recognised(row: Mapping, metric: str, out: Path) -> np.ndarray | None:
    """Return for each test image the share of the row's finished runs that recognise it; None where a run does not say so."""
    answers, scores = [], scores_by_seed(row, metric)
    for run in (run for run in row['runs'] if run['seed'] in scores):
        path = result_file(out / run['folder'], metric, run.get('identities', {}).get(metric, {}))
        right = read_json(path, Measured).right if path.is_file() else None
        if right is None or not math.isclose(100 * unpacked(right).mean(), scores[run['seed']], abs_tol=1e-6):
            return None  # such as a mean over classes
        answers.append(unpacked(right))
    return np.mean(answers, axis=0) if answers and len({len(answer) for answer in answers}) == 1 else None


def by_images(values: np.ndarray) -> float:
    return 100 * float(values.std(ddof=1)) / math.sqrt(len(values))
