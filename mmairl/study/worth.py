"""The worth of NormRescale: how many tuned trials stand for it, and whether norms predict the rate that they find."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import geometric_mean, mean
from typing import Any

import numpy as np
from mmengine.config import Config
from torch import Tensor

from mmairl.checkpoints.norms import predicted_times, typical_gain, typical_growth
from mmairl.checkpoints.read import read_backbone
from mmairl.study.reuse import last_checkpoint
from mmairl.study.runs import Run
from mmairl.study.search import own_value
from mmairl.study.spec import Row, Study
from mmairl.study.statistics.tuning import worth
from mmairl.study.task_names import recipe

RATE = 'optim_wrapper.optimizer.lr'


def worth_record(study: Study, configs: Mapping[str, Config], runs: Sequence[Run]) -> dict[str, Any]:
    """Return, for each tuned task, what rescaling is worth in trials of its recipe's rate, from the trials that are kept."""
    record = {}
    for task in study.tune:
        kept: dict[str, dict[int, Tried]] = {}
        for run in runs:
            halves = run.result.tuned.get(task, {}).get('halves')
            if halves and not run.row.untrained:  # whose weights are no file
                own = own_value(recipe(configs[run.row.name], task), RATE)
                rates = [options.get(RATE, own) for options in run.asked.tuned[task]]
                weights = read_backbone(str(last_checkpoint(run.folder))).weights
                kept.setdefault(run.row.name, {})[run.seed] = Tried(rates, list(halves.values()), weights)
        pairs = [_pair(row, kept) for row in study.rows if row.rescaled and {row.name, row.rescaled.of} <= kept.keys()]
        lines = {name: _mean_line([one.points for one in tried.values()]) for name, tried in kept.items()}
        if lines:
            record[task] = dict(pairs=[pair for pair in pairs if pair], lines=lines)
    return record


@dataclass(frozen=True)
class Tried:
    """The trials of a task's rate on one network; the first is the recipe's own."""

    rates: list[float]
    halves: list[list[float]]  # the scores of the halves of the held-out images
    weights: Mapping[str, Tensor]

    @property
    def points(self) -> list[tuple[float, float]]:
        return sorted((rate, mean(scores)) for rate, scores in zip(self.rates, self.halves))

    @property
    def best(self) -> float:
        return max(self.points, key=lambda point: point[1])[0]


def _pair(row: Row, kept: Mapping[str, Mapping[int, Tried]]) -> dict[str, Any]:
    """Return how a rescaled row compares with the one as it is, and the rate that their norms predict for that one."""
    old, new = (kept[name] for name in (row.rescaled.of, row.name))
    if not (seeds := sorted(old.keys() & new.keys())):
        return {}
    value = worth([old[seed].halves for seed in seeds], [new[seed].halves[0] for seed in seeds])
    bests, rate = [old[seed].best for seed in seeds], old[seeds[0]].rates[0]
    pair = dict(asdict(value), row=row.name, of=row.rescaled.of, seeds=len(seeds), rate=rate, bests=bests)
    pair.update(best=geometric_mean(bests), norms=_norms(old, seeds))
    usual = kept.get(row.rescaled.anchor, {})
    if not usual.keys() >= set(seeds):
        return pair
    pair['anchor_norms'] = _norms(usual, seeds)
    times = [predicted_times(old[seed].weights, usual[seed].weights) for seed in seeds]
    for way in times[0]:
        rates = [old[seed].rates[0] * factors[way] for seed, factors in zip(seeds, times)]
        there = _at(rates, [old[seed].points for seed in seeds])
        pair[way] = dict(
            times=geometric_mean(factors[way] for factors in times), rate=geometric_mean(rates), score=there
        )
    return pair


def _norms(row: Mapping[int, Tried], seeds: Sequence[int]) -> dict[str, float]:
    """Return how long 3x3 kernels are beside their start, and how large gains, where the network has these."""
    measured = dict(kernels=typical_growth, gains=typical_gain)
    found = {name: [measure(row[seed].weights) for seed in seeds] for name, measure in measured.items()}
    return {name: geometric_mean(values) for name, values in found.items() if all(values)}


def _mean_line(curves: Sequence[Sequence[tuple[float, float]]]) -> list[tuple[float, float]]:
    """Return the curves' mean at each rate that was tried and that all of them reach."""
    low, high = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    rates = sorted({rate for curve in curves for rate, _ in curve if low <= rate <= high})
    return [(rate, _at([rate] * len(curves), curves)) for rate in rates]


def _at(rates: Sequence[float], curves: Sequence[Sequence[tuple[float, float]]]) -> float | None:
    """Return the mean score at these rates, a rate a curve, on straight lines over log rate; None outside of one."""
    if not all(curve[0][0] <= rate <= curve[-1][0] for rate, curve in zip(rates, curves)):
        return None
    return mean(
        float(np.interp(math.log(rate), *zip(*((math.log(x), y) for x, y in curve))))
        for rate, curve in zip(rates, curves)
    )
