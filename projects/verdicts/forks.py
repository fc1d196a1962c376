"""Compare the effects of config changes in forks with those in whole runs: python -m projects.verdicts.forks work_dirs/STUDY

A row of a study is a set of runs of one config with different seeds. A fork continues a checkpoint of an unchanged run, its
trunk, with a changed config. A whole run has the changed config from the start. Forks and whole runs measure the same factor
if they change the same keys of the same trunk. All effects are differences from the trunk, paired by seed.

With --null, STUDY is the folder of the finished study `studies/null_forks.yaml`, whose forks differ from the trunk only by
noise. The command then simulates from its results how often studies find a false difference among forks.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from mmairl.errors import UserError
from mmairl.io import read_json
from mmairl.study.statistics.compare_rows import DIFFERS, MARGIN, paired, verdicts

RESAMPLES = 2000
FEWEST = 5  # an interval requires this many seeds, because resamples of fewer seeds are too similar
STUDIES = 4000
ROWS = 6  # number of simulated forks of a trunk, equal to the number of steps in the study `ladder`


@dataclass(frozen=True)
class Factor:
    """The effect of one change of the config: for each seed, the difference in score from the unchanged run.

    `whole` contains the differences of whole runs, and `forks` those of forks, by fork point. A fork point is the fraction
    of training after which the change begins.
    """

    name: str
    whole: np.ndarray
    forks: Mapping[Fraction, np.ndarray]


@dataclass(frozen=True)
class Agreement:
    """How well the mean effects of forks at one fork point agree with the mean effects of whole runs."""

    same_sign: int
    slope: float  # slope of the line through the origin that predicts effects of forks from effects of whole runs
    correlation: float


def read_factors(study: Mapping[str, Any], task: str = 'knn') -> list[Factor]:
    """Return the factors that have a row of whole runs and rows of forks, with the seeds that all these rows share."""
    rows = study['rows']
    scores = {row['name']: scores_of(row, task) for row in rows}
    factors = []
    for row in rows:
        if row['fork'] or not row['changed']:
            continue
        forks = [
            other
            for other in rows
            if other['fork']
            and other['fork']['of'] == row['on'] == other['on']
            and other['changed'] == row['changed']
        ]
        names = [row['on'], row['name'], *(fork['name'] for fork in forks)]
        seeds = sorted(set.intersection(*(set(scores[name]) for name in names)))
        if not forks or len(seeds) < 2:
            continue
        values = {name: np.array([scores[name][seed] for seed in seeds]) for name in names}
        trunk = values[row['on']]
        differences = {
            Fraction(fork['fork']['at']).limit_denominator(12): values[fork['name']] - trunk
            for fork in forks
        }
        factors.append(Factor(row['name'], values[row['name']] - trunk, differences))
    if len(factors) < 3:
        raise UserError(
            f'{study["name"]}: expected at least three factors that have a forked row and a row that is trained from the '
            f'start, with two finished seeds in common ({len(factors)}); finish configs/studies/fork_prediction.yaml first',
            code='too-few-factors',
        )
    return factors


def scores_of(row: Mapping[str, Any], task: str) -> dict[int, float]:
    return {
        run['seed']: run['scores'][task] for run in row['runs'] if task in run.get('scores', {})
    }


def agreement(whole: np.ndarray, forks: np.ndarray) -> Agreement:
    """Return the agreement between the mean effects of whole runs and of forks. Each array has one value per factor."""
    return Agreement(
        same_sign=int((np.sign(whole) == np.sign(forks)).sum()),
        slope=float(whole @ forks / (whole @ whole)),
        correlation=float(np.corrcoef(whole, forks)[0, 1]),
    )


def intervals(factors: Sequence[Factor], point: Fraction, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the 95 % interval of each field of `Agreement`. All factors share the resampled seeds."""
    draw = np.random.default_rng(seed)
    runs = min(len(factor.whole) for factor in factors)
    samples = []
    for _ in range(RESAMPLES):
        places = draw.integers(runs, size=runs)
        whole = np.array([factor.whole[places].mean() for factor in factors])
        forks = np.array([factor.forks[point][places].mean() for factor in factors])
        samples.append(agreement(whole, forks))
    keys = Agreement.__dataclass_fields__
    return {
        key: np.nanquantile([getattr(sample, key) for sample in samples], (0.025, 0.975))
        for key in keys
    }


def null_differences(study: Mapping[str, Any], task: str = 'knn') -> np.ndarray:
    """Return the difference in score between each fork and its trunk, as an array (row, seed)."""
    trunk, *forks = (scores_of(row, task) for row in study['rows'] if not row.get('untrained'))
    seeds = sorted(set(trunk).intersection(*forks))
    return np.array([[fork[seed] - trunk[seed] for seed in seeds] for fork in forks])


def false_alarms(differences: np.ndarray, trunks: int, seed: int = 0) -> float:
    """Return the fraction of simulated studies that find a difference although their forks differ only by noise.

    The differences from the trunk are sampled from measured differences. Their signs are random, because trunk and fork are
    interchangeable.
    """
    draw = np.random.default_rng(seed)
    shape = (STUDIES, ROWS, trunks)
    scores = draw.choice(differences.ravel(), shape) * draw.choice([-1, 1], shape)
    decisions = verdicts(*paired(scores, np.zeros(shape)), MARGIN)
    return float((decisions == DIFFERS).any(-1).mean())


def effect(differences: np.ndarray) -> str:
    """Return the mean and its standard error."""
    error = differences.std(ddof=1) / np.sqrt(len(differences))
    return f'{differences.mean():+.1f} ± {error:.1f}'


def tables(factors: Sequence[Factor]) -> str:
    """Return the effects and their agreement as two tables in Markdown."""
    points = sorted(set.intersection(*(set(factor.forks) for factor in factors)))
    lines = ['| change | ' + ' | '.join(f'from {point}' for point in points) + ' | whole runs |']
    lines.append('|---|' + '--:|' * (len(points) + 1))
    for factor in factors:
        cells = [effect(factor.forks[point]) for point in points] + [effect(factor.whole)]
        lines.append(f'| {factor.name} | ' + ' | '.join(cells) + ' |')
    lines += ['', '| fork point | same sign | slope | correlation |', '|---|--:|--:|--:|']
    whole = np.array([factor.whole.mean() for factor in factors])
    for point in points:
        forks = np.array([factor.forks[point].mean() for factor in factors])
        fit = agreement(whole, forks)
        cells = [
            f'{fit.same_sign} of {len(factors)}',
            f'{fit.slope:.2f}',
            f'{fit.correlation:.2f}',
        ]
        if min(len(factor.whole) for factor in factors) >= FEWEST:
            ranges = intervals(factors, point).values()
            cells = [
                f'{cell} ({low:.2g} to {high:.2g})' for cell, (low, high) in zip(cells, ranges)
            ]
        lines.append(f'| {point} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('study', type=Path, help='folder of a finished study')
    parser.add_argument(
        '--null',
        action='store_true',
        help='simulate how often studies find a false difference among forks',
    )
    args = parser.parse_args()
    study = read_json(args.study / 'study.json')
    if not args.null:
        print(tables(read_factors(study)))
        return
    differences = null_differences(study)
    deviation = differences.std()
    print(f'{differences.size} differences, standard deviation {deviation:.2f}')
    for trunks in (3, 5, 8):
        print(f'{trunks} trunks: {false_alarms(differences, trunks):.1%} of studies')


if __name__ == '__main__':
    main()
