"""Measure how many tuning trials NormRescale saves: `analyses: [projects.normrescale.benefit]` in a study with `tune`.

A trial is one fine-tuning with a certain learning rate (called rate in this file). The analysis answers two questions. After
how many trials is a network as good as its rescaled copy at the recipe's rate? Do weight norms predict the best rate of the
trials?
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, mean
from typing import Any

import numpy as np
from markupsafe import Markup
from mmengine.config import Config
from torch import Tensor

from mmairl.checkpoints.norms import predicted_times, typical_gain, typical_growth
from mmairl.checkpoints.read import read_backbone
from mmairl.report.charts import chart
from mmairl.report.page import ENVIRONMENT, fill
from mmairl.study.analyses import ANALYSES, Analysis
from mmairl.study.reuse import last_checkpoint
from mmairl.study.runs import Run
from mmairl.study.search import own_value
from mmairl.study.spec import Row, Study
from mmairl.study.task_names import recipe
from projects.normrescale.trials import trial_benefit

RATE = 'optim_wrapper.optimizer.lr'
Curve = Sequence[tuple[float, float]]  # pairs of rate and score, with ascending rates


@dataclass(frozen=True)
class Tuned:
    """The trials that tune the learning rate of one task for one network.

    Args:
        rates: The rate of each trial; the first is the recipe's.
        halves: For each trial, the scores on two halves of the held-out images.
        weights: The weights of the network's backbone.
    """

    rates: list[float]
    halves: list[list[float]]
    weights: Mapping[str, Tensor]

    @property
    def curve(self) -> Curve:
        return sorted((rate, mean(scores)) for rate, scores in zip(self.rates, self.halves))

    @property
    def best_rate(self) -> float:
        return max(self.curve, key=lambda point: point[1])[0]


BySeed = Mapping[int, Tuned]


def benefit_record(
    study: Study, configs: Mapping[str, Config], runs: Sequence[Run]
) -> dict[str, Any]:
    """Return the value of `worth` in study.json.

    For each tuned task, it has the scores of each row at the tried rates, and compares rescaled rows with their originals.
    """
    record = {}
    for task in study.tune:
        rows = _tuned_rows(task, configs, runs)
        if not rows:
            continue
        rescaled = [
            row for row in study.rows if row.rescaled and {row.name, row.rescaled.of} <= rows.keys()
        ]
        pairs = [_pair(row, rows) for row in rescaled]
        lines = {
            name: _mean_curve([tuned.curve for tuned in row.values()]) for name, row in rows.items()
        }
        record[task] = dict(pairs=[pair for pair in pairs if pair], lines=lines)
    return record


def _tuned_rows(
    task: str, configs: Mapping[str, Config], runs: Sequence[Run]
) -> dict[str, dict[int, Tuned]]:
    """Return the stored trials of a task in finished runs, by row and seed."""
    rows: dict[str, dict[int, Tuned]] = {}
    for run in runs:
        if run.part != 'compared' or not run.done or run.row.untrained:
            continue
        halves = run.result.tuned.get(task, {}).get('halves')
        if not halves:
            continue
        recipe_rate = own_value(recipe(configs[run.row.name], task), RATE)
        rates = [options.get(RATE, recipe_rate) for options in run.asked.tuned[task]]
        weights = read_backbone(str(last_checkpoint(run.folder))).weights
        rows.setdefault(run.row.name, {})[run.seed] = Tuned(rates, list(halves.values()), weights)
    return rows


def _pair(row: Row, rows: Mapping[str, BySeed]) -> dict[str, Any]:
    """Compare a rescaled row with its original, and predict the original's best rate from the norms of its weights."""
    original = rows[row.rescaled.of]
    rescaled = rows[row.name]
    seeds = sorted(original.keys() & rescaled.keys())
    if not seeds:
        return {}
    benefit = trial_benefit(
        [original[seed].halves for seed in seeds], [rescaled[seed].halves[0] for seed in seeds]
    )
    best_rates = [original[seed].best_rate for seed in seeds]
    pair = dict(
        asdict(benefit),
        row=row.name,
        of=row.rescaled.of,
        seeds=len(seeds),
        rate=original[seeds[0]].rates[0],
        best=geometric_mean(best_rates),
        bests=best_rates,
        norms=_norms(original, seeds),
    )
    anchor = rows.get(row.rescaled.anchor, {})
    if anchor.keys() >= set(seeds):
        pair['anchor_norms'] = _norms(anchor, seeds)
        pair |= _predictions(original, anchor, seeds)
    return pair


def _predictions(
    original: BySeed, anchor: BySeed, seeds: Sequence[int]
) -> dict[str, dict[str, Any]]:
    """Predict the best rate of the original from the norms of its kernels, and from those of its batch-norm gains.

    The predictions assume that the recipe's rate is the best for `anchor`, the network from which the rescaled copy has its
    norms. Each prediction includes the score of the original at the predicted rate.
    """
    times = [predicted_times(original[seed].weights, anchor[seed].weights) for seed in seeds]
    curves = [original[seed].curve for seed in seeds]
    predictions = {}
    for part in times[0]:
        rates = [original[seed].rates[0] * factors[part] for seed, factors in zip(seeds, times)]
        predictions[part] = dict(
            times=geometric_mean(factors[part] for factors in times),
            rate=geometric_mean(rates),
            score=_mean_score(rates, curves),
        )
    return predictions


def _norms(row: BySeed, seeds: Sequence[int]) -> dict[str, float]:
    """Return how much the 3x3 kernels have grown since initialization, and the typical size of the batch-norm gains.

    A number is left out if the network has no such weights.
    """
    norms = {}
    for name, measure in (('kernels', typical_growth), ('gains', typical_gain)):
        values = [measure(row[seed].weights) for seed in seeds]
        if all(values):
            norms[name] = geometric_mean(values)
    return norms


def _mean_curve(curves: Sequence[Curve]) -> list[tuple[float, float | None]]:
    """Return the mean of the curves at each tried rate that lies within the range of all curves."""
    low = max(curve[0][0] for curve in curves)
    high = min(curve[-1][0] for curve in curves)
    rates = sorted({rate for curve in curves for rate, _ in curve if low <= rate <= high})
    return [(rate, _mean_score([rate] * len(curves), curves)) for rate in rates]


def _mean_score(rates: Sequence[float], curves: Sequence[Curve]) -> float | None:
    """Return the mean of the scores of curves, each at its own rate, interpolated in log(rate).

    Return None if a rate lies outside of its curve.
    """
    scores = []
    for rate, curve in zip(rates, curves):
        curve_rates, values = zip(*curve)
        if not curve_rates[0] <= rate <= curve_rates[-1]:
            return None
        scores.append(float(np.interp(math.log(rate), np.log(curve_rates), values)))
    return mean(scores)


def benefit_section(study: Mapping[str, Any]) -> Markup:
    """Return the section about the benefit of NormRescale for the study's page."""
    charts = {}
    for task, record in study['worth'].items():
        series = {name: tuple(zip(*points)) for name, points in record['lines'].items()}
        charts[task] = chart(
            series, 'held-out score by the rate of fine-tuning', 'rate', log='x', wide=True
        )
    return fill(
        'benefit.html',
        study=study,
        tasks=study['worth'],
        charts=charts,
        labels={metric['key']: metric['label'] for metric in study['metrics']},
        trials=lambda count, most: f'more than {most}' if count is None else count,
    )


ENVIRONMENT.loader.searchpath.append(str(Path(__file__).with_name('templates')))
ANALYSES[__name__] = Analysis('worth', benefit_record, benefit_section)
