"""Sequential analysis: add seeds until every comparison is decided, with the error rate kept over all analyses.

The numbers of seeds at which the study is analyzed are fixed in advance. Each is 1.5 times the previous one, up to the most
that the budget allows. After n of N seeds, the analyses so far may spend (n / N)^2 of the level of 5 %, so the level of an
analysis is this amount minus that of the previous analysis. An analysis tests the comparisons as usual, at its level and
corrected by Holm. Decisions are final, and rows without an open comparison get no more seeds.

The chance of a false verdict is at most the sum of the levels, however the analyses depend on each other. Alternatives are
worse for 2 to 20 seeds: the joint boundaries of group-sequential designs assume a known variance, and confidence sequences
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

USUAL = 12  # seeds per row, if no budget is given


class Plan(Declared):
    """The numbers of seeds, fixed before the first analysis, because the error rate covers only planned analyses."""

    first: Annotated[int, Meta(ge=2)]  # seeds of the first analysis
    most: Annotated[int, Meta(ge=2)]  # seeds of the last analysis

    @property
    def analyses(self) -> list[tuple[int, float]]:
        """The number of seeds of each analysis, with the level of its tests."""
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
    """Return the plan of a budget of runs. A stored plan never changes.

    Args:
        out: Folder of the study.
        study: The study.
        seeds: Seeds of the first analysis.
        budget: Maximum number of runs. Default: enough for 12 seeds per row.
        runs_a_seed: Number of runs per seed, including the trials of a search. Default: one run of each trained row.

    Raises:
        UserError: If the study is crossed, the budget is too small, or another plan is stored.
    """
    if study.design:
        raise UserError(
            '--until-decided: not available for crossed studies; --power prints how many runs their effects require',
            code='sequential-design',
        )
    rows = sum(not row.untrained for row in study.rows)
    each = runs_a_seed or rows
    most = budget // each if budget else max(USUAL, len(seeds))
    plan = Plan(len(seeds), most)
    if not 2 <= plan.first <= plan.most:
        raise UserError(
            f"--most: too few runs ('{budget}') for {rows} rows and {plan.first} first seeds; give 2 --seeds or more, and "
            f'--most {each * max(2, plan.first)} or more',
            code='budget-too-small',
        )
    stored = read(out)
    if stored is None:
        write_json(out / 'sequential.json', plan)
        return plan
    most = plan.most if budget else stored.most
    if (plan.first, most) != (stored.first, stored.most):
        raise UserError(
            f"--until-decided: the error rate covers only the stored plan ('{out}' has {stored.first} to {stored.most} seeds "
            'per row); repeat its --seeds and --most, or set --out to another folder',
            code='other-plan',
        )
    return stored


def read(out: Path) -> Plan | None:
    """Return the plan of a study that was started with --until-decided."""
    path = out / 'sequential.json'
    return read_json(path, Plan) if path.is_file() else None


def finished_runs(path: Path, finished: int) -> list[int]:
    """Return how many runs were finished at each analysis so far, including this one.

    A repetition with the same number of runs is not another analysis.
    """
    try:
        before = read_json(path, EarlierAnalyses).finished_runs
    except UserError:  # no record, or not a record of a study
        before = []
    return before if finished in before else [*before, finished]


def compare_sequentially(
    study: Mapping[str, Any],
    metric: str,
    margin: float,
    plan: Plan,
) -> list[Comparison]:
    """Return each comparison from the analysis that decided it, or from the last one.

    The result depends on the record alone. An analysis counts only comparisons whose rows have all of its seeds.
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
    """Return a study's record with the runs of these seeds only."""
    rows = []
    for row in study['rows']:
        runs = [run for run in row['runs'] if run['seed'] in seeds]
        rows.append(dict(row, runs=runs))
    return dict(study, rows=rows)


def format_analyses(family: Sequence[Comparison], plan: Plan, seeds: int) -> list[str]:
    """Return a line for each analysis so far, with its decisions."""
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
    """Return the rows of comparisons without a decision, and the rows whose weights they use."""
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
