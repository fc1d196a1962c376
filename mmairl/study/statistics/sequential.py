"""Sequential analysis: add seeds until every comparison is decided, without raising the error rate.

A row of a study is one configuration, usually trained with several seeds.

The numbers of seeds per row at which the study is analyzed are fixed in advance. Each number is 1.5 times the previous one
(rounded up), but at most N, the largest number that the budget allows. The error rate over all analyses is 5 %. The analyses
up to n seeds together may use (n / N)^2 of it. The level of an analysis is therefore this amount minus the amount that the
previous analyses may use. Each analysis tests the comparisons as usual, at its own level and with Holm's correction.
Decisions are final. Rows get more seeds only while one of their comparisons is undecided.

The chance of one or more false differences is at most the sum of the levels, whether or not the analyses are independent.
Known alternatives are worse for 2 to 20 seeds: group-sequential designs assume a known variance, and confidence sequences
that are valid at any time are much wider.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mmairl.errors import UserError
from mmairl.io import Declared, read_json, write_json
from mmairl.study.schema import EarlierAnalyses
from mmairl.study.spec import Row, Study
from mmairl.study.statistics.compare_rows import LEVEL, Comparison, compare_scores
from mmairl.study.statistics.verdict_words import DECISIONS, INCONCLUSIVE, decision_of

# The default budget is enough for this number of seeds per row.
USUAL = 12


class Plan(Declared):
    """The numbers of seeds per row at which a study is analyzed.

    They are fixed before the first analysis, because the error rate covers only planned analyses.
    """

    first: Annotated[int, Meta(ge=2)]  # seeds per row at the first analysis
    most: Annotated[int, Meta(ge=2)]  # seeds per row at the last analysis

    @property
    def analyses(self) -> list[tuple[int, float]]:
        """The number of seeds per row at each analysis, with the level of its tests."""
        counts = [self.first]
        while counts[-1] < self.most:
            counts.append(min(self.most, counts[-1] + math.ceil(counts[-1] / 2)))
        analyses = []
        before = 0.0
        for count in counts:
            spent = LEVEL * (count / self.most) ** 2
            analyses.append((count, spent - before))
            before = spent
        return analyses

    @property
    def words(self) -> str:
        analyses = ', '.join(f'{count} (level {level:.2%})' for count, level in self.analyses)
        return (
            'seeds are added until every comparison is decided; the study is analyzed at '
            f'{analyses} seeds per row, and the error rate of 5 % covers all analyses'
        )


def begin(
    out: Path,
    study: Study,
    seeds: Sequence[int],
    budget: int | None,
    runs_a_seed: int | None = None,
) -> Plan:
    """Return the plan of a study's analyses for a budget of runs, and store it at the first call.

    A stored plan never changes. If the study already has a plan, the new plan must therefore be the same.

    Args:
        out: Folder of the study.
        study: The study.
        seeds: Seeds of the first analysis.
        budget: Maximum number of runs. Default: the runs of the stored plan or, without a stored plan, enough runs for 12
            seeds per row (or for `seeds` if these are more).
        runs_a_seed: Number of runs that each seed requires, including the trials of a search, which are runs that tune a
            row. Default: one run of each row that is not untrained.

    Raises:
        UserError: If the study is crossed (it has a design of factors), if there is only one seed, if the budget is too
            small, or if the stored plan differs.
    """
    if study.design:
        raise UserError(
            '--until-decided: not available for crossed studies; --power prints how many runs the effects require',
            code='sequential-design',
        )
    rows = sum(not row.untrained for row in study.rows)
    each = runs_a_seed or rows
    most = budget // each if budget else max(USUAL, len(seeds))
    plan = Plan(len(seeds), most)
    if not 2 <= plan.first <= plan.most:
        raise UserError(
            f"--until-decided: too few seeds or runs for the first analysis of {rows} rows ('{plan.first} seeds, "
            f"{budget or each * most} runs'); give at least 2 seeds (--seeds), and set --most to at least "
            f'{each * max(2, plan.first)}',
            code='budget-too-small',
        )
    stored = read(out)
    if stored is None:
        write_json(out / 'sequential.json', plan)
        return plan
    most = plan.most if budget else stored.most
    if (plan.first, most) != (stored.first, stored.most):
        raise UserError(
            f"--until-decided: the stored plan cannot change ('{out}': {stored.first} to {stored.most} seeds per row), because "
            'the error rate covers only this plan; give the same --seeds and --most as before, or another --out',
            code='other-plan',
        )
    return stored


def read(out: Path) -> Plan | None:
    """Return the stored plan of a study; None if the study was not started with --until-decided."""
    path = out / 'sequential.json'
    return read_json(path, Plan) if path.is_file() else None


def finished_runs(path: Path, finished: int) -> list[int]:
    """Return the number of finished runs at each analysis so far, including the current one.

    An analysis with the same number of finished runs as an earlier one is a repetition and is not counted again.

    Args:
        path: The record of the previous analysis (study.json).
        finished: Number of finished runs at the current analysis.
    """
    try:
        before = read_json(path, EarlierAnalyses).finished_runs
    except UserError:
        # There is no study.json yet, or it is not the record of a study.
        before = []
    return before if finished in before else [*before, finished]


def compare_sequentially(
    study: Mapping[str, Any],
    metric: str,
    margin: float,
    plan: Plan,
) -> list[Comparison]:
    """Return the comparisons of a sequential study, with their verdicts.

    An analysis includes a comparison only if both rows have all seeds of this analysis. A decided comparison has the values
    from the analysis that decided it. An undecided comparison has the values from the latest analysis that includes it or,
    before its first analysis, those of all finished runs. The result depends only on the record of the study, not on when
    it was analyzed.
    """
    current = [_undecided(pair) for pair in compare_scores(study, metric, margin)]
    for count, level in plan.analyses:
        seeds = sorted(study['seeds'])[:count]
        if len(seeds) < count:
            break
        known = [decision_of(pair.verdict) for pair in current]
        analysis = compare_scores(with_seeds(study, seeds), metric, margin, level, known)
        for number, pair in enumerate(analysis):
            if known[number] not in DECISIONS and pair.seeds >= count:
                current[number] = pair
    return current


def _undecided(pair: Comparison) -> Comparison:
    return replace(pair, verdict=INCONCLUSIVE) if decision_of(pair.verdict) in DECISIONS else pair


def with_seeds(study: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Return a copy of a study's record that has only the runs of the given seeds."""
    rows = []
    for row in study['rows']:
        runs = [run for run in row['runs'] if run['seed'] in seeds]
        rows.append(dict(row, runs=runs))
    return dict(study, rows=rows)


def format_analyses(family: Sequence[Comparison], plan: Plan, seeds: int) -> list[str]:
    """Return one line of text for each analysis so far, with the decisions that it made."""
    lines = []
    for count, _ in plan.analyses:
        if count > seeds:
            break
        decided = []
        for pair in family:
            if pair.seeds == count and decision_of(pair.verdict) in DECISIONS:
                decided.append(f'{pair.row} {pair.verdict}')
        lines.append(f'analysis at {count} seeds: {"; ".join(decided) or "no decision"}')
    return lines


def open_rows(study: Study, comparisons: Sequence[Comparison]) -> list[Row]:
    """Return the rows that need more seeds: the rows of undecided comparisons, and the rows whose weights these rows use."""
    names = set()
    for pair in comparisons:
        if decision_of(pair.verdict) not in DECISIONS:
            names |= {pair.row, pair.on}
    before = None
    while before != names:
        before = set(names)
        for row in study.rows:
            if row.name in before:
                names |= set(row.others.values())
    return [row for row in study.rows if row.name in names]
