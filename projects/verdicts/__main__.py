"""Print how often simulated studies call equal rows different, as in results/2026-11-23_verdict_simulations.md.

A row is a set of runs of one config with different seeds. In the first table, each number is the highest rate of false
differences of all simulated cases. The cases differ in the standard deviations of the rows, in whether a seed affects all rows
alike (blocks), in whether a run is missing, and in whether the study has an untrained row. The second table is for two rows
that are tuned by searches and compared by the scores of the best trials, or by fresh runs with the settings of these trials.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product

from projects.verdicts.simulate import (
    CHANCES,
    DESIGNS,
    HALF,
    LADDERS,
    NULL,
    SHAPES,
    WHOLE,
    chances,
    design,
    ladder,
)

SEEDS = (2, 3, 5, 8, 12)
STUDIES = dict(
    [('ladder of 7 rows', [partial(ladder, spread=spread) for spread in LADDERS.values()])]
    + [
        (
            f'design of {len(rows)} rows',
            [partial(design, rows, spread=rule(len(rows))) for rule in DESIGNS.values()],
        )
        for rows in (WHOLE, HALF)
    ]
)


def shares(study: str, scores: str, seeds: int) -> Iterator[float]:
    """Yield, for each case of a study, the fraction of simulations with a false difference."""
    for simulated, blocks, missing, null in product(
        STUDIES[study], (True, False), (True, False), (NULL, None)
    ):
        yield simulated(shape=scores, seeds=seeds, blocks=blocks, missing=missing, null=null)


def main() -> None:
    print(
        f'| study | scores | {" | ".join(f"{seeds} seeds" for seeds in SEEDS)} |\n|---|---|{"--:|" * len(SEEDS)}'
    )
    for study, scores in product(STUDIES, SHAPES):
        worst = (f'{100 * max(shares(study, scores, seeds)):.1f} %' for seeds in SEEDS)
        print(f'| {study} | {scores} | {" | ".join(worst)} |', flush=True)
    print(
        "\n| equally good rows | searches | best trial's own score | fresh runs of the winners |\n|---|--:|--:|--:|"
    )
    for case, searches in product(CHANCES, (2, 3, 5, 8)):
        print(
            f'| {case} | {searches} | {" | ".join(f"{100 * share:.1f} %" for share in chances(case, searches))} |'
        )


if __name__ == '__main__':
    main()
